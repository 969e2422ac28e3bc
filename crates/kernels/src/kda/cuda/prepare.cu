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

constexpr int RESIDENT_BLOCKS = 396;  // 132 multiprocessors with three each
constexpr int TILE_BYTES = 16 * KP * 2;
constexpr int TILES = 10;
// Left operands of warps 1 to 3 (keys, then queries), right operands of warps 0 to 2, and room for the queries of warp 0 as
// they come.
enum { LEFT = 0, RIGHT = 6, ROOM = 9 };
constexpr int SOLVE_BYTES = SOLVE_FLOATS * 4;
constexpr int FRONT_BYTES = TILES * TILE_BYTES > SOLVE_BYTES ? TILES * TILE_BYTES : SOLVE_BYTES;
constexpr int SHARED_BYTES = FRONT_BYTES + SOLVE_FLOATS * 4;

DEVICE void store_piece(void* to, const u32 (&words)[4]) { *(uint4*)to = {words[0], words[1], words[2], words[3]}; }

DEVICE u32 times(u32 a, u32 b) {
  u32 product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Eight channels times eight factors, all f16.
DEVICE void store_times(void* to, const u32 (&a)[4], const u32 (&b)[4]) {
  *(uint4*)to = {times(a[0], b[0]), times(a[1], b[1]), times(a[2], b[2]), times(a[3], b[3])};
}

DEVICE void packed(u32 (&to)[4], const float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 4; i++) to[i] = pack(x[2 * i], x[2 * i + 1]);
}

DEVICE void packed(u32 (&to)[4], const float (&x)[8], const float (&y)[8]) {
#pragma unroll
  for (int i = 0; i < 4; i++) to[i] = pack(x[2 * i] * y[2 * i], x[2 * i + 1] * y[2 * i + 1]);
}

// As they are stored, to f16 times a factor.
DEVICE void converted(u32 (&to)[4], const u32 (&from)[4], float factor) {
#pragma unroll
  for (int i = 0; i < 4; i++) to[i] = pack(widen_low(from[i]) * factor, widen_high(from[i]) * factor);
}

