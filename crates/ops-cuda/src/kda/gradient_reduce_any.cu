// dq and dk summed over the value heads of a head and through the normalisation, and the sums over chunks: the last launch of the
// gradient of kda and gated_delta (prepare, forward, reverse, intra, reduce), in a fixed order.
//
// dq_part, dk_part f32 [total, HV, K4]; q, k [total, H, K] with q_row, k_row elements between tokens; dq, dk [total, H, K];
// sums f32 [slots, HV, 1 + GATES]; da_log [HV], ddt_bias [HV, GATES] or null, each f32 or in the storage type.
//
// In rows of up to 8 elements the two terms of a gradient through the normalisation nearly cancel: these are computed in float64.
//
// Launch: grid (ceil(2 total H / 8) + (gate ? HV : 0)); block (256). Macros: those of gradient_any.cuh.

constexpr int THREADS = 256;
#if K > 8
typedef float Number;
#else
typedef double Number;
#endif

DEVICE Number sum_of_warp(Number v) {
#pragma unroll
  for (int far = 16; far > 0; far /= 2) v += __shfl_xor_sync(0xffffffff, v, far);
  return v;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    kda_gradient_reduce_any(const float* __restrict__ dq_part, const float* __restrict__ dk_part, const void* __restrict__ q,
                            const void* __restrict__ k, void* __restrict__ dq, void* __restrict__ dk,
                            const float* __restrict__ sums, void* __restrict__ da_log, void* __restrict__ ddt_bias, i64 total,
                            int heads, int value_heads, int slots, int q_row, int k_row, int l2norm, int rate_f32, int bias_f32) {
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const i64 row_blocks = (2 * total * heads + 7) / 8;
  if (blockIdx.x >= row_blocks) {
    const int head = (int)(blockIdx.x - row_blocks);
    for (int c = thread; c < 1 + GATES; c += THREADS) {
      float sum = 0.0f;
      for (int slot = 0; slot < slots; slot++) sum += sums[((i64)slot * value_heads + head) * (1 + GATES) + c];
      if (c == 0) store_number(da_log, head, sum, rate_f32);
      if (c > 0 && ddt_bias != nullptr) store_number(ddt_bias, head * GATES + c - 1, sum, bias_f32);
    }
    return;
  }
  const i64 row = (i64)blockIdx.x * 8 + warp;
  if (row >= 2 * total * heads) return;
  const bool of_k = row >= total * heads;
  const i64 own = of_k ? row - total * heads : row, token = own / heads;
  const int head = (int)(own % heads), group = value_heads / heads;
  const float* const from = (of_k ? dk_part : dq_part) + (token * value_heads + head * group) * K4;
  const i64 at = token * (of_k ? k_row : q_row) + head * K;
  constexpr int OWN = ceil_div(K, 32);
  Number gradient[OWN], value[OWN], squares = 0, dot = 0;
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    const int c = i * 32 + lane;
    gradient[i] = value[i] = 0;
    if (c >= K) continue;
    for (int member = 0; member < group; member++) gradient[i] += from[member * K4 + c];
    if (l2norm) value[i] = number(of_k ? k : q, at + c, false);
    squares += value[i] * value[i];
    dot += value[i] * gradient[i];
  }
  Number scale = 1;
  if (l2norm) {
    scale = 1 / sqrt(sum_of_warp(squares) + (Number)1e-6);
    dot = sum_of_warp(dot) * scale * scale;
  }
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    const int c = i * 32 + lane;
    const Number result = l2norm ? scale * (gradient[i] - value[i] * dot) : gradient[i];
    if (c < K) store_number(of_k ? dk : dq, own * K + c, (float)result, false);
  }
}
