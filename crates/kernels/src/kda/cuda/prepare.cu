// What the chunk form of kda needs of a chunk of 64 tokens and one value head that depends on no state: a package
// (package.cuh). Every chunk at once.
//
// A warp has 16 tokens: lane l tokens l / 4 and l / 4 + 8, and of every 32 channels the 8 from l % 4 * 8 on. That is just
// how mma.m16n8k16 wants its operands, rows of the left and columns of the right alike (the order of the channels summed
// over is free), so scores within 16 tokens need no shared memory.
//
// Scores sum k_i e^{G_i - G_j} k_j over channels, and no exponent may be positive. For a block of 2 n tokens, those of the
// later half against those of the earlier, split it where the halves meet: later keys and queries times the product of
// e^g from there to i ("left"), earlier keys times the product from j + 1 to there ("right"). Both are products of
// factors that are at most 1, and doubling n multiplies each by the other half's total: from n = 1 to 4 by shuffles,
// 8 within a lane, 16 and 32 through shared memory. So one exponential an element is all. The decay of a whole chunk is the
// exponential of a sum, because a slow gate multiplies it many times.
//
// Launch: grid (HV, chunks of the longest sequence, sequences), 128 threads, SHARED_BYTES of dynamic shared memory.
// Macros: KD, STORAGE (gates.cuh; 0 or 1). Arguments as in recurrent.cu; packages: package.cuh.

constexpr int TILE_BYTES = 16 * KP * 2;
constexpr int TILES = 12;
// Left operands of warps 1 to 3 (keys, then queries), those of warp 3 from token 32 on; right operands of warps 0 to 2,
// those of warp 0 to token 32.
enum { LEFT = 0, LEFT_FAR = 6, RIGHT = 8, RIGHT_FAR = 11 };
constexpr int SOLVE_BYTES = (SOLVE_FLOATS + SOLVE_FLOATS / 2) * 4;
constexpr int FRONT_BYTES = TILES * TILE_BYTES > SOLVE_BYTES ? TILES * TILE_BYTES : SOLVE_BYTES;
constexpr int SHARED_BYTES = FRONT_BYTES + SOLVE_FLOATS * 4;

DEVICE void store_piece(void* to, const u32 (&words)[4]) { *(uint4*)to = {words[0], words[1], words[2], words[3]}; }

DEVICE void widened(float (&x)[8], const u32 (&words)[4], float factor) {
#pragma unroll
  for (int i = 0; i < 4; i++) x[2 * i] = widen_low(words[i]) * factor, x[2 * i + 1] = widen_high(words[i]) * factor;
}

// Eight channels times factors, as f16.
DEVICE void store_scaled(void* to, const u32 (&words)[4], float factor, const float (&a)[8]) {
  u32 out[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    out[i] = pack(widen_low(words[i]) * (factor * a[2 * i]), widen_high(words[i]) * (factor * a[2 * i + 1]));
  }
  store_piece(to, out);
}

DEVICE void store_scaled(void* to, const u32 (&words)[4], float factor, const float (&a)[8], const float (&b)[8]) {
  float both[8];
#pragma unroll
  for (int c = 0; c < 8; c++) both[c] = a[c] * b[c];
  store_scaled(to, words, factor, both);
}

