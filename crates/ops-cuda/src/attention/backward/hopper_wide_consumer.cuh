// The consumer warpgroups of the Hopper attention backward kernel for D 256; see hopper.cu.
//
// dK and dV of 64 keys fill the registers of one warpgroup each. So the first consumer computes S^T, the weights and dV, the
// second dP^T, dS^T and dK; the weights go from the first to the second through shared memory, thread to thread, and dS^T
// from the second to both. Each computes 128 channels of dQ, 64 at a time.

static_assert(D == 256 && BLOCK_K == 64 && BLOCK_Q == 64, "the layout of D 256");

// Waits until `reduce` sets the address of the sums of a tile of dQ, when it is the block's turn to add to them, and returns it.
// Bit 0 is set if the block is the first.
DEVICE u64 query_gradient_turn(u32 base, u32 turn) {
  mbarrier_wait(base + AT_GRAD_Q_EMPTY, turn & 1);
  u64 to;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(to) : "r"(base + AT_GRAD_Q) : "memory");
  return to;
}

// Adds accumulators of a warpgroup to the sums at `to`, or stores them if bit 0 is set.
template <int count>
DEVICE void add_query_gradient(u64 to, const float (&dq)[count]) {
  const bool first = to & 1;
  to = (to & ~1ull) + 16 * thread_of_warpgroup();
  if (first) {
#pragma unroll
    for (int i = 0; i < count / 4; i++) {
      asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + i * 2048), "f"(dq[4 * i]), "f"(dq[4 * i + 1]),
                   "f"(dq[4 * i + 2]), "f"(dq[4 * i + 3])
                   : "memory");
    }
  } else {
#pragma unroll
    for (int i = 0; i < count / 4; i++) {
      asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + i * 2048), "f"(dq[4 * i]),
                   "f"(dq[4 * i + 1]), "f"(dq[4 * i + 2]), "f"(dq[4 * i + 3])
                   : "memory");
    }
  }
}

// Half of dQ of a tile: 128 channels, of K from `keys` on.
DEVICE void wide_query_gradient(u32 base, int index, u32 turn) {
  const u32 ds = (base >> 4) + turn % 2 * (DS_BYTES >> 4) + (AT_DS >> 4);
  const u32 keys = (base >> 4) + index * 2 * (BOX_K_BYTES >> 4) + (AT_K >> 4);
  u64 to = 0;
#pragma unroll
  for (int part = 0; part < 2; part++) {
    float dq[32];
    issue_query_gradient(dq, ds, keys + part * (BOX_K_BYTES >> 4));
    wgmma_wait<0>();
    keep(dq);
    if (part == 1) release(base + AT_DS_EMPTY + 8 * (turn % 2));
    if (part == 0) to = query_gradient_turn(base, turn) + index * GRAD_Q_PART_BYTES;
    add_query_gradient(to + part * (GRAD_Q_PART_BYTES / 2), dq);
  }
  __syncwarp();
  release(base + AT_GRAD_Q_FULL);
}

// Scores (or products of values and grad_o) of a tile, issued when it has arrived; `full`, `from`: of stage 0.
DEVICE void wide_scores(u32 base, u32 plan, int tile, u32 turn, u32 full, u32 rows, u32 from, float (&s)[BLOCK_Q / 2]) {
  const u32 stage = turn % STAGES;
  mbarrier_wait(base + full + 8 * stage, turn / STAGES & 1);
  if (tile == uniform(PLAN(plan, tail_tile))) {
    clear_rows<D / 64, BLOCK_Q>(base + from + stage * Q_BYTES, PLAN(plan, queries) - tile * BLOCK_Q);
  }
  issue_scores(s, (base >> 4) + (rows >> 4), (base >> 4) + stage * (Q_BYTES >> 4) + (from >> 4));
}

// The tile that follows in the order of `load`.
DEVICE int next_tile(u32 plan, int tile) { return tile > uniform(PLAN(plan, low)) ? tile - 1 : uniform(PLAN(plan, high)); }

