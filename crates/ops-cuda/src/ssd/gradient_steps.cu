// Step sizes, decays and weights of every chunk and head for the MMA gradient kernels of ssd: the first of five launches (steps, states,
// chunk, sums, reduce). A warp computes one chunk of one head. In gradient_states.cu these would be a chain of 300 dependent instructions
// per chunk, longer than the products.
//
// dt [B, T, H], or packed with cu_seqlens [Nseq + 1] (null: dense), dt_row elements between tokens; rate (A), dt_bias [H], dt_bias may
// be null. Workspace: table f32 [slots, H, 3, 64]; weights u32 [slots, H, 2, WEIGHT_WORDS] (forward, reverse: gradient_mma.cuh);
// sums f32 [slots, H, 2], sums_d f32 [slots, H, d_columns], d_columns 1 or P: 0 is written for slots that no chunk uses.
//
// Launch: grid (ceil(H / 8), chunks of the longest sequence, at least 1, Nseq); block (256). Macros: DTYPE (bf16, f16).

extern "C" __global__ void __launch_bounds__(256)
    ssd_gradient_steps(const void* __restrict__ dt, const void* __restrict__ rate, const void* __restrict__ dt_bias,
                       const int* __restrict__ cu_seqlens, float* __restrict__ table, u32* __restrict__ weights,
                       float* __restrict__ sums, float* __restrict__ sums_d, int tokens, int heads, int slots, int d_columns,
                       int dt_row, int dt_f32, int rate_f32, int bias_f32, int softplus, float dt_min, float dt_max) {
  const int lane = threadIdx.x % 32, head = blockIdx.x * 8 + threadIdx.x / 32, sequence = blockIdx.z, chunk = blockIdx.y;
  if (head >= heads) return;
  const Chunks chunks(cu_seqlens, tokens, sequence);
  if (chunk == 0) {
    const int next = sequence + 1 == gridDim.z ? slots : cu_seqlens != nullptr ? cu_seqlens[sequence + 1] / Q + sequence + 1
                                                                               : chunks.slot + chunks.count;
    for (int slot = chunks.slot + chunks.count; slot < next; slot++) {
      const i64 row = (i64)slot * heads + head;
      if (lane < SUMS) sums[row * SUMS + lane] = 0.0f;
      for (int i = lane; i < d_columns; i += 32) sums_d[row * d_columns + i] = 0.0f;
    }
  }
  if (chunk >= chunks.count) return;
  const Steps steps = {dt, rate, dt_bias, dt_min, dt_max, dt_f32, rate_f32, bias_f32, softplus};
  const float bias = number_or_zero(dt_bias, rate, head, bias_f32);
  const float rate2 = number(rate, head, rate_f32) * LOG2_E;
  float step[2], slope[2], sum[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int t = chunk * Q + lane * 2 + e;
    step[e] = step_of(number(dt, (chunks.start + min(t, chunks.length - 1)) * dt_row + head, dt_f32) + bias, steps, slope[e]);
    if (t >= chunks.length) step[e] = slope[e] = 0.0f;
    sum[e] = fmaxf(step[e] * rate2, LEAST_STEP);
  }
  sum[1] += sum[0];
  float before = sum[1];
#pragma unroll
  for (int far = 1; far < 32; far *= 2) {
    const float other = __shfl_up_sync(0xffffffff, before, far);
    if (lane >= far) before += other;
  }
  const float end = __shfl_sync(0xffffffff, before, 31);
  before -= sum[1];
  const float2 a = make_float2(before + sum[0], before + sum[1]);
  const i64 row = (i64)(chunks.slot + chunk) * heads + head;
  float* const to = table + row * (STEP_ARRAYS * Q);
  ((float2*)(to + EXPONENT))[lane] = a;
  ((float2*)(to + STEP))[lane] = make_float2(step[0], step[1]);
  ((float2*)(to + SLOPE))[lane] = make_float2(slope[0], slope[1]);
#pragma unroll
  for (int reverse = 0; reverse < 2; reverse++) {
    const float2 w = reverse ? make_float2(exp2_approximate(a.x), exp2_approximate(a.y))
                             : make_float2(exp2_approximate(end - a.x) * step[0], exp2_approximate(end - a.y) * step[1]);
    u32* const own = weights + (row * 2 + reverse) * WEIGHT_WORDS;
    const u32 rounded = pack(w.x, w.y);
    own[lane * 2] = rounded;
    own[lane * 2 + 1] = pack(w.x - low_half(rounded), w.y - high_half(rounded));
    if (lane < WEIGHT_WORDS - Q) own[Q + lane] = lane == 0 ? __float_as_uint(exp2_approximate(end)) : 0;
  }
}
