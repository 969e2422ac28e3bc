// Gathers rows: to[i] = from[rows[i]], float32. width % 4 == 0, rows 16-byte aligned.
// Launch: grid (rows), any number of threads.

extern "C" __global__ void decoder_take(const float4* __restrict__ from, const int* __restrict__ rows,
                                        float4* __restrict__ to, int width) {
  let_next_start();
  wait_for_previous();
  from = read_from_now_on(from);
  const int quarters = width / 4;
  const float4* const row = from + (long long)rows[blockIdx.x] * quarters;
  for (int i = threadIdx.x; i < quarters; i += blockDim.x) to[(long long)blockIdx.x * quarters + i] = row[i];
}
