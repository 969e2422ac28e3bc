// Attention over a latent cache (MLA in its absorbed form) on Hopper (sm_90a): the values are the first DV channels of
// the keys, so each tile of keys is read once and is an operand of both products. Split-KV as decode.cu; combine.cu
// merges the parts. Design, split rule and figures: README-hopper-latent.md.
//
// q, o [B, Tq, H, D|DV], or packed [total, H, D|DV] with cu_q [B + 1];
// k by `map_k` as [rows, Hkv, D], boxes of 64 channels, one head and `box_rows` rows, swizzled by 128 bytes: dense
// [B, Tk, Hkv, D], packed with cu_k [B + 1], or paged [blocks, block_size, Hkv, D] with block_table [B, max_blocks];
// cache_seqlens [B] gives the keys in use of dense or paged sequences (null: all Tk); lse f32 [B, H, Tq], packed
// [H, total], natural logarithm. q and o 16-byte aligned and contiguous.
// Query i of a sequence sees key j when -window_left <= j - (i + keys - queries) <= window_right; negative windows
// are unlimited, as are those of 2^30 and more; causal is window_right = 0. A row that sees no key gives o = 0,
// lse = -inf. softcap 0 is off. A key past the end of its sequence may hold anything.
//
// Row r of sequence b and key head g is query r / (H / Hkv), head g * (H / Hkv) + r % (H / Hkv), as in decode.cu.
// Launch: grid (Hkv * row_blocks, splits, B), row_blocks = ceil(longest Tq * (H / Hkv) / ROWS); block (THREADS below: 416, and
// 512 for 64 rows): a warpgroup for scores, two for values, and a warp that copies; dynamic shared memory SHARED_BYTES below:
//   1024 + 128 * ROWS * (D / 64 + 2) + 8192 * BOXES + 64 * ROWS + 16 * BOXES + 32.
// splits = 1 writes o and lse; splits > 1 writes partial_o f32 [splits, q rows * H, DV] and partial_lse for combine.cu.
// `longest` is the number of keys that the queries of a sequence see together at most, of the sequence where it is largest.
//
// Macros: D (a multiple of 64), DV (a multiple of 128, at most D), DTYPE (bf16, f16), ROWS (16, 32, 64), BOXES (slots of
// the ring: 64 keys by 64 channels each, more than D / 64).
// box_rows is 8, 16, 32 or 64 and divides block_size where keys are paged.

// ---- The warpgroup of scores: S^T = K Q^T, 64 keys by ROWS, then weights of the storage type, [row][key].
// A thread has the keys warp * 16 + lane / 4 (and that + 8) of the rows 8 i + lane % 4 * 2 (and the next).
DEVICE void score(const Work& work, u8* shared, u32 base, float scale, float softcap, float* lse_of_row) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  const float to_base2 = 1.44269504f;
  const float factor = softcap > 0.0f ? scale / softcap : scale * to_base2, cap = softcap * to_base2;
  const u64 queries = descriptor_k_major<128>(base + QUERIES_AT);
  const u32 weights_lane = base + WEIGHTS_AT + (lane / 16 * 8 + lane % 8) * 128 +
                           (((warp * 2 + lane / 8 % 2) ^ (lane % 8)) << 4);
  float* const factors = (float*)(shared + FACTORS_AT);
  float* const maxima = (float*)(shared + MAXIMA_AT);
  float maximum[COLUMNS], sum[COLUMNS];
#pragma unroll
  for (int c = 0; c < COLUMNS; c++) {
    maximum[c] = -INFINITE;
    sum[c] = 0.0f;
  }
  Ring ring = {0, 0};
