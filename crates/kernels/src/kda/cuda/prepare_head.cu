// As prepare.cu, for one decay a head (gated_delta): the same package, by fewer operations. The decays leave the scores: a warp
// multiplies its 16 tokens with its own and with every earlier 16 as they are stored, which is exact but for the sum's
// rounding, and then takes each score times both norms and e^{G_i - G_j}.
//
// No exponent that counts is positive (for g <= 0). From one block of 16 tokens to a later one, G_i - G_j is a sum: of the decays
// behind j, of the blocks between, and of those up to i. Within a block it is the difference of two sums of at most 16 decays
// of at least 2^-150 each: off by 1e-4 where all of them are as fast, by 1e-5 behind one.
//
// Launch and arguments: as prepare.cu, g [total, HV] and dt_bias [HV]. Macros: KD, STORAGE (gates.cuh; 0 or 1).

// Tiles of 16 tokens of each warp: keys and queries as they come. The inverse takes their place.
enum { KEYS = 0, QUERIES = 4, TILES = 8 };
constexpr int MATRIX_BYTES = SOLVE_FLOATS * 4;
constexpr int B_AT = TILES * TILE_BYTES > MATRIX_BYTES ? TILES * TILE_BYTES : MATRIX_BYTES;
constexpr int TOKENS_AT = B_AT + MATRIX_BYTES;

// What is known of each token of the chunk.
struct Tokens {
  float4 rows[CHUNK];                 // factors of its rows in kd, qd and ke
  float upto[CHUNK], behind[CHUNK];   // sums of log decays in powers of 2 within its 16 tokens: up to it, and after it
  float key[CHUNK], query[CHUNK];     // what its key and its query are multiplied by
  float writes[CHUNK];                // write strengths
  float totals[4];                    // sums over each 16 tokens
};

constexpr int SHARED_BYTES = TOKENS_AT + sizeof(Tokens);

// Eight stored channels times a factor, in f16.
DEVICE void store_scaled(void* to, const u32 (&from)[4], float factor) {
  u32 words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) words[i] = pack(widen_low(from[i]) * factor, widen_high(from[i]) * factor);
  store_piece(to, words);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    gated_delta_prepare(const u16* q, const u16* k, const void* g, const void* beta, const void* a_log, const void* dt_bias,
                        unsigned char* packages, const int* offsets, const int* slots, int tokens, int heads,
                        int value_heads, int gate, int types, int l2norm, float lower_bound, float beta_factor, float scale) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int thread = threadIdx.x, value_head = blockIdx.x;
  const int head = heads == value_heads ? value_head : value_head / (value_heads / heads);
  const Sequence sequence = find_sequence(offsets, blockIdx.z, tokens);
  const int start = blockIdx.y * CHUNK, count = min(sequence.count - start, CHUNK);
  if (count <= 0 || (slots && slots[blockIdx.z] < 0)) return;
  unsigned char* package =
      packages + ((i64)(sequence.chunk_slot + blockIdx.y) * value_heads + value_head) * PACKAGE_BYTES;
  const i64 first = sequence.first + start;
  const int warp = thread >> 5 & 3, lane = thread & 31, row = lane >> 2, quad = lane & 3;
  float *inverse = (float*)shared, *b = (float*)(shared + B_AT);
  Tokens& of = *(Tokens*)(shared + TOKENS_AT);
  const u32 tiles = shared_address(shared);
  const u32 keys_at = tiles + (KEYS + warp) * TILE_BYTES, queries_at = tiles + (QUERIES + warp) * TILE_BYTES;

  const int piece = lane % PIECES, first_row = lane / PIECES;
  // Of row `first_row` + r, for r a multiple of ROWS_AT_ONCE.
  auto offset_of = [&](int r) { return (tile_offset(first_row, piece) ^ ((r & 7) << 4)) + r * KP * 2; };
  auto bring = [&](u32 tile, const u16* tensor, auto all) {
    const int stride = heads * KD;
    const u16* own_row = tensor + (first + warp * 16 + first_row) * stride + head * KD;
#pragma unroll
    for (int r = 0; r < 16; r += ROWS_AT_ONCE) {
      // A row that is not there is not read, but a pointer still points into the tensor.
      const bool there = all || warp * 16 + first_row + r < count;
      start_channels(tile + offset_of(r), there ? own_row + r * stride : tensor, piece * 8, there);
    }
  };
  auto bring_both = [&](auto all) {
    bring(keys_at, k, all);
    bring(queries_at, q, all);
    copy_commit();
  };
  if (count == CHUNK) {
    bring_both(Always());
  } else {
    bring_both(Maybe());
  }

  // A token a lane; the upper half of a warp does the same.
  const int in_block = lane % 16, token = warp * 16 + in_block;
  float upto = 0.0f, write = 0.0f;
  if (token < count) {
    const i64 own = (first + token) * value_heads + value_head;
    const float rate = gate ? expf(element(a_log, value_head, types & WIDE_RATE)) : 0.0f;
    const float bias = gate && dt_bias ? element(dt_bias, value_head, types & WIDE_BIAS) : 0.0f;
    upto = log2_decay(element(g, own, types & WIDE_GATE), gate, rate, bias, lower_bound);
    write = strength(element(beta, own, types & WIDE_BETA), beta_factor);
  }
  float behind = upto;