DEVICE float over_quad(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

extern "C" __global__ void __launch_bounds__(128, KD % 8 == 0 ? 3 : 2)
    kda_prepare(const u16* q, const u16* k, const void* g, const void* beta, const void* a_log, const void* dt_bias,
                unsigned char* packages, const int* offsets, const int* slots, int tokens, int heads, int value_heads,
                int gate, int types, int l2norm, float lower_bound, float beta_factor, float scale) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(16) float writes[CHUNK];
  __shared__ __align__(16) float totals[2][4][32], logs[2][4][32];  // of each warp's 16 tokens
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, row = lane / 4, quad = lane % 4;
  const int value_head = blockIdx.x, head = value_head / (value_heads / heads);
  const Sequence sequence = find_sequence(offsets, blockIdx.z, tokens);
  const int start = blockIdx.y * CHUNK, count = min(sequence.count - start, CHUNK);
  if (count <= 0 || (slots && slots[blockIdx.z] < 0)) return;
  unsigned char* package =
      packages + ((i64)(sequence.chunk_slot + blockIdx.y) * value_heads + value_head) * PACKAGE_BYTES;
  const i64 first = sequence.first + start;
  if (thread < CHUNK) {
    const bool there = thread < count;
    writes[thread] =
        there ? strength(element(beta, (first + thread) * value_heads + value_head, types & WIDE_BETA), beta_factor) : 0.0f;
  }
  const float rate = gate ? expf(element(a_log, value_head, types & WIDE_RATE)) : 0.0f;

  // Twice over keys and queries: for their norms, and (from the caches) for everything else.
  float key_factor[2], query_factor[2], self[2];  // self: q . k of a token, the diagonal of A^q
  // From the chunk's first row of this head on.
  const u16 *chunk_keys = k + (first * heads + head) * KD, *chunk_queries = q + (first * heads + head) * KD;
  const void* chunk_gates = (const char*)g + (first * value_heads + value_head) * KD * (types & WIDE_GATE ? 4 : 2);
  int keys_at[2], gates_at[2];
  bool there[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int token = warp * 16 + h * 8 + row;
    there[h] = token < count;
    keys_at[h] = token * heads * KD;
    gates_at[h] = token * value_heads * KD;
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float kk = 0, qq = 0, qk = 0;
#pragma unroll
    for (int s = 0; s < KP / 32; s++) {
      float x[8], y[8];
      u32 words[4];
      load_channels(words, chunk_keys + keys_at[h], s * 32 + quad * 8, there[h]);
      widened(x, words, 1.0f);
      load_channels(words, chunk_queries + keys_at[h], s * 32 + quad * 8, there[h]);
      widened(y, words, 1.0f);
#pragma unroll
      for (int c = 0; c < 8; c++) kk += x[c] * x[c], qq += y[c] * y[c], qk += x[c] * y[c];
    }
    key_factor[h] = l2norm ? rsqrtf(over_quad(kk) + 1e-6f) : 1.0f;
    query_factor[h] = scale * (l2norm ? rsqrtf(over_quad(qq) + 1e-6f) : 1.0f);
    self[h] = over_quad(qk) * key_factor[h] * query_factor[h];
  }

  float near[3][2][4] = {}, across[4] = {};  // scores: of 1, 2 and 4 tokens against as many, of each 8; of 8 against 8
#pragma unroll 1
  for (int s = 0; s < KP / 32; s++) {
    const int channel = s * 32 + quad * 8;
    u32 keys[2][4], queries[2][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      load_channels(keys[h], chunk_keys + keys_at[h], channel, there[h]);
      load_channels(queries[h], chunk_queries + keys_at[h], channel, there[h]);
    }
    float left[2][8], right[2][8], log_sum[8];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float gates[8];
      load_gates(gates, chunk_gates, gates_at[h], channel, there[h], types & WIDE_GATE);
#pragma unroll
      for (int c = 0; c < 8; c++) {
        const bool bias_there = gate && dt_bias && (KD % 8 == 0 || channel + c < KD);
        const float bias = bias_there ? element(dt_bias, value_head * KD + channel + c, types & WIDE_BIAS) : 0.0f;
        const float decay = there[h] ? log2_decay(gates[c], gate, rate, bias, lower_bound) : 0.0f;
        log_sum[c] = h == 0 ? decay : log_sum[c] + decay;
        left[h][c] = exp2_approximate(decay);
        right[h][c] = 1.0f;
      }
    }
#pragma unroll
    for (int c = 0; c < 8; c++) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) log_sum[c] += __shfl_xor_sync(~0u, log_sum[c], step);
      if (row == 0) logs[s % 2][warp][quad * 8 + c] = log_sum[c];
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {  // 16 channels: the depth of a product
      float x[2][4], y[2][4], all[2][4];
#pragma unroll
      for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int c = 0; c < 4; c += 2) {
          const u32 key = keys[h][e * 2 + c / 2], query = queries[h][e * 2 + c / 2];
          x[h][c] = widen_low(key) * key_factor[h], x[h][c + 1] = widen_high(key) * key_factor[h];
          y[h][c] = widen_low(query) * query_factor[h], y[h][c + 1] = widen_high(query) * query_factor[h];
        }
#pragma unroll
        for (int c = 0; c < 4; c++) all[h][c] = left[h][e * 4 + c];
      }
