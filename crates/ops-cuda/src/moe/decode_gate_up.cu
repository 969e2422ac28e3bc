// Few tokens, gate and up projections: made = weight * silu(gate) * up of every pair of a token and an expert it chose; without gates
// (GATED 0) weight * max(0, up)^2; with a bias weight * g sigmoid(alpha g) (u + 1), g = min(gate, limit), u the up between -limit
// and limit.
//
// A block has 8 channels, that is 8 rows of gates, if any, and 8 of ups, of every gridDim.y-th tile of up to 8 pairs of one expert
// (list.cuh): rows are read once for all tokens of a tile. Its warps split the depth and add their partial sums in shared memory,
// always in the same order, while the next tile's weights are in flight.
//
// Source: include/ampere.cuh, include/narrow.cuh, moe/choose.cuh, decode.cuh, then this file. sm_80 and later.
//
// x [tokens, hidden], made [pairs as listed, inner], storage type; w_gate_up [experts, 2 inner, hidden] (GATED 0: [experts, inner,
// hidden]), in storage, or in 8 or 4 bits with scales and offsets f32 [experts, groups, its rows], one per 2^group_shift steps of DEPTH
// channels. bias f32 [experts, 2 inner], or null. hidden is a multiple of PER_LANE (decode.cuh) and inner of 8.
// ONE: there is one token, and each block chooses its experts itself: logits f32 [experts], correction f32 [experts] or
//   null, chosen i32 [top_k] and weights f32 [top_k] are written, a tile is an index into its experts on this GPU (`held` from
//   `first_held` on); tiles and pairs are null. top_k and always as in choose.cuh.
// Otherwise tiles and pairs are read, and weights f32 [tokens, top_k]; logits, correction and chosen are null.
//
// Launch: grid (inner / 8, 1 to tiles at most); block (256); dynamic shared memory: AHEAD * 8 * ((1 + GATED) OCTET_BYTES + TOKEN_BYTES)
//   (decode.cuh). May overlap the preceding kernel (PDL).
//
// Macros: DTYPE, those of decode.cuh, and GATED (1 where it is not defined).

#ifndef GATED
#define GATED 1
#endif
constexpr int PARTS = GATED ? 2 : 1;  // rows of weights of a channel

extern __shared__ __align__(16) unsigned char shared[];