DEVICE void wide_values(u32 base, u32 plan, const Shape& shape, float factor, float inner, int left, u32& turn,
                        float (&dv)[D / 2]) {
  float s[BLOCK_Q / 2];
  u32 p[BLOCK_Q / 4];
  int tile = uniform(PLAN(plan, start));
  wide_scores(base, plan, tile, turn, AT_Q_FULL, AT_K, AT_Q, s);
  wgmma_wait<0>();
  keep(s);
#pragma unroll 1
  for (; left > 0; left--, turn++) {
    const u32 stage = turn % STAGES, t = thread_of_warpgroup() % 4;
    const bool cut = tile < PLAN(plan, uncut_low) || tile > PLAN(plan, uncut_high);
    int from[2] = {-(1 << 30), -(1 << 30)}, to[2] = {1 << 30, 1 << 30};
    if (cut) {
      limits(plan, shape, tile, 0, 0, from[0], to[0]);
      limits(plan, shape, tile, 0, 1, from[1], to[1]);
    }
    u32 slopes[BLOCK_Q / 4];
#pragma unroll
    for (int i = 0; i < BLOCK_Q / 8; i++) {
      const float2 minus = read_pair(base + AT_LSE + stage * STATISTIC_BYTES + 8 * t + 32 * i);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float weight[2], slope[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float score = s[4 * i + 2 * half + e];
#if SOFTCAP
          // tanh(x) = 1 - 2 / (1 + e^2x): right to 2^-22, where tanh.approx is right to 2^-11 only.
          score = 1.0f - 2.0f * reciprocal_approximate(1.0f + exp2_approximate(score * inner));
#endif
          weight[e] = exp2_approximate(fmaf(score, factor, e ? -minus.y : -minus.x));
          weight[e] = 8 * i + e >= from[half] && 8 * i + e <= to[half] ? weight[e] : 0.0f;
          slope[e] = SOFTCAP ? weight[e] * (1.0f - score * score) : weight[e];
        }
        p[2 * i + half] = pack(weight[0], weight[1]);
        slopes[2 * i + half] = SOFTCAP ? pack(slope[0], slope[1]) : p[2 * i + half];
      }
    }
    // The weights of this tile for the other consumer.
    mbarrier_wait(base + AT_P_EMPTY + 8 * (turn % 2), (turn / 2 & 1) ^ 1);
    const u32 target = base + AT_P + turn % 2 * P_BYTES + 16 * thread_of_warpgroup();
#pragma unroll
    for (int i = 0; i < BLOCK_Q / 16; i++) {
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(target + i * 2048), "r"(slopes[4 * i]),
                   "r"(slopes[4 * i + 1]), "r"(slopes[4 * i + 2]), "r"(slopes[4 * i + 3])
                   : "memory");
    }
    __syncwarp();
    release(base + AT_P_FULL + 8 * (turn % 2));
    release(base + AT_Q_EMPTY + 8 * stage);
    mbarrier_wait(base + AT_GRAD_O_FULL + 8 * stage, turn / STAGES & 1);
    if (tile == uniform(PLAN(plan, tail_tile))) {
      clear_rows<D / 64, BLOCK_Q>(base + AT_GRAD_O + stage * Q_BYTES, PLAN(plan, queries) - tile * BLOCK_Q);
    }
    issue_gradient(dv, p, (base >> 4) + stage * (Q_BYTES >> 4) + (AT_GRAD_O >> 4));
    tile = next_tile(plan, tile);
    if (left > 1) wide_scores(base, plan, tile, turn + 1, AT_Q_FULL, AT_K, AT_Q, s);
    wgmma_wait<0>();
    keep(s);
    keep(dv);
    release(base + AT_GRAD_O_EMPTY + 8 * stage);
    wait_stores(base + AT_DS_FULL + 8 * (turn % 2), turn / 2 & 1);
    wide_query_gradient(base, 0, turn);
  }
}

