// Sums of the gradient of ssd over chunks and over parts of a group's heads, in a fixed order: the last launch.
//
//   da[h] = sum of sums[., h, 0], ddt_bias[h] = sum of sums[., h, 1], dd = sum of sums_d[., h, .], db, dc = sums of `partial`
//
// sums f32 [slots, H, 2], sums_d f32 [slots, H, d_columns], d_columns 1 or P; partial f32 [2 (dB, dC), splits, total, G, N] (not
// read if splits is 1). da, ddt_bias [H], dd [H, d_columns], each f32 or in the storage type, ddt_bias and dd may be null;
// db, dc [total, G, N] in the storage type; projection = total * G * N.
//
// Launch: grid (H + (splits > 1 ? ceil(2 * projection / 256) : 0)); block (256). Requires storage.cuh and gradient.cuh.
// Macros: DTYPE (f32, bf16, f16).

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
    ssd_gradient_reduce(const float* __restrict__ sums, const float* __restrict__ sums_d,
                        const float* __restrict__ partial, void* __restrict__ da, void* __restrict__ ddt_bias,
                        void* __restrict__ dd, void* __restrict__ db, void* __restrict__ dc,
                        i64 projection, int heads, int slots, int d_columns, int splits, int rate_f32, int bias_f32,
                        int d_f32) {
  __shared__ float lanes[3 * THREADS];
  const int thread = threadIdx.x;
  if (blockIdx.x >= heads) {
    const i64 at = (i64)(blockIdx.x - heads) * THREADS + thread;
    if (at >= 2 * projection) return;
    const bool of_c = at >= projection;
    const i64 element = of_c ? at - projection : at;
    const float* const from = partial + (of_c ? splits * projection : 0) + element;
    float sum = 0.0f;
    for (int split = 0; split < splits; split++) sum += from[split * projection];
    store_number(of_c ? dc : db, element, sum, false);
    return;
  }
  const int head = blockIdx.x;
  float of_rate = 0.0f, of_step = 0.0f, of_d = 0.0f;
  for (int slot = thread; slot < slots; slot += THREADS) {
    const float2 v = *(const float2*)(sums + ((i64)slot * heads + head) * 2);
    of_rate += v.x;
    of_step += v.y;
    if (d_columns == 1) of_d += sums_d[(i64)slot * heads + head];
  }
  lanes[thread] = of_rate;
  lanes[THREADS + thread] = of_step;
  lanes[2 * THREADS + thread] = of_d;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) {
#pragma unroll
      for (int k = 0; k < 3; k++) lanes[k * THREADS + thread] += lanes[k * THREADS + thread + half];
    }
  }
  if (thread == 0) {
    store_number(da, head, lanes[0], rate_f32);
    if (ddt_bias != nullptr) store_number(ddt_bias, head, lanes[THREADS], bias_f32);
    if (dd != nullptr && d_columns == 1) store_number(dd, head, lanes[2 * THREADS], d_f32);
  }
  if (dd != nullptr && d_columns > 1) {
    for (int p = thread; p < d_columns; p += THREADS) {
      float sum = 0.0f;
      for (int slot = 0; slot < slots; slot++) sum += sums_d[((i64)slot * heads + head) * d_columns + p];
      store_number(dd, (i64)head * d_columns + p, sum, d_f32);
    }
  }
}