#pragma unroll
      for (int level = 0; level < 3; level++) {
        const bool later = row >> level & 1;
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float factor[4];
#pragma unroll
          for (int c = 0; c < 4; c++) factor[c] = later ? left[h][e * 4 + c] : right[h][e * 4 + c];
          const u32 a[4] = {pack(x[h][0] * factor[0], x[h][1] * factor[1]), pack(y[h][0] * factor[0], y[h][1] * factor[1]),
                            pack(x[h][2] * factor[2], x[h][3] * factor[3]), pack(y[h][2] * factor[2], y[h][3] * factor[3])};
          multiply(near[level][h], a, a[0], a[2]);
#pragma unroll
          for (int c = 0; c < 4; c++) {
            const float other = __shfl_xor_sync(~0u, all[h][c], 4 << level);
            if (later) {
              left[h][e * 4 + c] *= other;
            } else {
              right[h][e * 4 + c] *= other;
            }
            all[h][c] *= other;
          }
        }
      }
      const float *l = left[1] + e * 4, *r = right[0] + e * 4;
      const u32 a[4] = {pack(x[1][0] * l[0], x[1][1] * l[1]), pack(y[1][0] * l[0], y[1][1] * l[1]),
                        pack(x[1][2] * l[2], x[1][3] * l[3]), pack(y[1][2] * l[2], y[1][3] * l[3])};
      multiply(across, a, pack(x[0][0] * r[0], x[0][1] * r[1]), pack(x[0][2] * r[2], x[0][3] * r[3]));
