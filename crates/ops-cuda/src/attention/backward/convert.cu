// Attention backward: the f32 sums of the gradient of q of hopper.cu, scaled and rounded to the storage type.
//
// sums f32 [H, padded, D] in the accumulators' order; counters as hopper.cu leaves them: a tile to which no block
// has added (none of its queries sees a key) has no sums, and its gradient is 0; null: all tiles have sums.
// grad_q [B, Tq, H, D_STORED] or packed [total, H, D_STORED] with cu_q, contiguous, 16-byte aligned.
//
// Source: include/hopper.cuh, rows.cuh, hopper_config.cuh, this file. Macros: DTYPE, D, D_STORED.
// Launch: grid (ceil(longest Tq / BLOCK_Q), H, B), 256 threads.

// Four threads hold, of a row, words 0..3 of four groups: group i has its word t in thread t. After this, thread t
// holds the four words of group t, which it can store at once.
DEVICE void transpose_quad(u32 (&w)[4], int t) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const u32 got = __shfl_xor_sync(0xffffffff, t & 1 ? w[i] : w[i + 1], 1);
    if (t & 1) w[i] = got; else w[i + 1] = got;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const u32 got = __shfl_xor_sync(0xffffffff, t & 2 ? w[i] : w[i + 2], 2);
    if (t & 2) w[i] = got; else w[i + 2] = got;
  }
}

extern "C" __global__ void __launch_bounds__(256)
    attention_backward_convert(const float* __restrict__ sums, const int* __restrict__ counters, u16* __restrict__ grad_q,
                               const int* __restrict__ cu_q, int batch, int tq, int heads, float scale) {
  const int head = blockIdx.y, sequence = blockIdx.z;
  const int start = first_row_of(sequence, cu_q, tq), rows = first_row_of(sequence + 1, cu_q, tq) - start;
  if ((int)blockIdx.x * BLOCK_Q >= rows) return;
  const int padded = padded_start(batch, first_row_of(batch, cu_q, tq));
  const i64 tile = ((i64)head * padded + padded_start(sequence, start)) / BLOCK_Q + blockIdx.x;
  const bool some = counters == nullptr || counters[1 + tile] > 0;
  const int consumer = threadIdx.x / 128, thread = threadIdx.x % 128, t = thread % 4;
  const float4* from = reinterpret_cast<const float4*>(sums + tile * GRAD_Q_FLOATS) + consumer * (GRAD_Q_PART_BYTES / 16) + thread;
  float4 d[GRAD_Q_FLOATS / 1024];
#pragma unroll
  for (int i = 0; i < GRAD_Q_FLOATS / 1024; i++) d[i] = some ? from[i * 128] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const int row = blockIdx.x * BLOCK_Q + (BLOCK_Q == 128 ? 64 * consumer : 0) + thread / 32 * 16 + thread % 32 / 4;
  const int column = (BLOCK_Q == 128 ? 0 : D / 2 * consumer) + 8 * t;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int at = row + 8 * r;
    u16* const to = grad_q + ((i64)(start + at) * heads + head) * D_STORED;
#pragma unroll
    for (int i = 0; i < GRAD_Q_FLOATS / 4096; i++) {
      u32 w[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float4 v = d[4 * i + j];
        w[j] = r == 0 ? pack(v.x * scale, v.y * scale) : pack(v.z * scale, v.w * scale);
      }
      transpose_quad(w, t);
      if (at < rows && (D_STORED == D || column + 32 * i < D_STORED)) {
        *reinterpret_cast<uint4*>(to + column + 32 * i) = make_uint4(w[0], w[1], w[2], w[3]);
      }
    }
  }
}
