// The token of the largest logit, of equal ones the lowest. The result of row r is chosen[r] = (key << 32) | ~token, where
// key orders floats as unsigned numbers do, so that the largest number is wanted and any order of finding it gives the same.
// chosen is 0 before.
//
// logits [rows, vocabulary] f32, chosen [rows] u64. Launch: grid (shares of a row, rows), 256 threads.

extern "C" __global__ void __launch_bounds__(256)
    decoder_choose(const float* __restrict__ logits, unsigned long long* __restrict__ chosen, int vocabulary) {
  let_next_start();
  wait_for_previous();
  logits = read_from_now_on(logits);
  const float* const row = logits + (long long)blockIdx.y * vocabulary;
  unsigned long long best = 0;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < vocabulary; i += gridDim.x * 256) {
    const unsigned bits = __float_as_uint(row[i]);
    const unsigned key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    const unsigned long long here = (unsigned long long)key << 32 | ~(unsigned)i;
    best = here > best ? here : best;
  }
#pragma unroll
  for (int far = 16; far > 0; far /= 2) {
    const unsigned long long other = __shfl_xor_sync(~0u, best, far);
    best = other > best ? other : best;
  }
  __shared__ unsigned long long of_warp[8];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll
    for (int w = 0; w < 8; w++) best = of_warp[w] > best ? of_warp[w] : best;
    atomicMax(chosen + blockIdx.y, best);
  }
}