// A tile, the next two, and this lane's rows; the list entries of a tile are loaded one tile ahead.
struct Cursor {
  int index, step, expert;
  int4 coming, then;
  int coming_token;
  const unsigned char* gates;  // this lane's
  const u16* token;            // this lane's
  bool has_token;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    moe_decode_gate_up(const u16* x, const unsigned char* __restrict__ w_gate_up, const float* logits,
                       const float* __restrict__ correction, int* chosen, float* weights, const int* tiles,
                       const int* pairs, u16* made, int hidden, int inner, int experts, int first_held, int held,
                       int top_k, int always, int sigmoid, int renormalise, float sum_eps, float weight_scale,
                       const float* __restrict__ w_scale, const float* __restrict__ w_offset, int groups,
                       int group_shift, const float* __restrict__ bias, float limit, float alpha) {
  __shared__ float2 parts[2][WARPS][2][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane % 4;
  const int channel = blockIdx.x * 8, steps = ceil_div(hidden, DEPTH);
  const int first = warp * steps / WARPS, last = (warp + 1) * steps / WARPS;
  wait_for_previous();
  let_next_start();
#if ONE
  __shared__ int places[MOST_CHOSEN];
  __shared__ float taken[MOST_CHOSEN];
  __shared__ int kept;
  if (warp == 0) {
    const Router router = {correction, experts, first_held, held, top_k, always, sigmoid, renormalise, sum_eps, weight_scale};
    const Choice choice = choose(logits, router, places);
    if (SHARE) {
      kept = keep_held(choice, router, places, taken);
    } else {
      taken[lane] = choice.weight;
    }
    if (blockIdx.x == 0 && blockIdx.y == 0 && lane < top_k) {
      chosen[lane] = choice.expert;
      weights[lane] = choice.weight;
    }
  }
  __syncthreads();
  const Tiles list = {places, SHARE ? kept : top_k};
#else
  const Tiles list = {tiles, tiles[0]};
#endif
  auto token_of = [&](const int4& tile) {
#if ONE
    return 0;
#else
    return tile.z > tile.y ? pairs[min(tile.y + lane / 4, tile.z - 1)] / top_k : 0;
#endif
  };

  const int stride = gridDim.y, row_bytes = hidden / 8 * WEIGHT_BITS;
  const i64 to_ups = (i64)inner * row_bytes;
  const unsigned char* const own_gates = w_gate_up + (i64)(channel + lane / 4) * row_bytes + 16 * quad;
  const Factors factors = {w_scale, w_offset, groups, PARTS * inner, group_shift};
  Cursor cursor = {(int)blockIdx.y - stride, last};
  cursor.coming = list.at(cursor.index + stride);
  cursor.then = list.at(cursor.index + 2 * stride);
  cursor.coming_token = token_of(cursor.coming);
  // Advances to the next tile, whose entries were loaded during the copies of the preceding one.
  auto go_on = [&]() {
    cursor.step = first;
    cursor.index += stride;
    cursor.expert = cursor.coming.x;
    cursor.gates = own_gates + cursor.expert * PARTS * to_ups;
    cursor.token = x + (i64)cursor.coming_token * hidden + PER_LANE * quad;
    cursor.has_token = cursor.coming.y + lane / 4 < cursor.coming.z;
    cursor.coming = cursor.then;
    cursor.coming_token = token_of(cursor.coming);
    cursor.then = list.at(cursor.index + 2 * stride);
  };
  go_on();
  Ring<PARTS, 1> ring(shared + warp * Ring<PARTS, 1>::BYTES);
  auto ask = [&]() {
    if (cursor.index < list.count && first < last) {
      const bool there = cursor.step * DEPTH + PER_LANE * quad < hidden;
      const int at = there ? cursor.step : 0;
#pragma unroll
      for (int part = 0; part < PARTS; part++) {
        copy_weights(ring.weights(part), cursor.gates + part * to_ups + at * 64, there);
        factors.copy(ring, part, cursor.expert, cursor.step, part * inner + channel + 2 * quad, true);
      }
      copy_tokens(ring, 0, cursor.token + at * DEPTH, there && cursor.has_token);
      if (++cursor.step == last) go_on();
    }
    copy_commit();
  };
#pragma unroll 1
  for (int a = 0; a < AHEAD; a++, ring.advance()) ask();
  int turn = 0;
#pragma unroll 1
  for (int index = blockIdx.y; index < list.count; index += stride, turn++) {
    const int4 tile = list.at(index);
    Sums<PARTS> sums;  // of gates and ups
    TwoFactors around[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; part++) around[part] = factors.of_rows(tile.x, part * inner + channel + 2 * quad);
#pragma unroll 1
    for (int step = first; step < last; step++, ring.advance()) {
      copy_wait<AHEAD - 1>();
      multiply_step(sums, ring, 0, 0);
      ask();
    }
    // Tiles alternate between two buffers, so that one barrier is enough: a warp that adds a tile's parts reaches the next
    // tile's barrier before its buffer is written again.
    float2(&part)[WARPS][2][32] = parts[turn % 2];
#pragma unroll
    for (int i = 0; i < PARTS; i++) part[warp][i][lane] = of_all_steps(sums, i, around[i]);
    __syncthreads();
    // A lane of one warp finishes 2 channels of a token; another warp finishes the next tile.
    const int pair = tile.y + lane / 4;
    if (warp != turn % WARPS || pair >= tile.z) continue;
#if ONE
    const float weight = taken[index];
#else
    const float weight = load_float(weights + pairs[pair]);
#endif
    float gates[2] = {}, ups[2] = {};
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float2 of_gate = part[w][0][lane], of_up = part[w][PARTS - 1][lane];
      gates[0] += of_gate.x;
      gates[1] += of_gate.y;
      ups[0] += of_up.x;
      ups[1] += of_up.y;
    }
    float results[2];
    const float* const own_bias = bias + (i64)tile.x * 2 * inner + channel + 2 * quad;
#pragma unroll
    for (int c = 0; c < 2; c++) {
      if (GATED && bias != nullptr) {
        // Not fminf: NaN stays NaN.
        const float wide = gates[c] + own_bias[c], other = ups[c] + own_bias[inner + c];
        const float gate = wide > limit ? limit : wide;
        const float up = other > limit ? limit : other < -limit ? -limit : other;
        results[c] = weight * gate / (1.0f + exp2_approximate(gate * alpha * -1.44269504f)) * (up + 1.0f);
        continue;
      }
      results[c] = GATED ? weight * gates[c] / (1.0f + exp2_approximate(gates[c] * -1.44269504f)) * ups[c]
                         : weight * gates[c] * fmaxf(gates[c], 0.0f);
    }
    *reinterpret_cast<u32*>(made + (i64)pair * inner + channel + 2 * quad) = pack(results[0], results[1]);
  }
}
