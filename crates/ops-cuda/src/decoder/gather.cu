// All-gathered logits by row: to[row] = the parts of all ranks, concatenated. Rank r has the tokens from r * whole / ranks
// up to (r + 1) * whole / ranks; from [ranks, room] f32, each rank's part starting with its [rows, its tokens]; to [rows,
// whole] f32.
// Launch: grid (rows, ranks, ceil(most tokens of a rank / 1024)), 256 threads. It must not overlap the all-gather before it.

extern "C" __global__ void __launch_bounds__(256)
    decoder_gather(const float* from, float* to, int room, int whole) {
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.x, rank = blockIdx.y, ranks = gridDim.y;
  const int first = (int)((long long)rank * whole / ranks), end = (int)((long long)(rank + 1) * whole / ranks);
  const int width = end - first;
  from += (long long)rank * room + (long long)row * width;
  to += (long long)row * whole + first;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int at = (blockIdx.z * 4 + i) * 256 + threadIdx.x;
    if (at < width) to[at] = from[at];
  }
}
