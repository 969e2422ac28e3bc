// Few tokens, the way up: made = weight * silu(gate) * up of every pair of a token and an expert it chose.
//
// A block has 8 channels of one tile of up to 16 pairs (list.cuh): 8 rows of gates and 8 of ups, read once for all tokens of the
// tile. Its warps share the depth and add their parts in shared memory, always in the same order.
//
// Source: cuda/ampere.cuh, moe/cuda/choose.cuh, decode.cuh, then this file. sm_80 and later.
//
// x [tokens, hidden]; w_gate_up [experts, 2 inner, hidden]; made [pairs as listed, inner], storage type. hidden and inner
// are multiples of 8.
// ONE: there is one token, and each block finds its experts itself: logits f32 [experts], correction f32 [experts] or
//   null, chosen i32 [top_k] and weights f32 [top_k] are written, a tile is a place among the chosen; tiles and pairs are null.
// Otherwise tiles and pairs are read, and weights f32 [tokens, top_k]; logits, correction and chosen are null.
//
// Launch: grid (inner / 8, tiles at most); block (256); dynamic shared memory: ONE: AHEAD * 8192 + 2 hidden rounded up to 64
//   bytes, otherwise AHEAD * 16384 bytes. May overlap the kernel before it.
//
// Macros: DTYPE, ONE, AHEAD (depths of 32 that are under way).

constexpr int PIECES = ONE ? 2 : 4;

extern __shared__ __align__(16) unsigned char shared[];

extern "C" __global__ void __launch_bounds__(THREADS)
    moe_decode_gate_up(const u16* x, const u16* __restrict__ w_gate_up, const float* logits,
                       const float* __restrict__ correction, int* chosen, float* weights, const int* tiles,
                       const int* pairs, u16* made, int hidden, int inner, int experts, int top_k, int sigmoid,
                       int renormalise, float weight_scale) {
  __shared__ float4 parts[WARPS][2][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane % 4;
  const int channel = blockIdx.x * 8, depths = ceil_div(hidden, DEPTH);
  const int first = warp * depths / WARPS, last = (warp + 1) * depths / WARPS;
  wait_for_previous();
  let_next_start();
#if ONE
  const u32 token = shared_address(shared) + WARPS * Ring<PIECES>::BYTES;
  copy_token(token, x, first * DEPTH, last * DEPTH, hidden);
  __shared__ Choice taken;
  if (warp == 0) {
    const Router router = {correction, experts, top_k, sigmoid, renormalise, weight_scale};
    const Choice choice = choose(logits, router);
    if (lane == blockIdx.y) taken = choice;
    if (blockIdx.x == 0 && blockIdx.y == 0 && lane < top_k) {
      chosen[lane] = choice.expert;
      weights[lane] = choice.weight;
    }
  }
  __syncthreads();
  const int expert = taken.expert, begin = blockIdx.y, count = 1;
#else
  if (blockIdx.y >= tiles[0]) return;
  const int4 tile = *reinterpret_cast<const int4*>(tiles + 4 + 4 * blockIdx.y);
  const int expert = tile.x, begin = tile.y, count = tile.z - begin;
  const u16* tokens[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = min(8 * half + lane / 4, count - 1);
    tokens[half] = x + (i64)(pairs[begin + row] / top_k) * hidden + 8 * quad;
  }
#endif
  const u16* const gates = w_gate_up + ((i64)expert * 2 * inner + channel + lane / 4) * hidden + 8 * quad;
  const u16* const ups = gates + (i64)inner * hidden;

  Ring<PIECES> ring(shared + warp * Ring<PIECES>::BYTES);
  auto ask = [&](int depth) {
    const int at = depth * DEPTH;
    if (depth < last) {
      const bool there = at + 8 * quad < hidden;
      const int from = there ? at : 0;
      copy_weights(ring.at(0), gates + from, there);
      copy_weights(ring.at(1), ups + from, there);
#if !ONE
      copy_async<16>(ring.at(2), tokens[0] + from, there && lane / 4 < count);
      if (count > 8) copy_async<16>(ring.at(3), tokens[1] + from, there && 8 + lane / 4 < count);
#endif
    }
    copy_commit();
  };
#pragma unroll 1
  for (int a = 0; a < AHEAD; a++, ring.advance()) ask(first + a);
  float gate[4] = {}, up[4] = {};
#pragma unroll 1
  for (int depth = first; depth < last; depth++, ring.advance()) {
    copy_wait<AHEAD - 1>();
    u32 of_gate[4], of_up[4], low[4] = {}, high[4] = {};
    load_piece(of_gate, ring.at(0));
    load_piece(of_up, ring.at(1));
#if ONE
    // Other lanes' copies too: theirs had ended before the first weights of this warp had, a barrier of it lies between.
    if (depth == first) __syncwarp();
    if (lane < 4) load_piece(low, token + 2 * (depth * DEPTH + 8 * quad));
#else
    load_piece(low, ring.at(2));
    if (count > 8) load_piece(high, ring.at(3));
#endif
    multiply_depth(gate, low, high, of_gate);
    multiply_depth(up, low, high, of_up);
    ask(depth + AHEAD);
  }

  parts[warp][0][lane] = make_float4(gate[0], gate[1], gate[2], gate[3]);
  parts[warp][1][lane] = make_float4(up[0], up[1], up[2], up[3]);
  __syncthreads();
  // A thread for 2 channels of a token.
  const int half = warp, row = 8 * half + lane / 4;
  if (half >= 2 || row >= count) return;
  float sums[2][2] = {};
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
#pragma unroll
    for (int of = 0; of < 2; of++) {
      const float4 part = parts[w][of][lane];
      sums[of][0] += half ? part.z : part.x;
      sums[of][1] += half ? part.w : part.y;
    }
  }
#if ONE
  const float weight = taken.weight;
#else
  const float weight = load_float(weights + pairs[begin + row]);
#endif
  float results[2];
#pragma unroll
  for (int c = 0; c < 2; c++) {
    results[c] = weight * sums[0][c] / (1.0f + exp2_approximate(sums[0][c] * -1.44269504f)) * sums[1][c];
  }
  *reinterpret_cast<u32*>(made + (i64)(begin + row) * inner + channel + 2 * quad) = pack(results[0], results[1]);
}