#pragma unroll
  for (int step = 1; step < 16; step *= 2) {
    const float before = __shfl_up_sync(~0u, upto, step, 16), after = __shfl_down_sync(~0u, behind, step, 16);
    if (in_block >= step) upto += before;
    if (in_block + step < 16) behind += after;
  }
  behind = __shfl_down_sync(~0u, behind, 1, 16);
  if (in_block == 15) behind = 0.0f;
  if (lane < 16) of.upto[token] = upto, of.behind[token] = behind, of.writes[token] = write;
  if (lane == 15) of.totals[warp] = upto;
  copy_wait<0>();
  __syncwarp();

  const u32 lane_at = tile_offset(lane % 16, lane / 16);
  float key_factor[2] = {1.0f, 1.0f}, query_factor[2] = {scale, scale};  // of tokens `row` and `row` + 8
  if (l2norm) {
    float of_keys[2][4] = {}, of_queries[2][4] = {};  // 16 tokens with 8
#pragma unroll
    for (int s = 0; s < KP / 16; s++) {
      u32 x[4], y[4];
      load_matrices(x, keys_at + step_offset(lane_at, s));
      load_matrices(y, queries_at + step_offset(lane_at, s));
#pragma unroll
      for (int h = 0; h < 2; h++) {
        multiply_stored(of_keys[h], x, x[h], x[2 + h]);
        multiply_stored(of_queries[h], y, y[h], y[2 + h]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      key_factor[h] = rsqrtf(diagonal(of_keys[h][2 * h], of_keys[h][2 * h + 1], row) + 1e-6f);
      query_factor[h] = scale * rsqrtf(diagonal(of_queries[h][2 * h], of_queries[h][2 * h + 1], row) + 1e-6f);
    }
  }
  if (quad == 0) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      of.key[warp * 16 + h * 8 + row] = key_factor[h], of.query[warp * 16 + h * 8 + row] = query_factor[h];
    }
  }
  __syncthreads();

  // What the state meets: the warp's own rows, times the decays from the chunk's start and to its end.
  {
    float before = 0.0f, after = 0.0f;  // log decays of earlier and of later warps' tokens
#pragma unroll
    for (int w = 0; w < 4; w++) {
      before += w < warp ? of.totals[w] : 0.0f;
      after += w > warp ? of.totals[w] : 0.0f;
    }
    if (lane < 16) {
      const float from_start = exp2_approximate(before + upto), to_end = exp2_approximate(behind + after);
      of.rows[token] = {of.key[token] * from_start, of.query[token] * from_start, of.key[token] * to_end, 0.0f};
    }
    if (thread < KP) {
      ((float*)(package + DECAY_AT))[thread] = exp2f(of.totals[0] + of.totals[1] + of.totals[2] + of.totals[3]);
    }
    __syncwarp();
    unsigned char* rows_of_warp = package + piece / 8 * BOX_BYTES + (warp * 16 + first_row) * 128;
    const int in_row = (piece ^ first_row) % 8 << 4;
#pragma unroll
    for (int r = 0; r < 16; r += ROWS_AT_ONCE) {
      unsigned char* to = rows_of_warp + r * 128 + (in_row ^ (r & 7) << 4);
      const float4 factors = of.rows[warp * 16 + first_row + r];
      u32 words[4];
      take_piece(words, keys_at + offset_of(r));
      store_scaled(to, words, factors.x);
      store_scaled(to + KE_AT, words, factors.z);
      take_piece(words, queries_at + offset_of(r));
      store_scaled(to + QD_AT, words, factors.y);
    }
  }

  // Scores of the warp's 16 tokens with each 16 up to their own: those of keys times beta go to `b`, those of queries into the
  // package.
  const u32 right_lane = tile_offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const int own_rows[2] = {warp * 16 + row, warp * 16 + row + 8};
  float row_sums[2] = {of.upto[own_rows[0]], of.upto[own_rows[1]]};  // log decays from the other block's end to the row
  const float row_writes[2] = {of.writes[own_rows[0]] * key_factor[0], of.writes[own_rows[1]] * key_factor[1]};