#pragma unroll
      for (int c = 0; c < 4; c++) {
        left[1][e * 4 + c] *= all[0][c];
        right[0][e * 4 + c] *= all[1][c];
        if (row == 0) totals[s % 2][warp][quad * 8 + e * 4 + c] = all[0][c] * all[1][c];
      }
    }
    const int piece = s * 4 + quad;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      unsigned char* tile = shared + Rows<KP>::offset(h * 8 + row, piece);
      if (warp > 0) {
        store_scaled(tile + (LEFT + 2 * (warp - 1)) * TILE_BYTES, keys[h], key_factor[h], left[h]);
        store_scaled(tile + (LEFT + 2 * (warp - 1) + 1) * TILE_BYTES, queries[h], query_factor[h], left[h]);
      }
      if (warp < 3) store_scaled(tile + (RIGHT + warp) * TILE_BYTES, keys[h], key_factor[h], right[h]);
    }
    __syncthreads();
    // The other warps' totals: of the warp between (for tokens on both sides of the middle), of all before and all after.
    float others[8];
    if (warp == 0 || warp == 3) {
#pragma unroll
      for (int c = 0; c < 8; c++) others[c] = totals[s % 2][warp == 0 ? 1 : 2][quad * 8 + c];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        unsigned char* tile = shared + Rows<KP>::offset(h * 8 + row, piece);
        if (warp == 0) {
          store_scaled(tile + RIGHT_FAR * TILE_BYTES, keys[h], key_factor[h], right[h], others);
        } else {
          store_scaled(tile + LEFT_FAR * TILE_BYTES, keys[h], key_factor[h], left[h], others);
          store_scaled(tile + (LEFT_FAR + 1) * TILE_BYTES, queries[h], query_factor[h], left[h], others);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < 8; c++) others[c] = 1.0f;
    for (int w = 0; w < warp; w++) {
#pragma unroll
      for (int c = 0; c < 8; c++) others[c] *= totals[s % 2][w][quad * 8 + c];
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      unsigned char* to = package + piece_at(warp * 16 + h * 8 + row, piece);
      store_scaled(to, keys[h], key_factor[h], left[h], others);
      store_scaled(to + QD_AT, queries[h], query_factor[h], left[h], others);
    }
#pragma unroll
    for (int c = 0; c < 8; c++) others[c] = 1.0f;
    for (int w = warp + 1; w < 4; w++) {
#pragma unroll
      for (int c = 0; c < 8; c++) others[c] *= totals[s % 2][w][quad * 8 + c];
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      store_scaled(package + KE_AT + piece_at(warp * 16 + h * 8 + row, piece), keys[h], key_factor[h], right[h], others);
    }
    if (warp == 0) {
      const float sum = logs[s % 2][0][lane] + logs[s % 2][1][lane] + logs[s % 2][2][lane] + logs[s % 2][3][lane];
      ((float*)(package + DECAY_AT))[s * 32 + lane] = exp2f(sum);
    }
  }

  // Scores of keys times beta go to `b`, those of queries into the package.
  float* b = (float*)(shared + FRONT_BYTES);
  auto put = [&](int i, int j, float key_0, float key_1, float query_0, float query_1) {
    *(float2*)(b + i * SOLVE_STRIDE + j) = {writes[i] * key_0, writes[i] * key_1};
    *(u32*)(package + AQ_AT + piece_at(i, j / 8) + j % 8 * 2) = pack(query_0, query_1);
  };
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float keys_of[2], queries_of[2];
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const int j = quad * 2 + c, differ = row ^ j;
      const bool high = differ & 4, middle = differ & 2, later = row > j;
      const float from_key = high ? near[2][h][c] : middle ? near[1][h][c] : near[0][h][c];
      const float from_query = high ? near[2][h][2 + c] : middle ? near[1][h][2 + c] : near[0][h][2 + c];
      keys_of[c] = later ? from_key : 0.0f;
      queries_of[c] = later ? from_query : row == j ? self[h] : 0.0f;
    }
    const int i = warp * 16 + h * 8 + row, j = warp * 16 + h * 8 + quad * 2;
    put(i, j, keys_of[0], keys_of[1], queries_of[0], queries_of[1]);
  }
  put(warp * 16 + 8 + row, warp * 16 + quad * 2, across[0], across[1], across[2], across[3]);
  put(warp * 16 + row, warp * 16 + 8 + quad * 2, 0.0f, 0.0f, 0.0f, 0.0f);
  __syncthreads();

  // Of 16 tokens against 16 earlier ones: two products of 16 x 16 for each of six pairs.
  const u32 tiles = shared_address(shared);
  for (int pair = warp; pair < 6; pair += 4) {
    const int later = pair == 0 ? 1 : pair <= 2 ? 2 : 3, earlier = pair == 0 ? 0 : pair <= 2 ? pair - 1 : pair - 3;
    const int left_tile = later == 3 && earlier < 2 ? LEFT_FAR : LEFT + 2 * (later - 1);
    const int right_tile = later > 1 && earlier == 0 ? RIGHT_FAR : RIGHT + earlier;
    const u32 left_at = tiles + left_tile * TILE_BYTES, right_at = tiles + right_tile * TILE_BYTES;
    float sums[2][2][4] = {};
#pragma unroll
    for (int step = 0; step < KP / 16; step++) {
      u32 a[4], bs[4];
      load_matrix_x4(bs, right_at + Rows<KP>::advance(Rows<KP>::lane_offset_right(lane), step));
#pragma unroll
      for (int kind = 0; kind < 2; kind++) {
        load_matrix_x4(a, left_at + kind * TILE_BYTES + Rows<KP>::advance(Rows<KP>::lane_offset(lane), step));
        multiply(sums[kind][0], a, bs[0], bs[1]);
        multiply(sums[kind][1], a, bs[2], bs[3]);
      }
    }
#pragma unroll
    for (int half = 0; half < 4; half++) {
      const int i = later * 16 + half / 2 * 8 + row, j = earlier * 16 + half % 2 * 8 + quad * 2, at = half / 2 * 2;
      const float *from_key = sums[0][half % 2] + at, *from_query = sums[1][half % 2] + at;
      put(i, j, from_key[0], from_key[1], from_query[0], from_query[1]);
    }
  }
  // A^q is 0 where the key comes later: six blocks of 16 x 16, in pieces of 8 columns.
  const u32 none[4] = {0, 0, 0, 0};
  for (int piece = thread; piece < 6 * 32; piece += 128) {
    const int pair = piece / 32, earlier = pair == 0 ? 1 : pair <= 2 ? 2 : 3, block = pair == 0 ? 0 : pair <= 2 ? pair - 1 : pair - 3;
    store_piece(package + AQ_AT + piece_at(block * 16 + piece % 32 / 2, earlier * 2 + piece % 2), none);
  }
  __syncthreads();

  float* inverse = (float*)shared;
  solve(b, inverse, inverse + SOLVE_FLOATS, thread);
  __syncthreads();
  for (int piece = thread; piece < CHUNK * 8; piece += 128) {
    const int i = piece / 8, j = piece % 8 * 8;
    u32 words[4] = {0, 0, 0, 0};
    if (j / 32 <= i / 32) {
      const float4 low = four(inverse + i * SOLVE_STRIDE + j), high = four(inverse + i * SOLVE_STRIDE + j + 4);
      const float4 low_writes = four(writes + j), high_writes = four(writes + j + 4);
      words[0] = pack(low.x * low_writes.x, low.y * low_writes.y), words[1] = pack(low.z * low_writes.z, low.w * low_writes.w);
      words[2] = pack(high.x * high_writes.x, high.y * high_writes.y);
      words[3] = pack(high.z * high_writes.z, high.w * high_writes.w);
    }
    store_piece(package + M_AT + piece_at(i, piece % 8), words);
  }
}
