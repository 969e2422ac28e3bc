// Adds the all-reduced output of the ranks to the residual stream: x[t] += factor * added[t], where squares are given divided by
// the RMS of the row that it was computed from: sqrt(squares[t] * inverse_width + eps). x and added [T, hidden] f32, squares [T] f32 or
// null. hidden % 4 == 0, rows 16-byte aligned.
// Launch: grid (T, ceil(hidden / 1024)), 256 threads. It must not overlap the all-reduce before it.

extern "C" __global__ void __launch_bounds__(256)
    decoder_join(const float* added, const float* squares, float* x, int hidden, float inverse_width, float eps,
                 float factor) {
  let_next_start();
  wait_for_previous();
  if (squares != nullptr) factor /= sqrtf(squares[blockIdx.x] * inverse_width + eps);
  const int i = (blockIdx.y * 256 + threadIdx.x) * 4;
  if (i >= hidden) return;
  const long long at = (long long)blockIdx.x * hidden + i;
  const float4 more = *reinterpret_cast<const float4*>(added + at);
  float4 sum = *reinterpret_cast<float4*>(x + at);
  sum.x += factor * more.x;
  sum.y += factor * more.y;
  sum.z += factor * more.z;
  sum.w += factor * more.w;
  *reinterpret_cast<float4*>(x + at) = sum;
}
