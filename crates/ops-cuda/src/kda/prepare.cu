// The state-independent part of the chunked form of kda: computes the package (package.cuh) of a chunk of 64 tokens and one
// value head. All chunks in parallel.
//
// A warp has 16 tokens. Their keys, queries and gates are in shared memory, 16 rows each, and are read 16 channels at a time
// as fragments of mma.m16n8k16: lane l has tokens l / 4 and l / 4 + 8, channels l % 4 * 2 and the next of every 8.
//
// Scores sum k_i e^{G_i - G_j} k_j over channels, and no exponent may grow: for a token i of a later block of tokens and j of
// an earlier one the decay is e^{G_i - G_end} e^{G_end - G_j}, split at the end of the earlier block, both at most 1. Sums of log
// decays from and to such positions are products of the gates with a matrix of ones and zeros, which the tensor cores compute exactly
// (prepare_gates.cuh): no sum is a difference of two others, so fast gates cost slow ones no digits. Blocks of 16
// and of 8 tokens are split like this, in f16. Within 8 tokens, keys and queries times e^{+-(G - G_middle)} are multiplied as tf32,
// which has the exponent range of f32: there a token's decay is at least 2^-28, which passes at most 4e-9 of the tokens
// before it.
//
// Launch: grid (HV, chunks of the longest sequence, sequences), 128 threads, SHARED_BYTES of dynamic shared memory.
// Macros: KD, STORAGE (gates.cuh; 0 or 1). Arguments as in recurrent.cu; packages: package.cuh.

// Tiles of 16 tokens of each warp: keys, queries and gates as loaded; then keys and queries times the decay from the first
// of the 16 on, and keys times the decay to the last. Scores and the inverse reuse their memory afterwards.
enum { KEYS = 0, QUERIES = 4, GATES = 8, TILES = 12 };
constexpr int SOLVE_BYTES = 2 * SOLVE_FLOATS * 4;
// Sums of log decays [4 warps][KP], their powers of 2 [4 warps][KP / 2 words of two f16], write strengths [CHUNK].
constexpr int LOGS_AT = TILES * TILE_BYTES > SOLVE_BYTES ? TILES * TILE_BYTES : SOLVE_BYTES;
constexpr int BETWEEN_AT = LOGS_AT + 4 * KP * 4;
constexpr int WRITES_AT = BETWEEN_AT + 4 * KP / 2 * 4;
constexpr int SHARED_BYTES = WRITES_AT + CHUNK * 4;

