// One matrix product per head: o[t, h] = [W_h x[t, h] | tail of x[t, h]]. For latent attention (MLA): projects queries to
// the width of the cache, and attention outputs over the cache back to values.
//
// x [T, heads, K + tail], w [heads, N, K], o [T, heads, N + tail] in storage; K % 16 == 0, N % 16 == 0, tail % 2 == 0, all
// 4-byte aligned. Sums are float32.
// Launch: grid (ceil(N / 64), heads, ceil(T / 64)), 128 threads. A warp has 16 rows of w and up to four tiles of 16 tokens,
// one after the other. Macros: DTYPE.

extern "C" __global__ void __launch_bounds__(128)
    decoder_heads(const u16* __restrict__ x, const u16* __restrict__ w, u16* __restrict__ o, int tokens, int heads,
                  int inputs, int outputs, int tail) {
  let_next_start();
  wait_for_previous();
  asm volatile("" : "+l"(x)::"memory");  // __restrict__ const permits loads above the wait; this forbids them
  const int lane = threadIdx.x % 32, head = blockIdx.y, first_token = blockIdx.z * 64;
  const int row = blockIdx.x * 64 + threadIdx.x / 32 * 16;  // the warp's first output
  const int x_head = inputs + tail, o_head = outputs + tail;
  const int tiles = ceil_div(min(64, tokens - first_token), 16);
  if (row < outputs) {
    // [tile of 16 tokens][8 rows of w]
    float sums[4][2][4] = {};
    const u16* const of_w = w + ((i64)head * outputs + row + lane / 4) * inputs + lane % 4 * 2;
    for (int k = 0; k < inputs; k += 16) {
      u32 b[2][2];
#pragma unroll
      for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) b[n][half] = *(const u32*)(of_w + (i64)n * 8 * inputs + k + half * 8);
      }
#pragma unroll
      for (int tile = 0; tile < 4; tile++) {
        if (tile >= tiles) break;
        u32 a[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int token = first_token + tile * 16 + lane / 4 + i % 2 * 8;
          const u16* const from = x + ((i64)token * heads + head) * x_head + k + lane % 4 * 2 + i / 2 * 8;
          a[i] = token < tokens ? *(const u32*)from : 0u;
        }
#pragma unroll
        for (int n = 0; n < 2; n++) multiply(sums[tile][n], a, b[n][0], b[n][1]);
      }
    }
#pragma unroll
    for (int tile = 0; tile < 4; tile++) {
      if (tile >= tiles) break;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int token = first_token + tile * 16 + lane / 4 + half * 8;
        if (token >= tokens) continue;
        u16* const to = o + ((i64)token * heads + head) * o_head + row + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 2; n++) *(u32*)(to + n * 8) = pack(sums[tile][n][half * 2], sums[tile][n][half * 2 + 1]);
      }
    }
  }
  if (blockIdx.x == 0) {
    const int pairs = tail / 2, last = min(64, tokens - first_token);
    for (int i = threadIdx.x; i < last * pairs; i += 128) {
      const i64 of_head = (i64)(first_token + i / pairs) * heads + head;
      *(u32*)(o + of_head * o_head + outputs + i % pairs * 2) = *(const u32*)(x + of_head * x_head + inputs + i % pairs * 2);
    }
  }
}