DEVICE void wide_keys(u32 base, u32 plan, int left, u32& turn, float (&dk)[D / 2]) {
  float dp[BLOCK_Q / 2];
  u32 ds[BLOCK_Q / 4];
  int tile = uniform(PLAN(plan, start));
  wide_scores(base, plan, tile, turn, AT_GRAD_O_FULL, AT_V, AT_GRAD_O, dp);
  wgmma_wait<0>();
  keep(dp);
#pragma unroll 1
  for (; left > 0; left--, turn++) {
    const u32 stage = turn % STAGES;
    // The statistics of grad_o are in the same stage: it is released after they are read.
    const u32 delta = base + AT_DELTA + stage * STATISTIC_BYTES + 8 * (thread_of_warpgroup() % 4);
    mbarrier_wait(base + AT_P_FULL + 8 * (turn % 2), turn / 2 & 1);
    const u32 source = base + AT_P + turn % 2 * P_BYTES + 16 * thread_of_warpgroup();
#pragma unroll
    for (int i = 0; i < BLOCK_Q / 16; i++) {
      u32 p[4];
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(p[0]), "=r"(p[1]), "=r"(p[2]), "=r"(p[3])
                   : "r"(source + i * 2048)
                   : "memory");
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const float2 minus = read_pair(delta + 64 * i + 32 * j);
        const int at = 4 * (2 * i + j);
        ds[4 * i + 2 * j] = multiply_pair(p[2 * j], dp[at] - minus.x, dp[at + 1] - minus.y);
        ds[4 * i + 2 * j + 1] = multiply_pair(p[2 * j + 1], dp[at + 2] - minus.x, dp[at + 3] - minus.y);
      }
    }
    __syncwarp();
    release(base + AT_P_EMPTY + 8 * (turn % 2));
    release(base + AT_GRAD_O_EMPTY + 8 * stage);
    mbarrier_wait(base + AT_Q_FULL + 8 * stage, turn / STAGES & 1);
    if (tile == uniform(PLAN(plan, tail_tile))) {
      clear_rows<D / 64, BLOCK_Q>(base + AT_Q + stage * Q_BYTES, PLAN(plan, queries) - tile * BLOCK_Q);
    }
    issue_gradient(dk, ds, (base >> 4) + stage * (Q_BYTES >> 4) + (AT_Q >> 4));
    mbarrier_wait(base + AT_DS_EMPTY + 8 * (turn % 2), (turn / 2 & 1) ^ 1);
    const int lane = lane_of_warp(), row = thread_of_warpgroup() / 32 * 16 + lane % 16;
    const u32 to = base + AT_DS + turn % 2 * DS_BYTES + row * 128 + ((lane / 16 ^ (row & 7)) << 4);
#pragma unroll
    for (int i = 0; i < BLOCK_Q / 16; i++) {
      store_matrices(to ^ (i % 4 * 32), ds[4 * i], ds[4 * i + 1], ds[4 * i + 2], ds[4 * i + 3]);
    }
    __syncwarp();
    release(base + AT_DS_FULL + 8 * (turn % 2));
    tile = next_tile(plan, tile);
    if (left > 1) wide_scores(base, plan, tile, turn + 1, AT_GRAD_O_FULL, AT_V, AT_GRAD_O, dp);
    wgmma_wait<0>();
    keep(dp);
    keep(dk);
    release(base + AT_Q_EMPTY + 8 * stage);
    wait_stores(base + AT_DS_FULL + 8 * (turn % 2), turn / 2 & 1);
    wide_query_gradient(base, 1, turn);
  }
}

DEVICE void consume(u32 base, const Shape& shape, u16* grad_k, u16* grad_v, float scale, float softcap) {
#if SOFTCAP
  const float inner = 2.0f * LOG2_E * scale / softcap, factor = softcap * LOG2_E;
#else
  const float inner = 0.0f, factor = scale * LOG2_E;
#endif
  const int index = consumer_index();
  float gradient[D / 2];
  u32 turn = 0, used = 0;
  for (u32 block = 0;; block++) {
    mbarrier_wait(base + AT_PLAN_FULL + 8 * (block % 2), block / 2 & 1);
    const u32 plan = base + AT_PLANS + block % 2 * PLAN_BYTES;
    if (uniform(PLAN(plan, kv_head)) < 0) break;
#pragma unroll
    for (int i = 0; i < D / 2; i++) gradient[i] = 0.0f;
    const int left = uniform(PLAN(plan, high) - PLAN(plan, low) + 1) * (shape.heads / shape.kv_heads);
    if (left > 0) {
      mbarrier_wait(base + AT_KV_FULL, used & 1);
      used++;
      if (PLAN(plan, cut_keys) < BLOCK_K) {
        clear_rows<D / 64, BLOCK_K>(base + AT_K, PLAN(plan, cut_keys));
        clear_rows<D / 64, BLOCK_K>(base + AT_V, PLAN(plan, cut_keys));
      }
      if (index == 0) {
        wide_values(base, plan, shape, factor, inner, left, turn, gradient);
      } else {
        wide_keys(base, plan, left, turn, gradient);
      }
      release(base + AT_KV_EMPTY);
    }
    const int thread = thread_of_warpgroup(), rows = PLAN(plan, key_rows);
    const int row = PLAN(plan, first_key) + thread / 32 * 16 + thread % 32 / 4;
    const i64 out = ((i64)PLAN(plan, k_token) * shape.kv_heads + PLAN(plan, kv_head)) * D_STORED;
    __syncwarp();
    release(base + AT_PLAN_EMPTY + 8 * (block % 2));
    u16* const to = index == 0 ? grad_v : grad_k;
    write_gradient(gradient, to + out, row, rows, shape.kv_heads * D_STORED, index == 0 ? 1.0f : scale,
                   thread % 4);
  }
}
