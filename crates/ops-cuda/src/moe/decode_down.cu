// Few tokens, down projection: o = residual + scale * sum over a token's pairs of W_down made + weight * bias, where `made`
// includes their weights.
//
// A block has 8 OCTETS rows of every expert's W_down, each read once for the pairs of a tile (up to 8, list.cuh); its warps
// split the depth of all tiles and add their partial sums in shared memory, always in the same order.
//
// Source: include/ampere.cuh, include/narrow.cuh, moe/choose.cuh, decode.cuh, then this file. sm_80 and later.
//
// made [pairs as listed, inner]; w_down [experts, hidden, inner] and its scales [experts, groups, hidden] as in decode_gate_up.cu; residual
// f32 [tokens, hidden] or null; o [tokens, hidden], f32 with a residual, otherwise storage. hidden % 8 == 0, inner % PER_LANE == 0 (decode.cuh).
// bias f32 [experts, hidden], or null; chosen i32 and weights f32 [tokens, top_k], which preceding kernels have written.
// ONE: there is one token. Weights are loaded before the preceding kernel has ended (PDL), of the experts that this one chooses itself
//   (logits and correction as in decode_gate_up.cu): that kernel lets this one start once the logits are written.
// Otherwise tiles and pairs are read; logits and correction are null.
//
// Launch: grid (ceil(hidden / (8 OCTETS))); block (256); dynamic shared memory: AHEAD * 8 SPAN (OCTET_BYTES OCTETS + TOKEN_BYTES)
//   (decode.cuh) + 256 OCTETS tokens bytes. Must follow moe_decode_gate_up, which it may overlap.
//
// Macros: DTYPE, SPAN (steps that are worked on at once), AHEAD (spans in flight), OCTETS, and the others of decode.cuh.

constexpr int ROWS = 8 * OCTETS;

