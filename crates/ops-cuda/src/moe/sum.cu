// The sum over a token's experts, in the order of their choice: o = residual + scale * sum of weight * (made + bias).
//
// Source: include/ampere.cuh, include/storage.cuh, then this file. sm_80 and later.
//
// made [pairs as listed, hidden] storage; weights f32 and places i32 [tokens, top_k], -1: not computed; residual f32 [tokens, hidden] or
// null; o [tokens, hidden] f32 with a residual, otherwise storage. hidden is a multiple of 8. bias f32
// [experts that are here, hidden] or null; chosen i32 [tokens, top_k], indices among all experts.
//
// Launch: grid (ceil(tokens hidden / 8 / 256)); block (256). May overlap the preceding kernel (PDL).
//
// Macros: DTYPE.

extern "C" __global__ void __launch_bounds__(256)
    moe_sum(const u16* made, const float* weights, const int* places, const float* residual, void* o, int tokens,
            int hidden, int top_k, float scale, const float* __restrict__ bias, const int* chosen, int first_held) {
  const i64 piece = (i64)blockIdx.x * 256 + threadIdx.x;
  const int token = (int)(piece / (hidden / 8)), channel = (int)(piece % (hidden / 8)) * 8;
  wait_for_previous();
  let_next_start();
  if (token >= tokens) return;
  float sums[8] = {};
#pragma unroll 4
  for (int k = 0; k < top_k; k++) {
    const i64 pair = (i64)token * top_k + k;
    const int place = places[pair];
    Stored<8> values;
    // Not in a branch: loads of several pairs are in flight at once. Rows that were not computed may be NaN.
    values.load(made + (i64)max(place, 0) * hidden + channel);
    const float weight = weights[pair];
    if (place < 0) continue;
#pragma unroll
    for (int c = 0; c < 8; c++) sums[c] = fmaf(weight, values.get(c), sums[c]);
    if (bias == nullptr) continue;
    const float* const own = bias + (i64)(chosen[pair] - first_held) * hidden + channel;
#pragma unroll
    for (int c = 0; c < 8; c++) sums[c] = fmaf(weight, own[c], sums[c]);
  }
  const i64 at = (i64)token * hidden + channel;
  if (residual != nullptr) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float4 before = *reinterpret_cast<const float4*>(residual + at + 4 * half);
      *reinterpret_cast<float4*>((float*)o + at + 4 * half) =
          make_float4(before.x + scale * sums[4 * half], before.y + scale * sums[4 * half + 1],
                      before.z + scale * sums[4 * half + 2], before.w + scale * sums[4 * half + 3]);
    }
  } else {
#pragma unroll
    for (int c = 0; c < 8; c++) sums[c] *= scale;
    Stored<8> result;
    result.set(sums);
    result.store((u16*)o + at);
  }
}