// d[j][i] += a_i . b_j over 16 stored channels, exactly but for the sum's rounding.
DEVICE void multiply_stored(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if STORAGE == 1
#define STORED "f16"
#else
#define STORED "bf16"
#endif
  asm("mma.sync.aligned.m16n8k16.row.col.f32." STORED "." STORED
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Of an 8 x 8 product whose row `row` lies in this lane's quad, the element of the diagonal.
DEVICE float diagonal(float even, float odd, int row) {
  const int from = row * 4 + row / 2;
  const float x = __shfl_sync(~0u, even, from), y = __shfl_sync(~0u, odd, from);
  return row % 2 ? y : x;
}

// Sums of eight values over the eight rows of a warp: each lane gets one, that of value `row`.
DEVICE float sum_of_rows(float (&x)[8], int row) {
#pragma unroll
  for (int half = 4, step = 16; half > 0; half /= 2, step /= 2) {
    const bool upper = row & half;
#pragma unroll
    for (int i = 0; i < half; i++) {
      const float other = __shfl_xor_sync(~0u, upper ? x[i] : x[i + half], step);
      x[i] = (upper ? x[i + half] : x[i]) + other;
    }
  }
  return x[0];
}

extern "C" __global__ void __launch_bounds__(128, KD % 8 == 0 ? 3 : 2)
    kda_prepare(const u16* q, const u16* k, const void* g, const void* beta, const void* a_log, const void* dt_bias,
                unsigned char* packages, const int* offsets, const int* slots, int tokens, int heads, int value_heads,
                int gate, int types, int l2norm, float lower_bound, float beta_factor, float scale) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(16) float writes[CHUNK];
  __shared__ __align__(16) u32 between[2][KP / 2];                   // decays over the tokens of warps 1 and 2, f16
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

  // A lane brings its own channels, all at once, to where only it will write: of keys and queries to the tiles that they
  // will fill, of gates to `b`. (A pointer to a row that is not there still points into the tensor.)
  const u32 tiles = shared_address(shared), keys_at = tiles + (warp > 0 ? LEFT + 2 * (warp - 1) : RIGHT) * TILE_BYTES;
  const u32 queries_at = warp > 0 ? keys_at + TILE_BYTES : tiles + ROOM * TILE_BYTES;
  const u32 gates_at = tiles + FRONT_BYTES + thread * 16;
  float key_factor[2], query_factor[2], self[2];  // self: q . k of a token, the diagonal of A^q
  bool there[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int token = warp * 16 + h * 8 + row;
    there[h] = token < count;
    const i64 at = first + (there[h] ? token : 0), shared_row = (at * heads + head) * KD;
    const i64 own_row = (at * value_heads + value_head) * KD;
#pragma unroll
    for (int s = 0; s < KP / 32; s++) {
      const int channel = s * 32 + quad * 8;
      start_channels(keys_at + Rows<KP>::offset(h * 8 + row, s * 4 + quad), k + shared_row, channel, there[h]);
      start_channels(queries_at + Rows<KP>::offset(h * 8 + row, s * 4 + quad), q + shared_row, channel, there[h]);
      if (types & WIDE_GATE) {
        if (channel < KD) asm volatile("prefetch.global.L2 [%0];" ::"l"((const float*)g + own_row + channel));
      } else {
        start_channels(gates_at + (h * (KP / 32) + s) * 2048, (const u16*)g + own_row, channel, there[h]);
      }
    }
  }
  copy_commit();
  // Asks for the rows of the chunk that a block will start with when this one is about done, two lines a row and tensor.
  const int ahead = (blockIdx.y + (RESIDENT_BLOCKS + value_heads - 1) / value_heads) * CHUNK + thread / 2;
  if (KD * 2 > thread % 2 * 128 && ahead < sequence.count) {
    const i64 at = sequence.first + ahead, piece = thread % 2 * 64;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(k + (at * heads + head) * KD + piece));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(q + (at * heads + head) * KD + piece));
    const i64 gate_at = (at * value_heads + value_head) * KD + piece;
    asm volatile("prefetch.global.L2 [%0];" ::"l"((const u16*)g + (types & WIDE_GATE ? 2 : 1) * gate_at));
  }
  copy_wait<0>();
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float with_keys[4] = {}, with_queries[4] = {};  // rows: keys, then queries
#pragma unroll
    for (int s = 0; s < KP / 32; s++) {
      u32 x[4], y[4];
      take_channels(x, keys_at + Rows<KP>::offset(h * 8 + row, s * 4 + quad));
      take_channels(y, queries_at + Rows<KP>::offset(h * 8 + row, s * 4 + quad));
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const u32 both[4] = {x[e], y[e], x[e + 1], y[e + 1]};
        multiply_stored(with_keys, both, x[e], x[e + 1]);
        multiply_stored(with_queries, both, y[e], y[e + 1]);
      }
    }
    const float kk = diagonal(with_keys[0], with_keys[1], row), qk = diagonal(with_keys[2], with_keys[3], row);
    const float qq = diagonal(with_queries[2], with_queries[3], row);
    key_factor[h] = l2norm ? rsqrtf(kk + 1e-6f) : 1.0f;
    query_factor[h] = scale * (l2norm ? rsqrtf(qq + 1e-6f) : 1.0f);
    self[h] = qk * key_factor[h] * query_factor[h];
  }

  float near[3][2][4] = {}, across[4] = {};  // scores: of 1, 2 and 4 tokens against as many, of each 8; of 8 against 8
#pragma unroll 1
  for (int s = 0; s < KP / 32; s++) {
    const int channel = s * 32 + quad * 8;
    u32 keys[2][4], queries[2][4];  // normalised and scaled, f16
#pragma unroll
    for (int h = 0; h < 2; h++) {
      u32 words[4];
      take_channels(words, keys_at + Rows<KP>::offset(h * 8 + row, s * 4 + quad));
      converted(keys[h], words, key_factor[h]);
      take_channels(words, queries_at + Rows<KP>::offset(h * 8 + row, s * 4 + quad));
      converted(queries[h], words, query_factor[h]);
    }
    float left[2][8], right[2][8], log_sum[8];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float gates[8];
      if (types & WIDE_GATE) {
        const i64 at = ((first + warp * 16 + h * 8 + row) * value_heads + value_head) * KD;
        load_wide_gates(gates, (const float*)g + at, channel, there[h]);
      } else {
        u32 words[4];
        take_channels(words, gates_at + (h * (KP / 32) + s) * 2048);
#pragma unroll
        for (int i = 0; i < 4; i++) gates[2 * i] = widen_low(words[i]), gates[2 * i + 1] = widen_high(words[i]);
      }
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
    logs[s % 2][warp][quad * 8 + row] = sum_of_rows(log_sum, row);
#pragma unroll
    for (int e = 0; e < 2; e++) {  // 16 channels: the depth of a product
      float all[2][4];
#pragma unroll
      for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int c = 0; c < 4; c++) all[h][c] = left[h][e * 4 + c];
      }
      const u32 *k0 = keys[0] + e * 2, *k1 = keys[1] + e * 2, *q1 = queries[1] + e * 2;
