// Combine step of split decode attention: puts the parts that decode.cu wrote for a query row together.
//
//   weight[s] = 2^(partial_lse[s] - max), o = sum_s weight[s] partial_o[s] / sum_s weight[s],
//   lse = (max + log2 sum_s weight[s]) ln 2,
// summed in the order of s, so that the same parts always give the same bits. A part that saw no key has
// partial_lse = -inf and is not read (it was not written); a row whose parts all saw none gets o = 0, lse = -inf.
//
// partial_o [splits, rows, Dv] f32, each part already divided by its own sum; partial_lse [splits, rows] f32, base 2;
// o [rows, Dv] in storage type; lse f32 [B, H, Tq], or [H, total] when cu_q is given, or null.
// Row numbers are those of o seen as [rows, Dv]: (query row) * H + head.
//
// Launch: grid (rows), block (THREADS), no dynamic shared memory.
// Macros: DV, DTYPE (bf16, f16), THREADS (default 128).
// Args: as named below; rows = q rows * H; tq = queries of a sequence when dense.

#ifndef THREADS
#define THREADS 128
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_combine(const float* __restrict__ partial_o, const float* __restrict__ partial_lse, u16* __restrict__ o,
                      float* __restrict__ lse, const int* __restrict__ cu_q, int splits, int rows, int heads, int tq) {
  const int row = blockIdx.x;
  float largest = -INFINITE;
  for (int s = 0; s < splits; s++) largest = fmaxf(largest, partial_lse[(i64)s * rows + row]);
  float sum = 0.0f;
  for (int s = 0; s < splits; s++) {
    float part = partial_lse[(i64)s * rows + row];
    if (part != -INFINITE) sum += exp2_approximate(part - largest);
  }
  const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;

  for (int column = threadIdx.x; column < DV; column += THREADS) {
    float value = 0.0f;
#pragma unroll 4
    for (int s = 0; s < splits; s++) {
      float part = partial_lse[(i64)s * rows + row];
      if (part != -INFINITE) {
        value += exp2_approximate(part - largest) * inverse * partial_o[((i64)s * rows + row) * DV + column];
      }
    }
    o[(i64)row * DV + column] = (u16)pack(value, 0.0f);
  }

  if (threadIdx.x == 0 && lse != nullptr) {
    const int query = row / heads, head = row % heads;
    const i64 at = cu_q != nullptr ? (i64)head * (rows / heads) + query
                                   : ((i64)(query / tq) * heads + head) * tq + query % tq;
    lse[at] = sum > 0.0f ? (largest + log2_approximate(sum)) * 0.693147181f : -INFINITE;
  }
}
