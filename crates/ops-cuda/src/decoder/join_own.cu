// Residual stream and RMSNorm of the rows of a prompt that this rank keeps (sequence parallelism): adds the outputs of all ranks for
// these rows, then normalizes them at once; later kernels read only the normalized rows.
//
//   x[t] += factor * sum of added[t] over ranks, divided by sqrt(sum of squares[t] * inverse_width + squares_eps) where squares are given
//   h[t] = x[t] * weight / sqrt(mean x[t]^2 + eps)
//
// x [T, hidden] f32, added [T, hidden] bf16, squares [T] f32 or null, weight [hidden] f32, h [T, hidden] bf16; hidden % 8 == 0, rows
// 16-byte aligned. This rank's outputs are own and own_squares. The other ranks' begin at theirs and their_squares, `apart` bytes from one
// rank to the next, and are valid once the rank's mark (MARK words per rank) is at `turn`: that GPU's peer-to-peer copies wrote them. Sums
// are in the order of ranks, so that a row has the same bits on any rank.
//
// Launch: any number of blocks up to T, 256 threads, 4 * hidden bytes of dynamic shared memory. Blocks wait for no block, of this GPU or
// another, only for copies that other GPUs' hosts enqueued before any kernel that waits for this GPU. Such a copy must always find
// free SMs, even if the driver runs it as a kernel: use no more blocks than fill half of the GPU. Dependent kernels start after the
// copies have arrived. Source: include/order.cuh, include/storage.cuh, decoder/mark.cuh, then this. Macro: DTYPE (bf16).

constexpr int THREADS = 256, MARK = 16;

// Adds two packed pairs to four sums.
DEVICE void sum_four(float4& sum, u32 low, u32 high) {
  sum.x += widen_half(low & 0xffff);
  sum.y += widen_half(low >> 16);
  sum.z += widen_half(high & 0xffff);
  sum.w += widen_half(high >> 16);
}

// onto += times * sum, in four elements; returns the sum of squares of the result.
DEVICE float add_four(float4& onto, float4 sum, float times) {
  onto.x += times * sum.x;
  onto.y += times * sum.y;
  onto.z += times * sum.z;
  onto.w += times * sum.w;
  return onto.x * onto.x + onto.y * onto.y + (onto.z * onto.z + onto.w * onto.w);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    decoder_join_own(const char* own, const char* own_squares, const char* theirs, const char* their_squares, i64 apart,
                     const u32* marks, int turn, int rank, int ranks, float* x, const float* weight, void* h, int count, int hidden,
                     float inverse_width, float squares_eps, float factor, float inverse_hidden, float eps) {
  extern __shared__ float4 kept[];
  __shared__ float sums[2][THREADS / 32];  // of this row, and of the preceding one, which some warps may still read
  const int thread = threadIdx.x, vectors = hidden / 8;
  const auto of_rank = [&](const char* own, const char* theirs, int of) { return of == rank ? own : theirs + (of - (of > rank)) * apart; };
  wait_for_previous();
  if (thread < ranks - 1) wait_for_mark(marks + thread * MARK, turn);
  __syncthreads();
  let_next_start();
  int half = 0;
  for (int row = blockIdx.x; row < count; row += gridDim.x, half ^= 1) {
    const i64 begin = (i64)row * vectors;
    float times = factor, squares = 0.0f;
    if (own_squares != nullptr) {
      float size = 0.0f;
      for (int of = 0; of < ranks; of++) size += __ldcv((const float*)of_rank(own_squares, their_squares, of) + row);
      times /= sqrtf(size * inverse_width + squares_eps);
    }
    for (int at = thread; at < vectors; at += THREADS) {
      float4* const onto = (float4*)x + 2 * (begin + at);
      float4 low = onto[0], high = onto[1];
      float4 sum_low = {}, sum_high = {};
#pragma unroll 2
      for (int of = 0; of < ranks; of++) {
        const uint4 added = __ldcv((const uint4*)of_rank(own, theirs, of) + begin + at);
        sum_four(sum_low, added.x, added.y);
        sum_four(sum_high, added.z, added.w);
      }
      squares += add_four(low, sum_low, times);
      squares += add_four(high, sum_high, times);
      onto[0] = kept[at] = low;
      onto[1] = kept[vectors + at] = high;
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) squares += __shfl_xor_sync(0xffffffff, squares, lanes);
    if (thread % 32 == 0) sums[half][thread / 32] = squares;
    __syncthreads();
    float size = 0.0f;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; warp++) size += sums[half][warp];
    const float scale = 1.0f / sqrtf(size * inverse_hidden + eps);
    for (int at = thread; at < vectors; at += THREADS) {
      const float4 low = kept[at], high = kept[vectors + at];
      const float4 by_low = ((const float4*)weight)[2 * at], by_high = ((const float4*)weight)[2 * at + 1];
      ((uint4*)h)[begin + at] = make_uint4(narrow_pair(low.x * scale * by_low.x, low.y * scale * by_low.y),
                                           narrow_pair(low.z * scale * by_low.z, low.w * scale * by_low.w),
                                           narrow_pair(high.x * scale * by_high.x, high.y * scale * by_high.y),
                                           narrow_pair(high.z * scale * by_high.z, high.w * scale * by_high.w));
    }
  }
}
