// Sums over the tokens of a chunk and head for the MMA gradient kernels of ssd: the fourth of five launches (steps, states, chunk, sums,
// reduce). A warp computes one chunk of one head, two adjacent tokens per lane. In gradient_chunk.cu this would be a chain of dependent
// instructions on one warp for which all others wait.
//
//   alpha_t = sum over t' >= t of (row sum - D_t' column sum + exp(a_t') dy_t' . h C_t') + sum over s < t of e_s + exp(a_L) <h, g>,
//             e_s = exp(a_L - a_s) D_s x_s . g B_s
//   x_t . R_t = column sum + diagonal term + exp(a_L - a_t) x_t . g B_t
//   ddt_t = slope_t (x_t . R_t + alpha_t A);  dA = sum of alpha_t D_t;  dD = sum of x_t . dy_t
//
// Workspace: all_parts and table as gradient_chunk.cu writes and reads them, sums f32 [slots, H, 2], sums_d f32 [slots, H, d_columns],
// d_columns = P if d_per_channel, else 1. ddt [B, T, H] or [total, H], contiguous; rate (A) [H]; cu_seqlens [Nseq + 1] or null (dense).
//
// Launch: grid (ceil(H / 8), chunks of the longest sequence, Nseq); block (256).
// Macros: DTYPE (bf16, f16), P (64).

DEVICE float warp_sum(float v) {
#pragma unroll
  for (int far = 16; far > 0; far /= 2) v += __shfl_xor_sync(0xffffffff, v, far);
  return v;
}

extern "C" __global__ void __launch_bounds__(256)
    ssd_gradient_sums(const float* __restrict__ all_parts, const float* __restrict__ table, const void* __restrict__ rate,
                      const int* __restrict__ cu_seqlens, void* __restrict__ ddt, float* __restrict__ sums,
                      float* __restrict__ sums_d, int tokens, int heads, int dt_f32, int rate_f32, int d_per_channel) {
  const int lane = threadIdx.x % 32, head = blockIdx.x * 8 + threadIdx.x / 32, chunk = blockIdx.y;
  if (head >= heads) return;
  const Chunks chunks(cu_seqlens, tokens, blockIdx.z);
  if (chunk >= chunks.count) return;
  const i64 token = chunks.start + chunk * Q, row = (i64)(chunks.slot + chunk) * heads + head;
  const int valid = min(Q, chunks.length - chunk * Q);
  const float* const steps = table + row * (STEP_ARRAYS * Q);
  const float* const parts = all_parts + row * PART_FLOATS;
  const float a_rate = number(rate, head, rate_f32);
  const int t = lane * 2, tile = lane / 8;
  auto pair = [&](int at) { return *(const float2*)(parts + at + t); };
  float2 rest = pair(ROW_SUMS);  // of alpha: summed over t' >= t
  for (int k = 1; k < (tile == 0 ? 1 : tile == 3 ? 3 : 2); k++) {
    const float2 v = pair(ROW_SUMS + k * Q);
    rest.x += v.x;
    rest.y += v.y;
  }
  const float2 step = *(const float2*)(steps + STEP + t), slope = *(const float2*)(steps + SLOPE + t);
  float2 columns = make_float2(0.0f, 0.0f);
  for (int k = tile; k < 4; k++) {
    const float2 v = pair(COLUMN_SUMS + k * Q);
    columns.x += v.x;
    columns.y += v.y;
  }
  rest.x = fmaf(-step.x, columns.x, rest.x);
  rest.y = fmaf(-step.y, columns.y, rest.y);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const float2 v = pair(FROM_ENTERING + k * Q);
    rest.x += v.x;
    rest.y += v.y;
  }
  const float2 leaving0 = pair(TO_LEAVING), leaving1 = pair(TO_LEAVING + Q), diagonal = pair(DIAGONAL_TERMS);
  const float2 leaving = make_float2(leaving0.x + leaving1.x, leaving0.y + leaving1.y);
  const float2 all = make_float2(columns.x + diagonal.x + leaving.x, columns.y + diagonal.y + leaving.y);  // x_t . R_t
  const float2 before = make_float2(step.x * leaving.x, step.y * leaving.y);
  float after = rest.x + rest.y, sum = before.x + before.y;
#pragma unroll
  for (int far = 1; far < 32; far *= 2) {
    const float later = __shfl_down_sync(0xffffffff, after, far), earlier = __shfl_up_sync(0xffffffff, sum, far);
    if (lane + far < 32) after += later;
    if (lane >= far) sum += earlier;
  }
  // Tokens of later and of earlier lanes; subtracting the own terms could lose smaller ones.
  after = __shfl_down_sync(0xffffffff, after, 1);
  if (lane == 31) after = 0.0f;
  sum = __shfl_up_sync(0xffffffff, sum, 1);
  if (lane == 0) sum = 0.0f;
  float trace = 0.0f;
#pragma unroll
  for (int k = 0; k < 8; k++) trace += parts[TRACE + k];
  trace *= exp2_approximate(steps[EXPONENT + Q - 1]);
  const float2 alpha = make_float2(after + rest.y + rest.x + (sum + trace), after + rest.y + (sum + before.x + trace));
  const float2 gradient = make_float2(slope.x * fmaf(alpha.x, a_rate, all.x), slope.y * fmaf(alpha.y, a_rate, all.y));
  if (t < valid) store_number(ddt, (token + t) * heads + head, gradient.x, dt_f32);
  if (t + 1 < valid) store_number(ddt, (token + t + 1) * heads + head, gradient.y, dt_f32);
  const float of_rate = warp_sum(alpha.x * step.x + alpha.y * step.y), of_step = warp_sum(gradient.x + gradient.y);
  if (lane == 0) *(float2*)(sums + row * SUMS) = make_float2(of_rate, of_step);
  if (d_per_channel) {
    for (int p = lane; p < P; p += 32) {
      float of_d = 0.0f;
#pragma unroll
      for (int k = 0; k < 4; k++) of_d += parts[D_SUMS + k * P + p];
      sums_d[row * P + p] = of_d;
    }
  } else {
    const float2 v = pair(DIAGONAL);
    const float of_d = warp_sum(v.x + v.y);
    if (lane == 0) sums_d[row] = of_d;
  }
}
