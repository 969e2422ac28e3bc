// The residual stream of the rows that this GPU keeps, of a prompt whose rows two GPUs have halves of: what both have made of these rows
// goes onto it, and its norm is made at once, which is all that anybody reads of it.
//
//   x[t] += factor * (own[t] + theirs[t]), divided by sqrt((own_squares[t] + their_squares[t]) * inverse_width + squares_eps) where
//           squares are given
//   h[t] = x[t] * weight / sqrt(mean x[t]^2 + eps)
//
// x [T, hidden] f32, own and theirs [T, hidden] bf16, squares [T] f32 or null, weight [hidden] f32, h [T, hidden] bf16; hidden % 8 == 0,
// rows 16-byte aligned. theirs and their_squares are read when the mark is at `turn`: the other GPU's copy engine wrote them.
//
// Launch: any number of blocks up to T, 256 threads, 4 * hidden bytes of dynamic shared memory. Blocks wait for no block, here or there,
// but for a copy that the other GPU's host asked for before it asked for any kernel that waits for this GPU. So that such a copy never wants for
// room, even one that the driver makes by a kernel, there should be no more blocks than fill half of the GPU, and what stands behind
// starts when the copy has come. Source: cuda/order.cuh, cuda/storage.cuh, decoder/mark.cuh, then this. Macro: DTYPE (bf16).

constexpr int THREADS = 256;

// Four numbers of both, times a factor, onto four; gives the sum of the squares of what they are then.
DEVICE float add_four(float4& onto, uint2 own, uint2 theirs, float times) {
  onto.x += times * (widen_half(own.x & 0xffff) + widen_half(theirs.x & 0xffff));
  onto.y += times * (widen_half(own.x >> 16) + widen_half(theirs.x >> 16));
  onto.z += times * (widen_half(own.y & 0xffff) + widen_half(theirs.y & 0xffff));
  onto.w += times * (widen_half(own.y >> 16) + widen_half(theirs.y >> 16));
  return onto.x * onto.x + onto.y * onto.y + (onto.z * onto.z + onto.w * onto.w);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    decoder_join_own(const void* own, const float* own_squares, const void* theirs, const float* their_squares,
                     const u32* mark, int turn, float* x, const float* weight, void* h, int count, int hidden,
                     float inverse_width, float squares_eps, float factor, float inverse_hidden, float eps) {
  extern __shared__ float4 kept[];
  __shared__ float sums[2][THREADS / 32];  // of this row, and of the one before, which some may still read
  const int thread = threadIdx.x, vectors = hidden / 8;
  wait_for_previous();
  if (thread == 0) wait_for_mark(mark, turn);
  __syncthreads();
  let_next_start();
  int half = 0;
  for (int row = blockIdx.x; row < count; row += gridDim.x, half ^= 1) {
    const i64 begin = (i64)row * vectors;
    float times = factor, squares = 0.0f;
    if (own_squares != nullptr) times /= sqrtf((own_squares[row] + __ldcv(their_squares + row)) * inverse_width + squares_eps);
    for (int at = thread; at < vectors; at += THREADS) {
      float4* const onto = (float4*)x + 2 * (begin + at);
      float4 low = onto[0], high = onto[1];
      const uint4 a = ((const uint4*)own)[begin + at], b = __ldcv((const uint4*)theirs + begin + at);
      squares += add_four(low, make_uint2(a.x, a.y), make_uint2(b.x, b.y), times);
      squares += add_four(high, make_uint2(a.z, a.w), make_uint2(b.z, b.w), times);
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