#pragma unroll 1
  for (int other = warp; other >= 0; other--) {
    float of_keys[2][4] = {}, of_queries[2][4] = {};
#pragma unroll
    for (int s = 0; s < KP / 16; s++) {
      u32 x[4], y[4], right[4];
      load_matrices(right, tiles + (KEYS + other) * TILE_BYTES + step_offset(right_lane, s));
      load_matrices(x, keys_at + step_offset(lane_at, s));
      load_matrices(y, queries_at + step_offset(lane_at, s));
#pragma unroll
      for (int n = 0; n < 2; n++) {
        multiply_stored(of_keys[n], x, right[2 * n], right[2 * n + 1]);
        multiply_stored(of_queries[n], y, right[2 * n], right[2 * n + 1]);
      }
    }
    const bool same = other == warp;
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const int column = other * 16 + n * 8 + quad * 2;
      const float2 key = *(const float2*)(of.key + column);
      float2 sums = *(const float2*)((same ? of.upto : of.behind) + column);
      if (same) sums = {-sums.x, -sums.y};
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int i = own_rows[h];
        const float low = exp2_approximate(row_sums[h] + sums.x) * key.x, high = exp2_approximate(row_sums[h] + sums.y) * key.y;
        const float *of_key = of_keys[n] + 2 * h, *of_query = of_queries[n] + 2 * h;
        float2 to_b = {row_writes[h] * (of_key[0] * low), row_writes[h] * (of_key[1] * high)};
        float2 to_query = {query_factor[h] * (of_query[0] * low), query_factor[h] * (of_query[1] * high)};
        // Within the block, what a later key does is not there, whatever its number.
        if (i <= column) to_b.x = 0.0f;
        if (i <= column + 1) to_b.y = 0.0f;
        if (i < column) to_query.x = 0.0f;
        if (i < column + 1) to_query.y = 0.0f;
        *(float2*)(b + i * SOLVE_STRIDE + column) = to_b;
        store_word(package + AQ_AT + piece_at(i, column >> 3) + (column & 7) * 2, pack(to_query.x, to_query.y));
      }
    }
    if (!same) {
      row_sums[0] += of.totals[other], row_sums[1] += of.totals[other];
    }
  }
  clear_above(package, warp, lane);
  __syncthreads();

  solve(b, inverse, thread);
  __syncthreads();
  store_inverse(package, inverse, of.writes, thread);
}