#pragma unroll 1
  for (int tile = work.first_tile; tile < work.end_tile; tile++) {
    const int turn = tile - work.first_tile, buffer = turn % 2;
    const Ring first = ring;
    float s[ROWS / 2];
    wgmma_fence();
#pragma unroll
    for (int box = 0; box < KEY_BOXES; box++) {
      mbarrier_wait(base + FULL_AT + 8 * ring.slot, ring.turn);
      const u64 keys = descriptor_k_major<128>(base + RING_AT + ring.slot * BOX_BYTES);
#pragma unroll
      for (int step = 0; step < 4; step++) {
        wgmma_ss<0>(s, keys + 2 * step, queries + box * (ROWS * 128 >> 4) + 2 * step, box + step > 0);
      }
      ring.advance(1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    keep(s);
    // Release the boxes of channels DV .. D - 1: they are not values.
    Ring rest = first;
    rest.advance(VALUE_BOXES);
#pragma unroll
    for (int box = VALUE_BOXES; box < KEY_BOXES; box++) {
      if (lane == 0) mbarrier_arrive(base + EMPTY_AT + 8 * rest.slot);
      rest.advance(1);
    }

    // ---- Logits in base 2.
#pragma unroll
    for (int e = 0; e < ROWS / 2; e++) {
      s[e] *= factor;
      if (softcap > 0.0f) s[e] = cap * tanh_exact(s[e]);
    }
    const int first_key = work.start + tile * BLOCK_KEYS;
    if (!work.whole(first_key)) {
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) {
        const int position = (work.first_row + c / 2 * 8 + lane % 4 * 2 + c % 2) / work.group + work.shift;
        const int row_low = position - work.left, row_high = min(work.keys, position + work.right + 1);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int key = first_key + warp * 16 + lane / 4 + half * 8;
          if (key < row_low || key >= row_high) s[c / 2 * 4 + half * 2 + c % 2] = -INFINITE;
        }
      }
      if (first_key < work.low || first_key + BLOCK_KEYS > work.high) {
        clear_outside(work, base, first, first_key, thread);
      }
    }

    // ---- The rows' new maxima, over the keys of all four warps.
    float largest[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      largest[c] = fmaxf(s[c / 2 * 4 + c % 2], s[c / 2 * 4 + 2 + c % 2]);
#pragma unroll
      for (int far = 4; far < 32; far *= 2) {
        largest[c] = fmaxf(largest[c], __shfl_xor_sync(0xffffffff, largest[c], far));
      }
    }
    float* const own = maxima + buffer * 4 * ROWS;
    if (lane < 4) {
#pragma unroll
      for (int c = 0; c < COLUMNS; c += 2) {
        *(float2*)(own + warp * ROWS + c * 4 + lane * 2) = make_float2(largest[c], largest[c + 1]);
      }
    }
    named_barrier_sync(SCORES, 128);
    // The weights of two tiles ago have been consumed.
    mbarrier_wait(base + WEIGHTS_EMPTY_AT + 8 * buffer, (turn / 2 & 1) ^ 1);
#pragma unroll
    for (int c = 0; c < COLUMNS; c += 2) {
      float2 most = make_float2(maximum[c], maximum[c + 1]);
#pragma unroll
      for (int of = 0; of < 4; of++) {
        const float2 more = *(const float2*)(own + of * ROWS + c * 4 + lane % 4 * 2);
        most = make_float2(fmaxf(most.x, more.x), fmaxf(most.y, more.y));
      }
      float fades[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float now = e == 0 ? most.x : most.y;
        // A row that has seen nothing yet keeps weights of 0: -inf - 0, not -inf - -inf.
        const float center = now == -INFINITE ? 0.0f : now;
        fades[e] = exp2_approximate(maximum[c + e] - center);
        maximum[c + e] = now;
        float& upper = s[c * 2 + e];
        float& lower = s[c * 2 + 2 + e];
        upper = exp2_approximate(upper - center);
        lower = exp2_approximate(lower - center);
        sum[c + e] = sum[c + e] * fades[e] + (upper + lower);
      }
      if (thread < 4) *(float2*)(factors + buffer * ROWS + c * 4 + lane * 2) = make_float2(fades[0], fades[1]);
    }
#pragma unroll
    for (int i = 0; i < ROWS / 8; i += 2) {
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       weights_lane + buffer * ROWS * 128 + i * 1024),
                   "r"(pack(s[i * 4], s[i * 4 + 1])), "r"(pack(s[i * 4 + 2], s[i * 4 + 3])),
                   "r"(pack(s[i * 4 + 4], s[i * 4 + 5])), "r"(pack(s[i * 4 + 6], s[i * 4 + 7]))
                   : "memory");
    }
    fence_async_shared();
    mbarrier_arrive(base + WEIGHTS_FULL_AT + 8 * buffer);
  }

  // ---- Sums of all keys.
  float* const sums = (float*)(shared + SUMS_AT);
