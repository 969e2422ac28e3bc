// Few tokens, the way down: o = residual + scale * sum over a token's pairs of W_down made, where `made` has their weights.
//
// A block has 8 OCTETS rows of every expert's W_down, each read once; its warps share the depth of all tiles of up to 16 pairs
// (list.cuh) and add their parts in shared memory, always in the same order.
//
// Source: cuda/ampere.cuh, moe/cuda/choose.cuh, decode.cuh, then this file. sm_80 and later.
//
// made [pairs as listed, inner], w_down [experts, hidden, inner], residual f32 [tokens, hidden] or null, o [tokens, hidden]
// f32 with a residual, otherwise storage. hidden is a multiple of 8 OCTETS, inner of 8.
// ONE: there is one token. Weights are asked for before the kernel ahead has ended, by the experts that this one finds itself
//   (logits and correction as in decode_gate_up.cu): that kernel has let this one start once the logits were there. OCTETS is 1.
// Otherwise tiles and pairs are read; logits and correction are null.
//
// Launch: grid (hidden / (8 OCTETS)); block (256); dynamic shared memory: ONE: AHEAD * 4096 + 64 top_k ceil(inner / 32) + 256
//   bytes, otherwise AHEAD * 4096 (OCTETS + 2) + 256 OCTETS tokens bytes. Must follow moe_decode_gate_up, which it may overlap.
//
// Macros: DTYPE, ONE, AHEAD (depths of 32 that are under way), OCTETS.

constexpr int ROWS = 8 * OCTETS, PIECES = ONE ? 1 : OCTETS + 2;

extern __shared__ __align__(16) unsigned char shared[];

// Adds a tile's part to the sums of its tokens, `to` [tokens, ROWS].
DEVICE void add(float* to, const float (&d)[OCTETS][4], const int (&token)[2], int quad) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    if (token[half] < 0) continue;
#pragma unroll
    for (int octet = 0; octet < OCTETS; octet++) {
      float* const at = to + token[half] * ROWS + 8 * octet + 2 * quad;
      at[0] += d[octet][2 * half];
      at[1] += d[octet][2 * half + 1];
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    moe_decode_down(const u16* made, const u16* __restrict__ w_down, const float* logits,
                    const float* __restrict__ correction, const int* tiles, const int* pairs, const float* residual,
                    void* o, int tokens, int hidden, int inner, int experts, int top_k, int sigmoid, float scale) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane % 4;
  const int first_row = blockIdx.x * ROWS, depths = ceil_div(inner, DEPTH);
  // [WARPS][tokens][ROWS]
  float* const sums = reinterpret_cast<float*>(shared + WARPS * Ring<PIECES>::BYTES);
  float* const mine = sums + warp * tokens * ROWS;
  for (int i = lane; i < tokens * ROWS; i += 32) mine[i] = 0.0f;
  Ring<PIECES> ring(shared + warp * Ring<PIECES>::BYTES);
#if ONE
  __shared__ int chosen[MOST_CHOSEN];
  if (warp == 0) {
    const Router router = {correction, experts, top_k, sigmoid, 1, 1.0f};
    chosen[lane] = choose(logits, router).expert;
  }
  __syncthreads();
  // Depths of all chosen experts in a row.
  const int units = top_k * depths, first = warp * units / WARPS, last = (warp + 1) * units / WARPS;
  int place = first / depths, depth = first - place * depths;
  auto ask = [&](int unit) {
    if (unit < last) {
      const int at = depth * DEPTH + 8 * quad;
      const i64 row = (i64)chosen[place] * hidden + first_row + lane / 4;
      copy_weights(ring.at(0), w_down + row * inner + (at < inner ? at : 0), at < inner);
      if (++depth == depths) depth = 0, place++;
    }
    copy_commit();
  };
#pragma unroll 1
  for (int a = 0; a < AHEAD; a++, ring.advance()) ask(first + a);
  wait_for_previous();
  // This warp's part of `made`, 64 bytes for each depth.
  const u32 tokens_at = shared_address(sums) + 4 * WARPS * ROWS;
  for (int piece = 4 * first + lane; piece < 4 * last; piece += 32) {
    const int of = piece / 4 / depths, at = (piece - 4 * of * depths) * 8;
    u32 words[4] = {};
    if (at < inner) {
      asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "l"(made + (i64)of * inner + at)
                   : "memory");
    }
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(tokens_at + 16 * piece), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
  }
  __syncwarp();
  float d[1][4] = {};
