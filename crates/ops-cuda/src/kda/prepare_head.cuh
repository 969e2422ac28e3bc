// As prepare.cu, for one decay per head (gated_delta): the decays factor out of the scores. A block has up to two value heads of one key
// head. Four of its warps have 16 keys each and four 16 queries: they multiply these with the keys of the same and of every earlier block
// of 16 tokens as stored, exact except for the rounding of the sum; then each value head multiplies each score by both norms and
// e^{G_i - G_j}. After the scores, four warps compute each value head.
//
// No exponent that contributes is positive (for g <= 0). From one block of 16 tokens to a later one, G_i - G_j is a sum: of the decays
// after j, of the blocks between, and of those up to i. Within a block it is the difference of two sums of at most 16 decays
// of at least 2^-150 each: the error is 1e-4 if all of them are that fast, 1e-5 after a single one.
//
// Shared by prepare_head.cu and prepare_rest.cu: g is [total, HV] and dt_bias [HV]. The first pair of value heads of a key head writes
// the matrices that all of them share (package.cuh). Macros: KD, STORAGE (gates.cuh; 0 or 1), PER_HEAD=1.

constexpr int HEADS = 2;  // value heads of a block
constexpr int TILES = 8;  // of 16 tokens, one per warp: keys and queries as loaded. The inverses reuse their memory.
constexpr int SOLVE_BYTES = HEADS * SOLVE_FLOATS * 4;
constexpr int B_AT = TILES * TILE_BYTES > SOLVE_BYTES ? TILES * TILE_BYTES : SOLVE_BYTES;
constexpr int TOKENS_AT = B_AT + SOLVE_BYTES;

// Scalars of each token of the chunk.
struct Tokens {
  float factors[2][CHUNK];  // of its key and its query: norm, and scale for queries
  // Per value head:
  float upto[HEADS][CHUNK], behind[HEADS][CHUNK];  // sums of base-2 log decays within its 16 tokens: up to it, and after it
  float writes[HEADS][CHUNK];                      // write strengths
  float totals[HEADS][4];                          // sums over each 16 tokens
};

constexpr int SHARED_BYTES = TOKENS_AT + sizeof(Tokens);

// Eight stored channels times a factor, in f16.
DEVICE void store_scaled(void* to, const u32 (&from)[4], float factor) {
  u32 words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) words[i] = pack(widen_low(from[i]) * factor, widen_high(from[i]) * factor);
  store_piece(to, words);
}

// Arguments of a launch.
struct Given {
  const u16 *q, *k;
  const void *g, *beta, *a_log, *dt_bias;
  unsigned char* packages;
  int heads, value_heads, of_key_head, gate, types, l2norm;  // value heads in all, and of a key head
  float lower_bound, beta_factor, scale;
};

