// Shared by the kernels of a decode step of nsa: a thread block attends one query, 16 heads of it, over a list of
// tokens.
//
// Each warp scores TILE tokens of a round against the query. Their weights, relative to the largest score of the whole block, go through
// shared memory, and each warp multiplies all of them by its own columns of the values: no output is added up over warps.
//
// Requires common.cuh. Macros: TILE (16, 32), WARPS, KEY_COPIES.

constexpr int THREADS = WARPS * 32;
constexpr int PAIRS = TILE / 16;
constexpr int ROUND = WARPS * TILE;
constexpr int COLUMNS = Rows<DV>::padded;
constexpr int PIECES = COLUMNS / 16;
constexpr int WARP_PIECES = (PIECES + WARPS - 1) / WARPS;  // of 16 columns, dealt to the warps in turn
constexpr int QUERY_BYTES = 16 * Rows<D>::stride;
constexpr int VALUE_AT = KEY_COPIES * TILE * Rows<D>::stride;
constexpr int WARP_BYTES = VALUE_AT + TILE * Rows<DV>::stride;
constexpr int WEIGHT_ROW = ROUND * 2 + 16;  // odd in pieces of 16 bytes: rows are in different banks
constexpr int WEIGHTS_AT = QUERY_BYTES + WARPS * WARP_BYTES;
constexpr int ATTEND_BYTES = WEIGHTS_AT + 16 * WEIGHT_ROW;

// The warp's index, uniform for the compiler.
DEVICE int warp_number() { return __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0); }

// A branch, or a part of it: outputs not yet divided, of the columns of this warp's pieces warp, warp + WARPS .., and the
// maximum (base 2) and the sum of weights of rows lane / 4 and that + 8, which all warps have.
struct Totals {
  float maximum[2], sum[2], output[WARP_PIECES][2][4];
};

// Results of parts: values [.., 16, COLUMNS], sums [.., 16, 2] (maximum in base 2, sum of weights).
struct Partial {
  float *values, *sums;
};

// Reads from L2: another block of threads wrote it.
DEVICE float2 read_pair(const float* from) {
  float2 x;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(from));
  return x;
}

DEVICE float4 read_four(const float* from) {
  float4 x;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from));
  return x;
}

// Whether this block is the last of `blocks` to arrive; what the others wrote before is then visible. Resets the counter
// to 0.
DEVICE bool last_of(u32* counter, u32 blocks, int* flag) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const bool last = atomicAdd(counter, 1) == blocks - 1;
    if (last) *counter = 0;
    *flag = last;
    __threadfence();
  }
  __syncthreads();
  return *flag != 0;
}

// Starts copying the query's rows.
DEVICE void load_query(u32 base, const u16* q, const u16* q_here, int slab_heads) {
  Rows<D>::template copy<16, THREADS, false, 1>(base, threadIdx.x, q, [&](int row) {
    return row < slab_heads ? q_here + row * D : nullptr;
  });
  copy_commit();
}

// Rows of tokens of one sequence and key head: token n is n * stride rows further. rest (the keys' rounding remainder) and values
// may be null.
struct Source {
  const u16 *keys, *rest, *values;
  int stride;
};