// Loads in program order, as load_float.
DEVICE int load_int(const int* at) {
  int value;
  asm volatile("ld.global.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

extern __shared__ __align__(16) unsigned char shared[];

// A span of steps of a tile, and the next tile.
struct Cursor {
  int unit, index, span;
  int4 tile, coming;

  DEVICE Cursor(const Tiles& list, int unit, int spans) : unit(unit), index(unit / spans), span(unit % spans) {
    tile = list.at(index);
    coming = list.at(index + 1);
  }
  // Returns whether the tile has ended.
  DEVICE bool advance(const Tiles& list, int spans) {
    unit++;
    if (++span < spans) return false;
    span = 0;
    tile = coming;
    coming = list.at(++index + 1);
    return true;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    moe_decode_down(const u16* made, const unsigned char* __restrict__ w_down, const float* logits,
                    const float* __restrict__ correction, const int* tiles, const int* pairs, const float* residual,
                    void* o, int tokens, int hidden, int inner, int experts, int first_held, int held, int top_k, int always, int sigmoid,
                    float scale, const float* __restrict__ w_scale, const float* __restrict__ w_offset, int groups,
                    int group_shift, const float* __restrict__ bias, const int* chosen, const float* weights) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane % 4;
  const int first_row = blockIdx.x * ROWS, spans = ceil_div(inner, SPAN * DEPTH);
  // [WARPS][tokens][ROWS]
  float* const sums = reinterpret_cast<float*>(shared + WARPS * Ring<SPAN * OCTETS, SPAN>::BYTES);
  float* const mine = sums + warp * tokens * ROWS;
  for (int i = lane; i < tokens * ROWS; i += 32) mine[i] = 0.0f;
#if ONE
  __shared__ int places[MOST_CHOSEN];
  __shared__ int kept;
  if (warp == 0) {
    const Router router = {correction, experts, first_held, held, top_k, always, sigmoid, 1, 0.0f, 1.0f};
    const Choice choice = choose(logits, router, places);
    if (SHARE) kept = keep_held(choice, router, places, nullptr);
  }
  __syncthreads();
  const Tiles list = {places, SHARE ? kept : top_k};
#else
  wait_for_previous();
  let_next_start();
  __syncwarp();
  const Tiles list = {tiles, tiles[0]};
#endif
  // The spans of all tiles, numbered consecutively.
  const int units = list.count * spans, end = (warp + 1) * units / WARPS;
  Ring<SPAN * OCTETS, SPAN> ring(shared + warp * Ring<SPAN * OCTETS, SPAN>::BYTES);
  Cursor cursor(list, warp * units / WARPS, spans), done = cursor;
  const int row_bytes = inner / 8 * WEIGHT_BITS;
  const unsigned char* const own_rows = w_down + (i64)(first_row + lane / 4) * row_bytes + 16 * quad;
  const Factors factors = {w_scale, w_offset, groups, hidden, group_shift};
  auto rows_of = [&](const Cursor& of) { return own_rows + (i64)of.tile.x * hidden * row_bytes; };
  auto ask_weights = [&](const unsigned char* rows, const Cursor& of) {
#pragma unroll
    for (int s = 0; s < SPAN; s++) {
      const int step = of.span * SPAN + s;
      const bool there = step * DEPTH + PER_LANE * quad < inner;
#pragma unroll
      for (int octet = 0; octet < OCTETS; octet++) {
        const bool row_there = octet == 0 || first_row + 8 * octet < hidden;
        copy_weights(ring.weights(s * OCTETS + octet), rows + (there && row_there ? octet * 8 * row_bytes + step * 64 : 0),
                     there && row_there);
        factors.copy(ring, s * OCTETS + octet, of.tile.x, step, first_row + 8 * octet + 2 * quad, row_there && step * DEPTH < inner);
      }
    }
  };
  const u16* const own_token = made + (i64)(lane / 4) * inner + PER_LANE * quad;
  auto ask_tokens = [&](const Cursor& of) {
    const bool has_token = of.tile.y + lane / 4 < of.tile.z;
    const u16* const token = has_token ? own_token + (i64)of.tile.y * inner : made;
#pragma unroll
    for (int s = 0; s < SPAN; s++) {
      const int channel = (of.span * SPAN + s) * DEPTH;
      const bool there = has_token && channel + PER_LANE * quad < inner;
      copy_tokens(ring, s, token + (there ? channel : 0), there);
    }
  };
  const unsigned char* rows = rows_of(cursor);
#if ONE
  Cursor tokens_of = cursor;
#pragma unroll 1
  for (int a = 0; a < AHEAD; a++, ring.advance()) {
    if (cursor.unit >= end) continue;
    ask_weights(rows, cursor);
    if (cursor.advance(list, spans)) rows = rows_of(cursor);
  }
  wait_for_previous();
  let_next_start();
#pragma unroll 1
  for (int a = 0; a < AHEAD; a++, ring.advance()) {
    if (tokens_of.unit >= end) continue;
    ask_tokens(tokens_of);
    tokens_of.advance(list, spans);
  }
  copy_commit();
#endif
  auto ask = [&]() {
    if (cursor.unit < end) {
      ask_weights(rows, cursor);
      ask_tokens(cursor);
      if (cursor.advance(list, spans)) rows = rows_of(cursor);
    }
    copy_commit();
  };
#if !ONE
#pragma unroll 1
  for (int a = 0; a < AHEAD; a++, ring.advance()) ask();
#endif
  Sums<OCTETS> own;
  TwoFactors of_rows[OCTETS];
  const auto look_up = [&] {
#pragma unroll
    for (int octet = 0; octet < OCTETS; octet++) {
      of_rows[octet] = factors.of_rows(done.tile.x, first_row + 8 * octet + 2 * quad);
    }
  };
  look_up();
#pragma unroll 1
  for (bool first = true; done.unit < end; first = false, ring.advance()) {
    // The first spans of a single token are one copy group.
    if (ONE && first) {
      copy_wait<0>();
    } else {
      copy_wait<AHEAD - 1>();
    }
#pragma unroll
    for (int s = 0; s < SPAN; s++) multiply_step(own, ring, s * OCTETS, s);
    ask();
    const int pair = done.tile.y + lane / 4;
    const bool there = pair < done.tile.z;
    if (!done.advance(list, spans) && done.unit < end) continue;
    // A tile, or this warp's part of it, has ended.
    if (there) {
      float* const to = mine + (ONE ? 0 : pairs[pair] / top_k) * ROWS + 2 * quad;
#pragma unroll
      for (int octet = 0; octet < OCTETS; octet++) {
        const float2 finished = of_all_steps(own, octet, of_rows[octet]);
        to[8 * octet] += finished.x;
        to[8 * octet + 1] += finished.y;
      }
    }
    // Lanes of the next tile may have the same tokens.
    __syncwarp();
    own = {};
    look_up();
  }
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * ROWS; i += THREADS) {
    if (first_row + i % ROWS >= hidden) continue;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += sums[w * tokens * ROWS + i];
    if (bias != nullptr) {
      const int pair = i / ROWS * top_k;
      for (int k = pair; k < pair + top_k; k++) {
        const int place = place_of(load_int(chosen + k), first_held, held);
        if (place >= 0) sum = fmaf(load_float(weights + k), bias[(i64)place * hidden + first_row + i % ROWS], sum);
      }
    }
    const i64 at = (i64)(i / ROWS) * hidden + first_row + i % ROWS;
    if (residual != nullptr) {
      ((float*)o)[at] = load_float(residual + at) + scale * sum;
    } else {
      ((u16*)o)[at] = (u16)pack(scale * sum, 0.0f);
    }
  }
}