// Prepares chunk `chunk` of a sequence that has it, for a pair of value heads of a key head, with 256 threads. `barrier` synchronizes
// these, and `asked` is called when the copies of the rows have been issued.
template <class Barrier, class Asked>
DEVICE void prepare_chunk(const Given& given, unsigned char* shared, const Sequence& sequence, int chunk, int head, int pair, Barrier barrier,
                          Asked asked) {
  int thread = barrier.thread();
  const u16 *const q = given.q, *const k = given.k;
  const int heads = given.heads, value_heads = given.value_heads, gate = given.gate, types = given.types;
  const int of_key_head = given.of_key_head;
  // The first of the block's value heads, and how many it has.
  const int first_head = head * of_key_head + pair * HEADS, here = min(HEADS, of_key_head - pair * HEADS);
  const int start = chunk * CHUNK, count = min(sequence.count - start, CHUNK);
  unsigned char* of_chunk = given.packages + (sequence.chunk_slot + chunk) * chunk_bytes(heads, value_heads);
  unsigned char* package = of_chunk + (i64)heads * OF_KEYS + (i64)first_head * PACKAGE_BYTES;
  const i64 first = sequence.first + start;
  const int warp = thread >> 5, lane = thread & 31, row = lane >> 2, quad = lane & 3;
  const bool asks = warp >= 4;  // has queries, not keys
  // Later rows multiply more keys: the warp with late keys shares a scheduler with the one with early queries.
  const int block = asks ? 7 - warp : warp, rows_of = block * 16;
  float *inverse = (float*)shared, *b = (float*)(shared + B_AT);
  Tokens& of = *(Tokens*)(shared + TOKENS_AT);
  const u32 tiles = shared_address(shared), own_at = tiles + (asks * 4 + block) * TILE_BYTES;

  const int piece = lane % PIECES, first_row = lane / PIECES;
  // Offset in a tile of row `first_row` + r, for r a multiple of ROWS_AT_ONCE.
  auto offset_of = [&](int r) { return (tile_offset(first_row, piece) ^ ((r & 7) << 4)) + r * KP * 2; };
  const u16* const tensor = asks ? q : k;
  auto bring = [&](auto all) {
    const int stride = heads * KD;
    const u16* own_row = tensor + (first + rows_of + first_row) * stride + head * KD;
#pragma unroll
    for (int r = 0; r < 16; r += ROWS_AT_ONCE) {
      // A missing row is not read, but its pointer still points into the tensor.
      const bool there = all || rows_of + first_row + r < count;
      start_channels(own_at + offset_of(r), there ? own_row + r * stride : tensor, piece * 8, there);
    }
    copy_commit();
  };
  if (count == CHUNK) {
    bring(Always());
  } else {
    bring(Maybe());
  }
  asked();

  // A lane per token, and half a warp per value head: without a second value head both halves have the first.
  const int in_block = lane % 16, token = rows_of + in_block, half = lane / 16;
  float upto = 0.0f, behind = 0.0f;
  if (!asks) {
    float write = 0.0f;
    if (token < count) {
      // All loads are issued before one is used.
      const int value_head = first_head + min(half, here - 1);
      const i64 own = (first + token) * value_heads + value_head;
      const float of_gate = element(given.g, own, types & WIDE_GATE), of_write = element(given.beta, own, types & WIDE_BETA);
      const float bias = gate && given.dt_bias ? element(given.dt_bias, value_head, types & WIDE_BIAS) : 0.0f;
      const float rate = gate ? expf(element(given.a_log, value_head, types & WIDE_RATE)) : 0.0f;
      upto = log2_decay(of_gate, gate, rate, bias, given.lower_bound), write = strength(of_write, given.beta_factor);
    }
    behind = upto;
#pragma unroll
    for (int step = 1; step < 16; step *= 2) {
      const float before = __shfl_up_sync(~0u, upto, step, 16), after = __shfl_down_sync(~0u, behind, step, 16);
      if (in_block >= step) upto += before;
      if (in_block + step < 16) behind += after;
    }
    behind = __shfl_down_sync(~0u, behind, 1, 16);
    if (in_block == 15) behind = 0.0f, of.totals[half][warp] = upto;
    of.upto[half][token] = upto, of.behind[half][token] = behind, of.writes[half][token] = write;
  }
  copy_wait<0>();
  __syncwarp();

  const u32 lane_at = tile_offset(lane % 16, lane / 16);
  const float factor_of_all = asks ? given.scale : 1.0f;
  float factor[2] = {factor_of_all, factor_of_all};  // of tokens `row` and `row` + 8
  if (given.l2norm) {
    float sums[2][4] = {};  // 16 tokens with 8
#pragma unroll
    for (int s = 0; s < KP / 16; s++) {
      u32 x[4];
      load_matrices(x, own_at + step_offset(lane_at, s));
#pragma unroll
      for (int h = 0; h < 2; h++) multiply_stored(sums[h], x, x[h], x[2 + h]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) factor[h] *= rsqrtf(diagonal(sums[h][2 * h], sums[h][2 * h + 1], row) + 1e-6f);
  }
  float* const factors = of.factors[asks];
  if (quad == 0) factors[rows_of + row] = factor[0], factors[rows_of + 8 + row] = factor[1];
  barrier();

  // Decays from the chunk's start and to its end.
  if (!asks && half < here) {
    float before = 0.0f, after = 0.0f;  // log decays of earlier and of later warps' tokens
#pragma unroll
    for (int w = 0; w < 4; w++) {
      const float total = of.totals[half][w];
      before += w < warp ? total : 0.0f;
      after += w > warp ? total : 0.0f;
    }
    unsigned char* numbers = package + half * PACKAGE_BYTES + NUMBERS_AT;
    ((float*)numbers)[token] = exp2_approximate(before + upto);
    ((float*)(numbers + TO_END_AT))[token] = exp2_approximate(behind + after);
    if (in_block == 0) ((float*)(numbers + DECAY_AT))[warp] = exp2f(before + upto + behind + after);
  }
  if (pair == 0) {
    unsigned char* to = of_chunk + (i64)head * OF_KEYS + (asks ? QD_AT : 0) + piece / 8 * BOX_BYTES + (rows_of + first_row) * 128;
    const int in_row = (piece ^ first_row) % 8 << 4;
#pragma unroll
    for (int r = 0; r < 16; r += ROWS_AT_ONCE) {
      u32 words[4];
      take_piece(words, own_at + offset_of(r));
      store_scaled(to + r * 128 + (in_row ^ (r & 7) << 4), words, factors[rows_of + first_row + r]);
    }
  }

  // Scores of the warp's 16 rows with each block of 16 keys up to their own: those of keys times beta go to `b`, those of queries to
  // the package.
  const u32 right_lane = tile_offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const int own_rows[2] = {rows_of + row, rows_of + row + 8};
  float row_sums[HEADS][2], row_factors[HEADS][2];  // log decays from the other block's end to the row
#pragma unroll
  for (int i = 0; i < 2 * HEADS; i++) {
    const int own = i / 2, at = own_rows[i % 2];
    row_sums[own][i % 2] = of.upto[own][at], row_factors[own][i % 2] = (asks ? 1.0f : of.writes[own][at]) * factor[i % 2];
  }
  // Addresses of the lane's first row in its first value head's part of `b` and in its A^q.
  float* const row_of_b = b + own_rows[0] * SOLVE_STRIDE + quad * 2;
  unsigned char* const row_of_aq = package + AQ_AT - OF_KEYS + own_rows[0] * 128 + quad * 4;
  auto scores_with = [&](int other, auto same) {
    float scores[2][4] = {};
#pragma unroll
    for (int s = 0; s < KP / 16; s++) {
      u32 x[4], right[4];
      load_matrices(right, tiles + other * TILE_BYTES + step_offset(right_lane, s));
      load_matrices(x, own_at + step_offset(lane_at, s));
#pragma unroll
      for (int n = 0; n < 2; n++) multiply_stored(scores[n], x, right[2 * n], right[2 * n + 1]);
    }
    const int piece_of_aq = (other * 2 ^ row) << 4;
#pragma unroll
    for (int own = 0; own < HEADS; own++) {
      float by_row[2];
#pragma unroll
      for (int h = 0; h < 2; h++) by_row[h] = row_factors[own][h] * (same ? 1.0f : exp2_approximate(row_sums[own][h]));
#pragma unroll
      for (int n = 0; n < 2; n++) {
        const int column = n * 8 + quad * 2;  // of the other block
        const float2 key = *(const float2*)(of.factors[0] + other * 16 + column);
        const float2 sums = *(const float2*)((same ? of.upto[own] : of.behind[own]) + other * 16 + column);
        float2 by_column = key;
        if constexpr (!same) by_column.x *= exp2_approximate(sums.x), by_column.y *= exp2_approximate(sums.y);
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float2 score = {by_row[h] * (scores[n][2 * h] * by_column.x), by_row[h] * (scores[n][2 * h + 1] * by_column.y)};
          if constexpr (same) {
            // Scores of later keys are 0, whatever their product, and so is that of a key with itself.
            const int last = row + h * 8 - !asks;
            score.x = column > last ? 0.0f : score.x * exp2_approximate(row_sums[own][h] - sums.x);
            score.y = column + 1 > last ? 0.0f : score.y * exp2_approximate(row_sums[own][h] - sums.y);
          }
          if (!asks) {
            *(float2*)(row_of_b + own * SOLVE_FLOATS + h * 8 * SOLVE_STRIDE + other * 16 + n * 8) = score;
          } else if (own < here) {
            store_word(row_of_aq + (piece_of_aq ^ n * 16) + own * PACKAGE_BYTES + h * 1024, pack(score.x, score.y));
          }
        }
      }
    }
  };
  scores_with(block, Always());
#pragma unroll 1
  for (int other = block - 1; other >= 0; other--) {
    scores_with(other, Maybe());
#pragma unroll
    for (int own = 0; own < HEADS; own++) row_sums[own][0] += of.totals[own][other], row_sums[own][1] += of.totals[own][other];
  }
  // Four warps per value head.
  thread = barrier.thread();
  const int own = thread / 128;
  unsigned char* own_package = package + own * PACKAGE_BYTES - OF_KEYS;
  if (own < here) clear_above(own_package + AQ_AT, thread / 32 % 4, thread % 32);
  b += own * SOLVE_FLOATS, inverse += own * SOLVE_FLOATS;
  barrier();

  solve(b, inverse, thread, barrier);
  barrier();
  if (own < here) store_inverse(own_package + M_AT, inverse, of.writes[own], thread);
}