// Tokens first .. end of a list, of which the n-th is token_at(n) of the source; on_scores(s, n) gets the scores, in base 2, of the
// tile that starts at entry n of the list. The query was loaded by load_query.
template <class TokenAt, class OnScores>
DEVICE void attend(u32 base, const Source& from, int first, int end, float scale, Totals& to, TokenAt token_at, OnScores on_scores) {
  __shared__ float maxima[WARPS][16], sums[WARPS][16];
  const int warp = warp_number(), lane = threadIdx.x % 32;
  const float factor = scale * TO_BASE2;
  const bool rest = KEY_COPIES == 2 && from.rest != nullptr, values = from.values != nullptr;
  const u32 tiles = base + QUERY_BYTES, mine = tiles + warp * WARP_BYTES;
  auto load = [&](int at) {
    at += warp * TILE;
    // Each lane looks one token up for all lanes.
    const int token = lane < TILE && at + lane < end ? token_at(at + lane) * from.stride : -1;
    auto row_of = [&](const u16* rows, int columns, int row) {
      const int at_row = __shfl_sync(0xffffffff, token, row);
      return at_row >= 0 ? rows + (i64)at_row * columns : nullptr;
    };
    if (at < end) {
      Rows<D>::template copy<TILE, 32, false, 2>(mine, lane, from.keys, [&](int row) { return row_of(from.keys, D, row); });
      if (rest) {
        Rows<D>::template copy<TILE, 32, false, 2>(mine + TILE * Rows<D>::stride, lane, from.keys,
                                                   [&](int row) { return row_of(from.rest, D, row); });
      }
    }
    copy_commit();
    if (at < end && values) {
      Rows<DV>::template copy<TILE, 32, false, 2>(mine + VALUE_AT, lane, from.values, [&](int row) { return row_of(from.values, DV, row); });
    }
    copy_commit();
  };
#pragma unroll
  for (int half = 0; half < 2; half++) {
    to.maximum[half] = -INFINITE;
    to.sum[half] = 0.0f;
  }
#pragma unroll
  for (int e = 0; e < WARP_PIECES * 8; e++) (&to.output[0][0][0])[e] = 0.0f;
  __syncthreads();  // no warp reads the tiles of a preceding call
  load(first);
#pragma unroll 1
  for (int at = first; at < end; at += ROUND) {
    copy_wait<1>();
    __syncthreads();  // keys have arrived, and the query, of which each warp copied a part; no warp reads the previous round
    const int here = at + warp * TILE;
    float s[1][PAIRS * 2][4] = {}, largest[2] = {-INFINITE, -INFINITE};
    if (here < end) {
      const u32 query_lane = base + Rows<D>::lane_offset(lane), key_lane = mine + Rows<D>::lane_offset_right(lane);
      add_scores<1, PAIRS>(s, query_lane, key_lane);
      if (rest) add_scores<1, PAIRS>(s, query_lane, key_lane + TILE * Rows<D>::stride);
      multiply_all<PAIRS>(s[0], factor);
      if (here + TILE > end) mask_behind<PAIRS>(s[0], end - here, lane);
      on_scores(s[0], here);
#pragma unroll
      for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int n = 0; n < PAIRS * 2; n++) largest[half] = fmaxf(largest[half], fmaxf(s[0][n][half * 2], s[0][n][half * 2 + 1]));
        largest[half] = row_max(largest[half]);
      }
    }
    if (lane % 4 == 0) {
      maxima[warp][lane / 4] = largest[0];
      maxima[warp][lane / 4 + 8] = largest[1];
    }
    __syncthreads();
    float fade[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = lane / 4 + half * 8;
      const float previous = to.maximum[half];
#pragma unroll
      for (int w = 0; w < WARPS; w++) to.maximum[half] = fmaxf(to.maximum[half], maxima[w][row]);
      const float center = to.maximum[half] == -INFINITE ? 0.0f : to.maximum[half];
      fade[half] = exp2_approximate(previous - center);
      float sum = 0.0f;
      if (here < end) {
#pragma unroll
        for (int n = 0; n < PAIRS * 2; n++) {
          const float low = exp2_approximate(s[0][n][half * 2] - center), high = exp2_approximate(s[0][n][half * 2 + 1] - center);
          sum += low + high;
          const u32 to_weights = base + WEIGHTS_AT + row * WEIGHT_ROW + (warp * TILE + n * 8 + lane % 4 * 2) * 2;
          asm volatile("st.shared.u32 [%0], %1;" ::"r"(to_weights), "r"(pack(low, high)) : "memory");
        }
      }
      sum = row_sum(sum);
      if (lane % 4 == 0) sums[warp][row] = sum;
    }
    copy_wait<0>();
    __syncthreads();  // values and all weights have arrived
#pragma unroll
    for (int half = 0; half < 2; half++) {
      to.sum[half] *= fade[half];
#pragma unroll
      for (int w = 0; w < WARPS; w++) to.sum[half] += sums[w][lane / 4 + half * 8];
    }
    if (values) {
#pragma unroll
      for (int e = 0; e < WARP_PIECES * 8; e++) (&to.output[0][0][0])[e] *= fade[e / 2 % 2];
      const int steps = (min(end - at, ROUND) + 15) / 16;
      const u32 weight_lane = base + WEIGHTS_AT + lane % 16 * WEIGHT_ROW + lane / 16 * 16;
      const u32 value_lane = tiles + VALUE_AT + Rows<DV>::lane_offset(lane);
#pragma unroll 4
      for (int step = 0; step < steps; step++) {
        u32 a[4], b[4];
        load_matrix_x4(a, weight_lane + step * 32);
        const u32 from = value_lane + step / PAIRS * WARP_BYTES + step % PAIRS * 16 * Rows<DV>::stride;
#pragma unroll
        for (int p = 0; p < WARP_PIECES; p++) {
          if (WARP_PIECES * WARPS != PIECES && warp + p * WARPS >= PIECES) break;
          load_matrix_x4_transposed(b, Rows<DV>::advance(from, warp + p * WARPS));
          multiply(to.output[p][0], a, b[0], b[1]);
          multiply(to.output[p][1], a, b[2], b[3]);
        }
      }
    }
    __syncthreads();  // no warp reads the tiles
    load(at + ROUND);
  }
  copy_wait<0>();
}

// Stores a result as part `part`.
DEVICE void leave(const Totals& result, const Partial& to, i64 part) {
  const int warp = warp_number(), lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const i64 row = part * 16 + lane / 4 + half * 8;
    if (warp == 0 && lane % 4 == 0) *(float2*)(to.sums + row * 2) = make_float2(result.maximum[half], result.sum[half]);
#pragma unroll
    for (int p = 0; p < WARP_PIECES; p++) {
      if (WARP_PIECES * WARPS != PIECES && warp + p * WARPS >= PIECES) break;
#pragma unroll
      for (int n = 0; n < 2; n++) {
        *(float2*)(to.values + row * COLUMNS + (warp + p * WARPS) * 16 + n * 8 + lane % 4 * 2) =
            make_float2(result.output[p][n][half * 2], result.output[p][n][half * 2 + 1]);
      }
    }
  }
}
