// Attention backward, preparation: the log-sum-exp in base 2 and delta = rowsum(dO * O) - dlse of every query row.
//
// o, grad_o [B, Tq, H, DV] or packed [total, H, DV] with cu_q i32 [B + 1], contiguous, 16-byte aligned.
// lse f32 [B, H, Tq], packed [H, total], natural logarithm, -inf where a row sees no key; grad_lse the same shape, or null.
// row_lse, row_delta f32 [H, padded], as described in rows.cuh: row_lse is in base 2, +inf where no key is visible.
// counters i32 [counter_count], or null: set to 0 (the dQ counters of hopper.cu).
//
// Source: include/storage.cuh, rows.cuh, this file. Macros: DTYPE (bf16, f16), DV (multiple of 8 up to 256).
// Launch: grid (ceil(longest Tq / 128), H, B), 256 threads.

constexpr int THREADS = 256;
constexpr int PIECES = DV / 8;
constexpr int LANES = PIECES > 16 ? 32 : PIECES > 8 ? 16 : PIECES > 4 ? 8 : PIECES > 2 ? 4 : PIECES;  // that share a row
constexpr int AT_ONCE = THREADS / LANES;
constexpr int PASSES = (128 + AT_ONCE - 1) / AT_ONCE;
static_assert(DV % 8 == 0 && DV <= 256, "DV is a multiple of 8 up to 256");

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_prepare(const u16* __restrict__ o, const u16* __restrict__ grad_o, const float* __restrict__ lse,
                               const float* __restrict__ grad_lse, const int* __restrict__ cu_q, float* row_lse, float* row_delta, int* counters,
                               int counter_count, int batch, int tq, int heads) {
  const int head = blockIdx.y, sequence = blockIdx.z;
  if (counters != nullptr) {
    const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const int blocks = gridDim.x * gridDim.y * gridDim.z;
    for (int i = block * THREADS + threadIdx.x; i < counter_count; i += blocks * THREADS) counters[i] = 0;
  }
  const int start = first_row_of(sequence, cu_q, tq), rows = first_row_of(sequence + 1, cu_q, tq) - start;
  const int total = first_row_of(batch, cu_q, tq);
  if ((int)blockIdx.x * 128 >= rows) return;
  const int lane = threadIdx.x % LANES;
  const i64 out = (i64)head * padded_start(batch, total) + padded_start(sequence, start);
#pragma unroll(PASSES > 4 ? 4 : PASSES)
  for (int pass = 0; pass < PASSES; pass++) {
    const int within = pass * AT_ONCE + threadIdx.x / LANES;
    const int row = blockIdx.x * 128 + within;
    const bool there = row < rows;
    Stored<8> left, right;
    left.clear();
    right.clear();
    if (there && lane < PIECES) {
      const i64 at = ((i64)(start + row) * heads + head) * DV + lane * 8;
      left.load(o + at);
      right.load(grad_o + at);
    }
    float sum = 0.0f;
#pragma unroll
    for (int e = 0; e < 8; e++) sum = fmaf(left.get(e), right.get(e), sum);
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (lane == 0 && within < 128) {
      float log2_sum = POSITIVE_INFINITY, delta = 0.0f;
      if (there) {
        const i64 at = cu_q != nullptr ? (i64)head * total + start + row : ((i64)sequence * heads + head) * tq + row;
        const float natural = lse[at];
        if (natural > -POSITIVE_INFINITY || natural != natural) log2_sum = natural * LOG2_E;
        delta = sum - (grad_lse != nullptr ? grad_lse[at] : 0.0f);
        // A row that sees no key: its weights are 0 whatever delta is, but 0 * inf would be NaN.
        if (lse[at] == -POSITIVE_INFINITY) delta = 0.0f;
      }
      row_lse[out + row] = log2_sum;
      row_delta[out + row] = delta;
    }
  }
}