#pragma unroll 1
  for (int unit = first; unit < last; unit++, ring.advance()) {
    copy_wait<AHEAD - 1>();
    u32 weights[4], low[4] = {};
    const u32 high[4] = {};
    load_piece(weights, ring.at(0));
    if (lane < 4) load_piece(low, tokens_at + 64 * unit + 16 * quad);
    multiply_depth(d[0], low, high, weights);
    ask(unit + AHEAD);
  }
  const int token[2] = {lane < 4 ? 0 : -1, -1};
  add(mine, d, token, quad);
#else
  wait_for_previous();
  __syncwarp();
  const int units = tiles[0] * depths, end = (warp + 1) * units / WARPS;
#pragma unroll 1
  for (int unit = warp * units / WARPS; unit < end;) {
    const int index = unit / depths, first = unit - index * depths, last = min(depths, first + end - unit);
    const int4 tile = *reinterpret_cast<const int4*>(tiles + 4 + 4 * index);
    const int count = tile.z - tile.y;
    const u16* const rows = w_down + ((i64)tile.x * hidden + first_row + lane / 4) * inner + 8 * quad;
    const u16* const from = made + (i64)(tile.y + min(lane / 4, count - 1)) * inner + 8 * quad;
    const u16* const from_high = made + (i64)(tile.y + min(8 + lane / 4, count - 1)) * inner + 8 * quad;
    auto ask = [&](int depth) {
      const int at = depth * DEPTH;
      if (depth < last) {
        const bool there = at + 8 * quad < inner;
        const int start = there ? at : 0;
#pragma unroll
        for (int octet = 0; octet < OCTETS; octet++) {
          copy_weights(ring.at(octet), rows + (i64)octet * 8 * inner + start, there);
        }
        copy_async<16>(ring.at(OCTETS), from + start, there && lane / 4 < count);
        if (count > 8) copy_async<16>(ring.at(OCTETS + 1), from_high + start, there && 8 + lane / 4 < count);
      }
      copy_commit();
    };
#pragma unroll 1
    for (int a = 0; a < AHEAD; a++, ring.advance()) ask(first + a);
    int token[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = 8 * half + lane / 4;
      token[half] = row < count ? pairs[tile.y + row] / top_k : -1;
    }
    float d[OCTETS][4] = {};
#pragma unroll 1
    for (int depth = first; depth < last; depth++, ring.advance()) {
      copy_wait<AHEAD - 1>();
      u32 weights[4], low[4], high[4] = {};
      load_piece(low, ring.at(OCTETS));
      if (count > 8) load_piece(high, ring.at(OCTETS + 1));
#pragma unroll
      for (int octet = 0; octet < OCTETS; octet++) {
        load_piece(weights, ring.at(octet));
        multiply_depth(d[octet], low, high, weights);
      }
      ask(depth + AHEAD);
    }
    // Lanes of other tiles may have had the same tokens.
    __syncwarp();
    add(mine, d, token, quad);
    unit += last - first;
  }
#endif
  let_next_start();
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * ROWS; i += THREADS) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += sums[w * tokens * ROWS + i];
    const i64 at = (i64)(i / ROWS) * hidden + first_row + i % ROWS;
    if (residual != nullptr) {
      ((float*)o)[at] = load_float(residual + at) + scale * sum;
    } else {
      ((u16*)o)[at] = (u16)pack(scale * sum, 0.0f);
    }
  }
}
