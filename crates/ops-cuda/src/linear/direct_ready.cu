// Prepares several rows of x for direct.cu, all of whose blocks copy them: normalized if there is a norm, in f16 scaled by powers of
// two (HALVED) or in bf16, in the order of the MMAs, with the scales and sums of each segment (direct_rows.cuh).
//
// x [tokens, inputs], f32 (X_F32) or bf16, 16-byte aligned; norm [inputs] (NORMED), f32 or bf16; to: Layout::bytes, 16-byte aligned,
// for each `depth` columns of a row, one of direct.cu's PARTS.
//
// Little work follows the wait: a warp has one segment, and its output addresses and multipliers are computed before.
//
// Launch: grid (tokens, blocks that share a row: one with a norm); block 32 * (warps, up to 32): a row has at least as many warps as
// segments, columns rounded up to ROUND / SEGMENT. May overlap the preceding kernel (PDL). Source: as direct.cu's, with this file instead.
// Macros: those of direct.cu; those of its epilogue (RESIDUAL, SWIGLU, TAPS, OFFSET) are 0, and PARTS 1.

extern "C" __global__ void __launch_bounds__(1024, 1)
    linear_direct_ready(const char* __restrict__ x, const void* __restrict__ norm, char* __restrict__ to, int tokens, int inputs,
                        int norm_f32, float eps, int depth) {
  let_next_start();
  const int token = blockIdx.x, lane = threadIdx.x % 32, own_warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const int at = blockIdx.y * own_warps + warp, column = at * SEGMENT + lane * 8;
  const bool exists = at < ceil_div(inputs, ROUND) * (ROUND / SEGMENT), there = column < inputs;
  // Output addresses of the lane's values and of its segment's scale and sums.
  const Layout layout = Layout::of(tokens, depth);
  const int of_part = ceil_div(depth, ROUND) * (ROUND / SEGMENT);
  int here = at;
  char* part = to;
  for (; here >= of_part; here -= of_part) part += layout.bytes;
  const int segment = token * layout.all_segments + here;
  char* const to_row = part + token * layout.stride + Tokens::place(here * SEGMENT + lane * 8);
  float* const to_back = (float*)(part + layout.backs) + segment;
  float2* const to_sums = (float2*)(part + layout.sums) + segment * (32 / SUM_LANES);
#if NORMED
  __shared__ float squares[32];
  float weight[8] = {};
  if (there) numbers<8>(weight, norm, column, norm_f32);
  const float inverse = 1.0f / inputs;
  // The warps' sums of squares are added up by eight lanes or by all.
  const int width = own_warps <= 8 ? 8 : 32;
  const bool adds = lane % width < own_warps;
#endif
  wait_for_previous();
  Piece piece;
  piece.load(x, (i64)token * inputs + column, X_F32, there);
  float value[8];
#pragma unroll
  for (int i = 0; i < 8; i++) value[i] = piece.get(i, X_F32);
#if NORMED
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; i++) total = fmaf(value[i], value[i], total);
#pragma unroll
  for (int far = 16; far > 0; far /= 2) total += __shfl_xor_sync(0xffffffff, total, far);
  if (lane == 0) squares[warp] = total;
  __syncthreads();
  total = adds ? squares[lane % width] : 0.0f;
#pragma unroll 1
  for (int far = width / 2; far > 0; far /= 2) total += __shfl_xor_sync(0xffffffff, total, far);
  const float root = X_FACTOR * rsqrtf(fmaf(total, inverse, eps));
#pragma unroll
  for (int i = 0; i < 8; i++) value[i] *= weight[i] * root;
#else
#pragma unroll
  for (int i = 0; i < 8; i++) value[i] *= X_FACTOR;
#endif
  if (exists) TokensAt<char*>::keep_at<HALVED>(to_row, to_back, to_sums, value);
}