#pragma unroll
  for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
    for (int far = 4; far < 32; far *= 2) sum[c] += __shfl_xor_sync(0xffffffff, sum[c], far);
    if (lane < 4) {
      sums[warp * ROWS + c / 2 * 8 + lane * 2 + c % 2] = sum[c];
      // The half of the buffer that the last tile's scores did not use.
      if (warp == 0) maxima[(work.end_tile - work.first_tile) % 2 * 4 * ROWS + c / 2 * 8 + lane * 2 + c % 2] = maximum[c];
    }
  }
  named_barrier_sync(SCORES, 128);
  if (thread < ROWS) {
    const float all = (sums[thread] + sums[ROWS + thread]) + (sums[2 * ROWS + thread] + sums[3 * ROWS + thread]);
    const float most = maxima[(work.end_tile - work.first_tile) % 2 * 4 * ROWS + thread];
    *lse_of_row = all > 0.0f ? most + log2_approximate(all) : -INFINITE;
    sums[thread] = all > 0.0f ? 1.0f / all : 0.0f;
  }
}

// Waits until at most `pending` (a constant where this is inlined) of the newest wgmma groups are in flight.
DEVICE void wait_for_group(int pending) {
  if (pending >= 3) {
    wgmma_wait<3>();
  } else if (pending == 2) {
    wgmma_wait<2>();
  } else if (pending == 1) {
    wgmma_wait<1>();
  } else {
    wgmma_wait<0>();
  }
}