#pragma unroll
      for (int level = 0; level < 3; level++) {
        const bool later = row >> level & 1;
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const float *l = left[h] + e * 4, *r = right[h] + e * 4;
          const u32 low = pack(later ? l[0] : r[0], later ? l[1] : r[1]);
          const u32 high = pack(later ? l[2] : r[2], later ? l[3] : r[3]);
          const u32 a[4] = {times(keys[h][e * 2], low), times(queries[h][e * 2], low), times(keys[h][e * 2 + 1], high),
                            times(queries[h][e * 2 + 1], high)};
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
      const u32 low = pack(l[0], l[1]), high = pack(l[2], l[3]);
      const u32 a[4] = {times(k1[0], low), times(q1[0], low), times(k1[1], high), times(q1[1], high)};
      multiply(across, a, times(k0[0], pack(r[0], r[1])), times(k0[1], pack(r[2], r[3])));
#pragma unroll
      for (int c = 0; c < 4; c++) {
        left[1][e * 4 + c] *= all[0][c];
        right[0][e * 4 + c] *= all[1][c];
        all[0][c] *= all[1][c];
      }
      if (row == 0 && (warp == 1 || warp == 2)) {
        *(uint2*)&between[warp - 1][channel / 2 + e * 2] = {pack(all[0][0], all[0][1]), pack(all[0][2], all[0][3])};
      }
      if (row == 0) *(float4*)&totals[s % 2][warp][quad * 8 + e * 4] = {all[0][0], all[0][1], all[0][2], all[0][3]};
    }
    const int piece = s * 4 + quad;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      unsigned char* tile = shared + Rows<KP>::offset(h * 8 + row, piece);
      u32 factors[4];
      if (warp > 0) {
        packed(factors, left[h]);
        store_times(tile + (LEFT + 2 * (warp - 1)) * TILE_BYTES, keys[h], factors);
        store_times(tile + (LEFT + 2 * (warp - 1) + 1) * TILE_BYTES, queries[h], factors);
      }
      if (warp < 3) {
        packed(factors, right[h]);
        store_times(tile + (RIGHT + warp) * TILE_BYTES, keys[h], factors);
      }
    }
    __syncthreads();
    // The other warps' totals: of all before and of all after.
    float others[8];
    auto product_of = [&](int begin, int end) {
#pragma unroll
      for (int c = 0; c < 8; c++) others[c] = 1.0f;
#pragma unroll 1
      for (int w = begin; w < end; w++) {
        const float4 low = *(const float4*)&totals[s % 2][w][quad * 8], high = *(const float4*)&totals[s % 2][w][quad * 8 + 4];
        others[0] *= low.x, others[1] *= low.y, others[2] *= low.z, others[3] *= low.w;
        others[4] *= high.x, others[5] *= high.y, others[6] *= high.z, others[7] *= high.w;
      }
    };
    product_of(0, warp);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      unsigned char* to = package + piece_at(warp * 16 + h * 8 + row, piece);
      u32 factors[4];
      packed(factors, left[h], others);
      store_times(to, keys[h], factors);
      store_times(to + QD_AT, queries[h], factors);
    }
    product_of(warp + 1, 4);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      u32 factors[4];
      packed(factors, right[h], others);
      store_times(package + KE_AT + piece_at(warp * 16 + h * 8 + row, piece), keys[h], factors);
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
  for (int pair = warp; pair < 6; pair += 4) {
    const int later = pair == 0 ? 1 : pair <= 2 ? 2 : 3, earlier = pair == 0 ? 0 : pair <= 2 ? pair - 1 : pair - 3;
    const u32 left_at = tiles + (LEFT + 2 * (later - 1)) * TILE_BYTES, right_at = tiles + (RIGHT + earlier) * TILE_BYTES;
    const bool over_1 = earlier == 0 && later > 1, over_2 = later == 3 && earlier < 2;  // warps that lie between
    float sums[2][2][4] = {};
#pragma unroll
    for (int step = 0; step < KP / 16; step++) {
      u32 a[4], bs[4];
      load_matrix_x4(bs, right_at + Rows<KP>::advance(Rows<KP>::lane_offset_right(lane), step));
#pragma unroll
      for (int kind = 0; kind < 2; kind++) {
        load_matrix_x4(a, left_at + kind * TILE_BYTES + Rows<KP>::advance(Rows<KP>::lane_offset(lane), step));
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int channels = step * 8 + i / 2 * 4 + quad;
          if (over_1) a[i] = times(a[i], between[0][channels]);
          if (over_2) a[i] = times(a[i], between[1][channels]);
        }
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
  solve(b, inverse, thread);
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