DEVICE u32 times(u32 a, u32 b) {
  u32 product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Eight channels times eight factors, all f16.
DEVICE void store_times(void* to, const u32 (&a)[4], const u32 (&b)[4]) {
  const u32 words[4] = {times(a[0], b[0]), times(a[1], b[1]), times(a[2], b[2]), times(a[3], b[3])};
  store_piece(to, words);
}

// A pair of stored values times a factor, as floats and in f16.
struct Scaled {
  float low, high;
  u32 both;
};

DEVICE Scaled scaled(u32 word, float factor) {
  Scaled x;
  x.low = widen_low(word) * factor, x.high = widen_high(word) * factor;
  x.both = pack(x.low, x.high);
  return x;
}

DEVICE u32 powers(float low, float high) { return pack(exp2_approximate(low), exp2_approximate(high)); }

extern "C" __global__ void __launch_bounds__(128, 4)
    kda_prepare(const u16* q, const u16* k, const void* g, const void* beta, const void* a_log, const void* dt_bias,
                unsigned char* packages, const int* offsets, const int* slots, int tokens, int heads, int value_heads,
                int gate, int types, int l2norm, float lower_bound, float beta_factor, float scale) {
  let_next_start();
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
  float *b = (float*)shared, *inverse = b + SOLVE_FLOATS;
  float* logs = (float*)(shared + LOGS_AT);
  u32* between = (u32*)(shared + BETWEEN_AT);
  float* writes = (float*)(shared + WRITES_AT);
  const u32 tiles = shared_address(shared);
  const u32 keys_at = tiles + (KEYS + warp) * TILE_BYTES, queries_at = tiles + (QUERIES + warp) * TILE_BYTES;
  const u32 gates_at = tiles + (GATES + warp) * TILE_BYTES;
  const bool wide = types & WIDE_GATE;
  asm volatile("" : "+l"(package));  // so that it is not recomputed for every store

  const int piece = lane % PIECES, first_row = lane / PIECES;
  // Offset in a tile of row `first_row` + r, for r a multiple of ROWS_AT_ONCE.
  auto offset_of = [&](int r) { return (tile_offset(first_row, piece) ^ ((r & 7) << 4)) + r * KP * 2; };
  auto bring = [&](u32 tile, const u16* tensor, int stride, int column, auto all) {
    const u16* own_row = tensor + (first + warp * 16 + first_row) * stride + column;
#pragma unroll
    for (int r = 0; r < 16; r += ROWS_AT_ONCE) {
      // A missing row is not read, but its pointer still points into the tensor.
      const bool there = all || warp * 16 + first_row + r < count;
      start_channels(tile + offset_of(r), there ? own_row + r * stride : tensor, piece * 8, there);
    }
  };
  auto bring_all = [&](auto all) {
    bring(keys_at, k, heads * KD, head * KD, all);
    bring(queries_at, q, heads * KD, head * KD, all);
    copy_commit();
    if (!wide) bring(gates_at, (const u16*)g, value_heads * KD, value_head * KD, all);
    copy_commit();
  };
  if (count == CHUNK) {
    bring_all(Always());
  } else {
    bring_all(Maybe());
  }
  const bool own_write = thread < count && thread < CHUNK;
  const float write = own_write ? element(beta, (first + thread) * value_heads + value_head, types & WIDE_BETA) : 0.0f;
  const float rate = gate ? expf(element(a_log, value_head, types & WIDE_RATE)) : 0.0f;
  const bool in_parts = gate || wide;
  const float whole_one = in_parts ? 1.0f : widen(narrow(LOG2E, LOG2E) & 0xffff);
  const Counted one = counted(whole_one, row, quad), rest = counted(in_parts ? 1.0f : LOG2E - whole_one, row, quad);
  const float unit = in_parts ? 1.0f : 1.0f / LOG2E;
  const u32 lowest = narrow(LOWEST_DECAY * unit, LOWEST_DECAY * unit), lowest_near = narrow(LOWEST_NEAR * unit, LOWEST_NEAR * unit);
  const u32 lane_at = tile_offset(lane % 16, lane / 16);
  copy_wait<1>();
  __syncwarp();

  float key_factor[2], query_factor[2], self[2];  // self: q . k of a token, the diagonal of A^q
  {
    float with_keys[2][4] = {}, with_queries[2][4] = {};  // of 8 tokens; rows: keys, then queries
#pragma unroll
    for (int s = 0; s < KP / 16; s++) {
      u32 x[4], y[4];
      load_matrices(x, keys_at + step_offset(lane_at, s));
      load_matrices(y, queries_at + step_offset(lane_at, s));
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const u32 both[4] = {x[h], y[h], x[2 + h], y[2 + h]};
        multiply_stored(with_keys[h], both, x[h], x[2 + h]);
        multiply_stored(with_queries[h], both, y[h], y[2 + h]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float kk = diagonal(with_keys[h][0], with_keys[h][1], row), qk = diagonal(with_keys[h][2], with_keys[h][3], row);
      const float qq = diagonal(with_queries[h][2], with_queries[h][3], row);
      key_factor[h] = l2norm ? rsqrtf(kk + 1e-6f) : 1.0f;
      query_factor[h] = scale * (l2norm ? rsqrtf(qq + 1e-6f) : 1.0f);
      self[h] = qk * key_factor[h] * query_factor[h];
    }
  }

  copy_wait<0>();
  __syncwarp();

  float near[2][4] = {}, across[4] = {};  // scores within each 8 tokens, and of the later 8 with the earlier
  u32 logs_to = tiles + LOGS_AT + (warp * KP + quad * 2) * 4, between_to = tiles + BETWEEN_AT + (warp * (KP / 2) + quad) * 4;
#pragma unroll 1
  for (int s = 0; s < KP / 16; s++, logs_to += 64, between_to += 32) {
    const u32 at = step_offset(lane_at, s);
    u32 key_words[4], query_words[4], gates[4], rests[4], limited[4];
    load_matrices(key_words, keys_at + at);
    load_matrices(query_words, queries_at + at);
    if (!wide) load_matrices_transposed(gates, gates_at + at);
    if (in_parts) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int channel = s * 16 + i / 2 * 8 + row, token = warp * 16 + i % 2 * 8 + quad * 2;
        const bool inside = KD == KP || channel < KD;
        const float bias = gate && dt_bias && inside
                               ? element(dt_bias, value_head * KD + channel, types & WIDE_BIAS)
                               : 0.0f;
        float x[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const bool there = token + c < count;
          x[c] = c == 0 ? widen_low(gates[i]) : widen_high(gates[i]);
          if (wide) {
            const i64 from = ((first + token + c) * value_heads + value_head) * KD + channel;
            x[c] = there && inside ? ((const float*)g)[from] : 0.0f;
          }
          x[c] = there ? log2_decay(x[c], gate, rate, bias, lower_bound) : 0.0f;
        }
        gates[i] = narrow(x[0], x[1]);
        rests[i] = narrow(x[0] - widen_low(gates[i]), x[1] - widen_high(gates[i]));
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) gates[i] = rests[i] = larger_pair(gates[i], lowest);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) limited[i] = larger_pair(gates[i], lowest_near);
    u32 left_keys[4], left_queries[4], right_keys[4], later[4], early[2];
#pragma unroll
    for (int n = 0; n < 2; n++) {
      Scaled key[2], query[2];
      u32 from_first[2], to_last[2];  // decays within the 8 tokens
      float totals[2][2];             // of row 7
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int i = n * 2 + h;
        DecaySums sums;
        sum_decays(sums, one, rest, gates[i], rests[i], limited[i]);
        key[h] = scaled(key_words[i], key_factor[h]), query[h] = scaled(query_words[i], query_factor[h]);
        from_first[h] = powers(sums.ends[0], sums.ends[1]), to_last[h] = powers(sums.ends[2], sums.ends[3]);
        totals[0][h] = sums.ends[0], totals[1][h] = sums.ends[1];
        const float low = exp2_approximate(sums.middle[0]), high = exp2_approximate(sums.middle[1]);
        multiply_near(near[h], key[h].low * low, query[h].low * low, key[h].high * high, query[h].high * high,
                      key[h].low * exp2_approximate(-sums.middle[0]), key[h].high * exp2_approximate(-sums.middle[1]));
      }
      // The later 8 tokens take the decay of the earlier 8 before them, these that of the later 8 after them: from the lanes of row 7.
      const u32 of_earlier = __shfl_sync(~0u, from_first[0], 28 + quad), of_later = __shfl_sync(~0u, from_first[1], 28 + quad);
      left_keys[n * 2] = times(key[0].both, from_first[0]), left_queries[n * 2] = times(query[0].both, from_first[0]);
      later[n * 2] = times(key[1].both, from_first[1]), later[n * 2 + 1] = times(query[1].both, from_first[1]);
      early[n] = times(key[0].both, to_last[0]);
      left_keys[n * 2 + 1] = times(later[n * 2], of_earlier), left_queries[n * 2 + 1] = times(later[n * 2 + 1], of_earlier);
      right_keys[n * 2] = times(early[n], of_later), right_keys[n * 2 + 1] = times(key[1].both, to_last[1]);
      if (row == 7) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(between_to + n * 16), "r"(times(of_earlier, of_later)) : "memory");
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(logs_to + n * 32), "f"(totals[0][0] + totals[0][1]),
                     "f"(totals[1][0] + totals[1][1])
                     : "memory");
      }
    }
    mma_m16n8k16(across, later, early[0], early[1]);
    __syncwarp();
    store_matrices(keys_at + at, left_keys);
    store_matrices(queries_at + at, left_queries);
    store_matrices(gates_at + at, right_keys);
  }

  if (thread < CHUNK) writes[thread] = own_write ? strength(write, beta_factor) : 0.0f;
  __syncthreads();

  // The operands of the state recurrence: the warp's own tiles, times the decays of the warps before and after it.
  {
    u32 before[4], after[4];
    auto decays = [&](u32 (&to)[4], int begin, int end) {
      float sums[8] = {};
#pragma unroll 1
      for (int w = begin; w < end; w++) {
        const float4 low = *(const float4*)(logs + w * KP + piece * 8), high = *(const float4*)(logs + w * KP + piece * 8 + 4);
        sums[0] += low.x, sums[1] += low.y, sums[2] += low.z, sums[3] += low.w;
        sums[4] += high.x, sums[5] += high.y, sums[6] += high.z, sums[7] += high.w;
      }
#pragma unroll
      for (int i = 0; i < 4; i++) to[i] = powers(sums[2 * i], sums[2 * i + 1]);
    };
    decays(before, 0, warp);
    decays(after, warp + 1, 4);
    unsigned char* rows_of_warp = package + piece / 8 * BOX_BYTES + (warp * 16 + first_row) * 128;
    const int in_row = (piece ^ first_row) % 8 << 4;
#pragma unroll
    for (int r = 0; r < 16; r += ROWS_AT_ONCE) {
      unsigned char* to = rows_of_warp + r * 128 + (in_row ^ (r & 7) << 4);
      u32 words[4];
      take_piece(words, keys_at + offset_of(r));
      store_times(to, words, before);
      take_piece(words, queries_at + offset_of(r));
      store_times(to + QD_AT, words, before);
      take_piece(words, gates_at + offset_of(r));
      store_times(to + KE_AT, words, after);
    }
    if (thread < KP) {
      const float sum = logs[thread] + logs[KP + thread] + logs[2 * KP + thread] + logs[3 * KP + thread];
      ((float*)(package + NUMBERS_AT))[thread] = exp2f(sum);
    }
  }

  // Scores of 16 tokens with 16 earlier ones: two 16 x 16 products, of keys and of queries, for each of six pairs of blocks. A
  // warp computes both products of one pair and one of another.
  constexpr u32 EARLIER = 0x2010, LATER = 0x3321;  // of warp w's first pair: w = 0 is the lowest digit
  const int later = LATER >> warp * 4 & 3, earlier = EARLIER >> warp * 4 & 3, half_later = 2 + warp / 2, half_earlier = warp / 2;
  const u32 right_lane = tile_offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const u32* of_warp_1 = between + KP / 2 + quad;
  float far_keys[2][4] = {}, far_queries[2][4] = {}, far_half[2][4] = {};
  auto multiply_far = [&](auto& sums, auto& more, int kinds, int i, int j, int kind) {
    const u32 left_at = tiles + (KEYS + i) * TILE_BYTES, right_at = tiles + (GATES + j) * TILE_BYTES;
    const bool over_1 = j == 0 && i > 1, over_2 = i == 3 && j < 2;  // warps between i and j
#pragma unroll
    for (int step = 0; step < KP / 16; step++) {
      u32 a[4], bs[4];
      load_matrices(bs, right_at + step_offset(right_lane, step));
#pragma unroll
      for (int n = 0; n < kinds; n++) {
        load_matrices(a, left_at + (kind + n) * (QUERIES - KEYS) * TILE_BYTES + step_offset(lane_at, step));
#pragma unroll
        for (int word = 0; word < 4; word++) {
          if (over_1) a[word] = times(a[word], of_warp_1[step * 8 + word / 2 * 4]);
          if (over_2) a[word] = times(a[word], of_warp_1[KP / 2 + step * 8 + word / 2 * 4]);
        }
        auto& to = n == 0 ? sums : more;
        mma_m16n8k16(to[0], a, bs[0], bs[1]);
        mma_m16n8k16(to[1], a, bs[2], bs[3]);
      }
    }
  };
  multiply_far(far_keys, far_queries, 2, later, earlier, 0);
  multiply_far(far_half, far_half, 1, half_later, half_earlier, warp & 1);
  __syncthreads();

  // Scores of keys times beta go to `b`, those of queries to the package.
  auto put_keys = [&](int i, int j, float low, float high) {
    *(float2*)(b + i * SOLVE_STRIDE + j) = {writes[i] * low, writes[i] * high};
  };
  auto put_queries = [&](int i, int j, float low, float high) {
    store_word(package + AQ_AT + piece_at(i, j >> 3) + (j & 7) * 2, pack(low, high));
  };
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float keys_of[2], queries_of[2];
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const int j = quad * 2 + c;
      keys_of[c] = row > j ? near[h][c] : 0.0f;
      queries_of[c] = row > j ? near[h][2 + c] : row == j ? self[h] : 0.0f;
    }
    const int i = warp * 16 + h * 8 + row, j = warp * 16 + h * 8 + quad * 2;
    put_keys(i, j, keys_of[0], keys_of[1]);
    put_queries(i, j, queries_of[0], queries_of[1]);
  }
  const int corner = warp * 16, column = quad * 2;
  put_keys(corner + 8 + row, corner + column, across[0], across[1]);
  put_queries(corner + 8 + row, corner + column, across[2], across[3]);
  put_keys(corner + row, corner + 8 + column, 0.0f, 0.0f);
  put_queries(corner + row, corner + 8 + column, 0.0f, 0.0f);
#pragma unroll
  for (int part = 0; part < 4; part++) {
    const int i = part / 2 * 8 + row, j = part % 2 * 8 + column, at = part / 2 * 2;
    const float *key = far_keys[part % 2] + at, *query = far_queries[part % 2] + at, *half = far_half[part % 2] + at;
    put_keys(later * 16 + i, earlier * 16 + j, key[0], key[1]);
    put_queries(later * 16 + i, earlier * 16 + j, query[0], query[1]);
    if (warp & 1) {
      put_queries(half_later * 16 + i, half_earlier * 16 + j, half[0], half[1]);
    } else {
      put_keys(half_later * 16 + i, half_earlier * 16 + j, half[0], half[1]);
    }
  }
  clear_above(package + AQ_AT, warp, lane);
  __syncthreads();

  solve(b, inverse, thread, WholeBlock());
  __syncthreads();
  store_inverse(package + M_AT, inverse, writes, thread);
}