// ---- A warpgroup of values: O^T = V^T P^T, half of the DV channels by ROWS.
DEVICE void sum_values(const Work& work, const u8* shared, u32 base, int half, float (&output)[GROUP_BOXES][ROWS / 2]) {
  const int lane = threadIdx.x % 32;
  const float* const factors = (const float*)(shared + FACTORS_AT);
  Ring ring = {0, 0};
  ring.advance(half * GROUP_BOXES);
#pragma unroll 1
  for (int tile = work.first_tile; tile < work.end_tile; tile++) {
    const int turn = tile - work.first_tile, buffer = turn % 2;
    mbarrier_wait(base + WEIGHTS_FULL_AT + 8 * buffer, turn / 2 & 1);
    // After the first tiles the maxima seldom change.
    float2 fades[ROWS / 8];
    bool faded = false;
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
      fades[i] = *(const float2*)(factors + buffer * ROWS + i * 8 + lane % 4 * 2);
      faded |= fades[i].x != 1.0f || fades[i].y != 1.0f;
    }
    if (__any_sync(0xffffffff, faded)) {
#pragma unroll
      for (int box = 0; box < GROUP_BOXES; box++) {
#pragma unroll
        for (int e = 0; e < ROWS / 2; e++) output[box][e] *= e % 2 == 0 ? fades[e / 4].x : fades[e / 4].y;
      }
    }
    const u64 weights = descriptor_k_major<128>(base + WEIGHTS_AT + buffer * ROWS * 128);
    Ring next = ring;
    wgmma_fence();
#pragma unroll
    for (int box = 0; box < GROUP_BOXES; box++) {
      const u64 values = descriptor_mn_major<128>(base + RING_AT + next.slot * BOX_BYTES, BOX_BYTES);
#pragma unroll
      for (int step = 0; step < 4; step++) wgmma_turned(output[box], values + 128 * step, weights + 2 * step);
      wgmma_commit();
      next.advance(1);
    }
#pragma unroll
    for (int box = 0; box < GROUP_BOXES; box++) {
      wait_for_group(GROUP_BOXES - 1 - box);
      keep(output[box]);
      if (lane == 0) mbarrier_arrive(base + EMPTY_AT + 8 * ring.slot);
      ring.advance(1);
    }
    if (lane == 0) mbarrier_arrive(base + WEIGHTS_EMPTY_AT + 8 * buffer);
    ring.advance(KEY_BOXES - GROUP_BOXES);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_hopper_latent(const __grid_constant__ TensorMap map_k, const u16* __restrict__ q, u16* __restrict__ o,
                            float* __restrict__ lse, float* __restrict__ partial_o, float* __restrict__ partial_lse,
                            const int* __restrict__ cu_q, const int* __restrict__ cu_k,
                            const int* __restrict__ cache_seqlens, const int* __restrict__ block_table, int tq, int tk,
                            int total_q, int heads, int kv_heads, int block_size, int max_blocks, int box_rows,
                            int longest, int window_left, int window_right, float scale, float softcap) {
  extern __shared__ u8 raw[];
  const u32 raw_base = shared_address(raw), base = (raw_base + 1023) & ~1023u;
  u8* const shared = raw + (base - raw_base);
  const int thread = threadIdx.x, warpgroup = __shfl_sync(0xffffffff, thread / 128, 0);
  int* const query_rows = (int*)(shared + QUERY_ROWS_AT);
  if (thread == CONSUMERS) {
    tma_prefetch(&map_k);
    for (int i = 0; i < BOXES; i++) {
      mbarrier_init(base + FULL_AT + 8 * i, 1);
      mbarrier_init(base + EMPTY_AT + 8 * i, 4);  // the warps of one warpgroup
    }
    for (int i = 0; i < 2; i++) {
      mbarrier_init(base + WEIGHTS_FULL_AT + 8 * i, 128);
      mbarrier_init(base + WEIGHTS_EMPTY_AT + 8 * i, 8);
    }
    fence_barrier_init();
  }
  __syncthreads();

  Work work;
  work.sequence = blockIdx.z;
  work.group = heads / kv_heads;
  // Blocks of the same keys are adjacent in the grid, so that these are in L2; the last rows, which under a causal mask
  // see most keys, start first.
  const int row_blocks = gridDim.x / kv_heads;
  work.kv_head = blockIdx.x / row_blocks;
  work.first_row = (row_blocks - 1 - (int)blockIdx.x % row_blocks) * ROWS;
  const int first_query = work.first_row / work.group, splits = gridDim.y;
  wait_for_previous();
  work.q_start = cu_q != nullptr ? cu_q[work.sequence] : work.sequence * tq;
  const int queries = cu_q != nullptr ? cu_q[work.sequence + 1] - work.q_start : tq;
  work.k_start = cu_k != nullptr ? cu_k[work.sequence] : work.sequence * tk;
  work.keys = cache_seqlens != nullptr ? cache_seqlens[work.sequence]
              : cu_k != nullptr        ? cu_k[work.sequence + 1] - work.k_start
                                       : tk;
  work.rows = queries * work.group;
  if (work.first_row >= work.rows) return;
  work.shift = work.keys - queries;  // query i is at key position i + shift
  work.left = window_left < 0 ? UNLIMITED : min(window_left, UNLIMITED);
  work.right = window_right < 0 ? UNLIMITED : min(window_right, UNLIMITED);
  // Keys seen by any row of the block: both limits rise with the query.
  const int last_row = min(work.first_row + ROWS, work.rows) - 1;
  work.low = max(0, first_query + work.shift - work.left);
  work.high = min(work.keys, last_row / work.group + work.shift + work.right + 1);
  work.start = work.low / BLOCK_KEYS * BLOCK_KEYS;
  const int tiles = work.high > work.low ? (work.high - work.start + BLOCK_KEYS - 1) / BLOCK_KEYS : 0;
  const Share share = share_of<BLOCK_KEYS>(tiles, longest, cache_seqlens);
  work.first_tile = share.first;
  work.end_tile = share.end;

  const auto load_queries = [&]() {
    // 16 bytes a thread at a time; rows past the last are zeros.
    for (int at = thread; at < ROWS * (D / 8); at += CONSUMERS) {
      const int slot = at / (D / 8), chunk = at % (D / 8), row = work.first_row + slot;
      const int from = (work.q_start + row / work.group) * heads + work.kv_head * work.group + row % work.group;
      uint4 piece = make_uint4(0, 0, 0, 0);
      if (row < work.rows) piece = *(const uint4*)(q + (i64)from * D + chunk * 8);
      if (chunk == 0) query_rows[slot] = row < work.rows ? from : -1;
      *(uint4*)(shared + QUERIES_AT + (chunk / 8 * ROWS + slot) * 128 + ((chunk % 8 ^ slot % 8) << 4)) = piece;
    }
    fence_async_shared();
    let_next_start();  // combine.cu
    named_barrier_sync(QUERIES, CONSUMERS);
  };

  if (warpgroup == 3) {
    if constexpr (BY_ROLE) registers_decrease<24>();
    if (thread / 32 == CONSUMERS / 32) copy_keys(work, base, &map_k, block_table, block_size, max_blocks, box_rows);
    return;
  }
  if (warpgroup == 0) {
    if constexpr (BY_ROLE) registers_increase<136>();
    load_queries();
    float row_lse;
    score(work, shared, base, scale, softcap, &row_lse);
    named_barrier_arrive(FINISH, CONSUMERS);
    const int at = thread < ROWS ? query_rows[thread] : -1;
    if (at < 0) return;
    if (splits > 1) {
      partial_lse[(i64)blockIdx.y * total_q * heads + at] = row_lse;
    } else {
      const int query = at / heads, head = at % heads;
      const i64 to = cu_q != nullptr ? (i64)head * total_q + query
                                     : ((i64)work.sequence * heads + head) * tq + (query - work.q_start);
      lse[to] = row_lse * 0.693147181f;
    }
    return;
  }
  if constexpr (BY_ROLE) registers_increase<176>();
  load_queries();
  float output[GROUP_BOXES][ROWS / 2] = {};
  sum_values(work, shared, base, warpgroup - 1, output);
  named_barrier_sync(FINISH, CONSUMERS);
  // A part that saw no key is marked by its partial_lse and is not read.
  if (splits > 1 && work.first_tile == work.end_tile) return;
  const float* const inverses = (const float*)(shared + SUMS_AT);
  const int lane = thread % 32, first_column = (warpgroup - 1) * GROUP_BOXES * 64 + thread % 128 / 32 * 16 + lane / 4;
#pragma unroll
  for (int c = 0; c < COLUMNS; c++) {
    const int slot = c / 2 * 8 + lane % 4 * 2 + c % 2, at = query_rows[slot];
    const float inverse = inverses[slot];
    if (at < 0) continue;
    float* const parts_to = partial_o + ((i64)blockIdx.y * total_q * heads + at) * DV + first_column;
    u16* const to = o + (i64)at * DV + first_column;
#pragma unroll
    for (int box = 0; box < GROUP_BOXES; box++) {
#pragma unroll
      for (int low = 0; low < 2; low++) {
        const float value = output[box][c / 2 * 4 + low * 2 + c % 2] * inverse;
        if (splits > 1) {
          parts_to[box * 64 + low * 8] = value;
        } else {
          to[box * 64 + low * 8] = (u16)pack(value, 0.0f);
        }
      }
    }
  }
}
