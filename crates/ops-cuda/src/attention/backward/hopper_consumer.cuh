// The consumer warpgroups of the Hopper attention backward kernel for D 64 and 128; see hopper.cu.

// The first half of a tile of queries, whose scores S^T have been issued: the weights, the issue of dV, and dP^T. Afterwards
// p has the weights, slopes the weights times the slope of the cap, and dp the products.
//
// The loop that calls this waits for every product before its end: ptxas serializes all products otherwise.
DEVICE void process_weights(u32 base, int index, u32 plan, const Shape& shape, float factor, float outer, int tile, u32 turn,
                            float (&dv)[D / 2], float (&s)[BLOCK_Q / 2], float (&dp)[BLOCK_Q / 2], u32 (&p)[BLOCK_Q / 4],
                            u32 (&slopes)[BLOCK_Q / 4]) {
  const u32 stage = turn % STAGES;
  // Read here, so that the products' issue hides the latency.
  const int tail_tile = uniform(PLAN(plan, tail_tile));
  const bool cut = tile < PLAN(plan, uncut_low) || tile > PLAN(plan, uncut_high);
  mbarrier_wait(base + AT_GRAD_O_FULL + 8 * stage, turn / STAGES & 1);
  if (tile == tail_tile) {
    clear_rows<D / 64, BLOCK_Q>(base + AT_GRAD_O + stage * Q_BYTES, PLAN(plan, queries) - tile * BLOCK_Q);
  }
  const u32 values = (base >> 4) + index * (64 * 128 >> 4) + (AT_V >> 4);
  const u32 grad_o = (base >> 4) + stage * (Q_BYTES >> 4) + (AT_GRAD_O >> 4);
  // Tiles of 128 queries with a cap: the registers do not suffice for dP^T, the scores, the weights and the slopes.
  constexpr bool late = SOFTCAP && BLOCK_Q == 128;
  if (!late) issue_scores(dp, values, grad_o);
  const u32 lse = base + AT_LSE + stage * STATISTIC_BYTES + 8 * (thread_of_warpgroup() % 4);
#if SOFTCAP
  wgmma_wait<late ? 0 : 1>();
  keep(s);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int from = -(1 << 30), to = 1 << 30;
    if (cut) limits(plan, shape, tile, 64 * index, half, from, to);
#pragma unroll
    for (int i = 0; i < BLOCK_Q / 8; i++) {
      const float2 minus = read_pair(lse + 32 * i);
      float weight[2], slope[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        // tanh(x) = 1 - 2 / (1 + e^2x): right to 2^-22, where tanh.approx is right to 2^-11 only.
        const float power = exp2_approximate(s[4 * i + 2 * half + e] * factor);
        const float capped = 1.0f - 2.0f * reciprocal_approximate(1.0f + power);
        weight[e] = exp2_approximate(capped * outer - (e ? minus.y : minus.x));
        weight[e] = 8 * i + e >= from && 8 * i + e <= to ? weight[e] : 0.0f;
        slope[e] = weight[e] * (1.0f - capped * capped);
      }
      p[2 * i + half] = pack(weight[0], weight[1]);
      slopes[2 * i + half] = pack(slope[0], slope[1]);
    }
  }
#else
  // Some are read before the wait, which hides their latency.
  float2 ahead[4];
#pragma unroll
  for (int i = 0; i < 4; i++) ahead[i] = read_pair(lse + 32 * i);
  wgmma_wait<1>();
  keep(s);
  // In two halves: the products of the first run while the weights of the second are computed.
#pragma unroll
  for (int part = 0; part < 2; part++) {
    constexpr int columns = BLOCK_Q / 16;
#pragma unroll
    for (int i = part * columns; i < (part + 1) * columns; i++) {
      const float2 minus = ahead[i % 4];
      if (i + 4 < BLOCK_Q / 8) ahead[i % 4] = read_pair(lse + 32 * (i + 4));
#pragma unroll
      for (int j = 0; j < 4; j++) s[4 * i + j] = exp2_approximate(fmaf(s[4 * i + j], factor, j % 2 ? -minus.y : -minus.x));
    }
    if (cut) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int from, to;
        limits(plan, shape, tile, 64 * index, half, from, to);
#pragma unroll
        for (int i = part * columns; i < (part + 1) * columns; i++) {
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const bool seen = 8 * i + e >= from && 8 * i + e <= to;
            s[4 * i + 2 * half + e] = seen ? s[4 * i + 2 * half + e] : 0.0f;
          }
        }
      }
    }
#pragma unroll
    for (int i = 2 * part * columns; i < 2 * (part + 1) * columns; i++) slopes[i] = p[i] = pack(s[2 * i], s[2 * i + 1]);
    if (part == 0) {
      issue_gradient<0, BLOCK_Q / 32>(dv, p, grad_o);
    } else {
      issue_gradient<BLOCK_Q / 32>(dv, p, grad_o);
    }
  }
#endif
#if SOFTCAP
  if (late) issue_scores(dp, values, grad_o);
  issue_gradient(dv, p, grad_o);
#endif
}

// The second half: the gradients of the scores, dS^T. dV has ended afterwards.
DEVICE void process_gradients(u32 base, u32 turn, const u32 (&slopes)[BLOCK_Q / 4], float (&dp)[BLOCK_Q / 2],
                              u32 (&ds)[BLOCK_Q / 4]) {
  const u32 stage = turn % STAGES, delta = base + AT_DELTA + stage * STATISTIC_BYTES + 8 * (thread_of_warpgroup() % 4);
  float2 ahead[4];
#pragma unroll
  for (int i = 0; i < 4; i++) ahead[i] = read_pair(delta + 32 * i);
  wgmma_wait<1>();
  keep(dp);
#pragma unroll
  for (int i = 0; i < BLOCK_Q / 8; i++) {
    const float2 minus = ahead[i % 4];
    if (i + 4 < BLOCK_Q / 8) ahead[i % 4] = read_pair(delta + 32 * (i + 4));
    ds[2 * i] = multiply_pair(slopes[2 * i], dp[4 * i] - minus.x, dp[4 * i + 1] - minus.y);
    ds[2 * i + 1] = multiply_pair(slopes[2 * i + 1], dp[4 * i + 2] - minus.x, dp[4 * i + 3] - minus.y);
  }
  wgmma_wait<0>();
  release(base + AT_GRAD_O_EMPTY + 8 * stage);
}

// dS^T to dK from registers, and to shared memory, where both consumers take it from for dQ.
DEVICE void exchange_gradients(u32 base, int index, u32 turn, const u32 (&ds)[BLOCK_Q / 4], float (&dk)[D / 2]) {
  const u32 stage = turn % STAGES;
  issue_gradient(dk, ds, (base >> 4) + stage * (Q_BYTES >> 4) + (AT_Q >> 4));
  mbarrier_wait(base + AT_DS_EMPTY + 8 * (turn % DS_STAGES), (turn / DS_STAGES & 1) ^ 1);
  const int lane = lane_of_warp(), row = index * 64 + thread_of_warpgroup() / 32 * 16 + lane % 16;
  const u32 to = base + AT_DS + turn % DS_STAGES * DS_BYTES + row * 128 + ((lane / 16 ^ (row & 7)) << 4);
#pragma unroll
  for (int i = 0; i < BLOCK_Q / 16; i++) {
    // 16-byte unit 2 (i % 4) of the row, plus 1 for lanes 16 on; swizzled by the row.
    store_matrices((to + i / 4 * BOX_DS_BYTES) ^ (i % 4 * 32), ds[4 * i], ds[4 * i + 1], ds[4 * i + 2], ds[4 * i + 3]);
  }
  __syncwarp();
  release(base + AT_DS_FULL + 8 * (turn % DS_STAGES));
}

// This consumer's part of dQ to shared memory, for `reduce`.
DEVICE void store_query_gradient(u32 base, int index, u32 turn, const float (&dq)[GRAD_Q_FLOATS / 256]) {
  const u32 buffer = index * GRAD_Q_STAGES + turn % GRAD_Q_STAGES;
  mbarrier_wait(base + AT_GRAD_Q_EMPTY + 8 * buffer, (turn / GRAD_Q_STAGES & 1) ^ 1);
  const u32 to = base + AT_GRAD_Q + buffer * GRAD_Q_PART_BYTES + 16 * thread_of_warpgroup();
#pragma unroll
  for (int i = 0; i < GRAD_Q_FLOATS / 1024; i++) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + i * 2048), "f"(dq[4 * i]), "f"(dq[4 * i + 1]),
                 "f"(dq[4 * i + 2]), "f"(dq[4 * i + 3])
                 : "memory");
  }
  __syncwarp();
  release(base + AT_GRAD_Q_FULL + 8 * buffer);
}

// s = scores of a tile of queries, issued when they have arrived.
DEVICE void start_scores(u32 base, int index, u32 plan, int tile, u32 turn, float (&s)[BLOCK_Q / 2]) {
  const u32 stage = turn % STAGES;
  const int tail_tile = uniform(PLAN(plan, tail_tile));
  mbarrier_wait(base + AT_Q_FULL + 8 * stage, turn / STAGES & 1);
  if (tile == tail_tile) {
    clear_rows<D / 64, BLOCK_Q>(base + AT_Q + stage * Q_BYTES, PLAN(plan, queries) - tile * BLOCK_Q);
  }
  issue_scores(s, (base >> 4) + index * (64 * 128 >> 4) + (AT_K >> 4),
               (base >> 4) + stage * (Q_BYTES >> 4) + (AT_Q >> 4));
}

// dQ of a tile: a consumer computes 64 channels of all queries where BLOCK_Q is 64, and 64 queries where it is 128.
DEVICE void start_query_gradient(u32 base, int index, u32 turn, float (&dq)[GRAD_Q_FLOATS / 256]) {
  issue_query_gradient(
      dq,
      (base >> 4) + turn % DS_STAGES * (DS_BYTES >> 4) + (BLOCK_Q == 64 ? 0 : index * (BOX_DS_BYTES >> 4)) +
          (AT_DS >> 4),
      (base >> 4) + (BLOCK_Q == 64 ? index * (BOX_K_BYTES >> 4) : 0) + (AT_K >> 4));
}

DEVICE void consume(u32 base, const Shape& shape, u16* grad_k, u16* grad_v, float scale, float softcap) {
#if SOFTCAP
  const float factor = 2.0f * LOG2_E * scale / softcap, outer = softcap * LOG2_E;
#else
  const float factor = scale * LOG2_E, outer = 0.0f;
#endif
  const int index = consumer_index();
  float dk[D / 2], dv[D / 2], s[BLOCK_Q / 2];
  u32 turn = 0, used = 0;
  for (u32 block = 0;; block++) {
    mbarrier_wait(base + AT_PLAN_FULL + 8 * (block % 2), block / 2 & 1);
    const u32 plan = base + AT_PLANS + block % 2 * PLAN_BYTES;
    if (uniform(PLAN(plan, kv_head)) < 0) break;
#pragma unroll
    for (int i = 0; i < D / 2; i++) dk[i] = dv[i] = 0.0f;
    int tile = uniform(PLAN(plan, start)), left = uniform(PLAN(plan, high) - PLAN(plan, low)) + 1;
    if (left > 0) {
      left *= shape.heads / shape.kv_heads;
      mbarrier_wait(base + AT_KV_FULL, used & 1);
      used++;
      if (PLAN(plan, cut_keys) < BLOCK_K) {
        clear_rows<D / 64, BLOCK_K>(base + AT_K, PLAN(plan, cut_keys));
        clear_rows<D / 64, BLOCK_K>(base + AT_V, PLAN(plan, cut_keys));
      }
      float dp[BLOCK_Q / 2], dq[GRAD_Q_FLOATS / 256];
      u32 p[BLOCK_Q / 4], slopes[BLOCK_Q / 4], ds[BLOCK_Q / 4];
      // The consumers are half a step apart, so that one's products run under the other's arithmetic: the second starts when the
      // first has issued its products. dQ, which needs dS of both, is one tile late for this reason.
      if (index == 1) named_barrier_sync(1, 256);
      start_scores(base, index, plan, tile, turn, s);
      process_weights(base, index, plan, shape, factor, outer, tile, turn, dv, s, dp, p, slopes);
      if (index == 0) named_barrier_arrive(1, 256);
      process_gradients(base, turn, slopes, dp, ds);
      bool first = true;
#pragma unroll 1
      while (--left > 0) {
        const int low = uniform(PLAN(plan, low)), high = uniform(PLAN(plan, high));
        exchange_gradients(base, index, turn, ds, dk);
        // In the first iteration there is no dQ: the product is computed from anything and not stored.
        if (!first) wait_stores(base + AT_DS_FULL + 8 * ((turn - 1) % DS_STAGES), (turn - 1) / DS_STAGES & 1);
        start_query_gradient(base, index, turn - 1, dq);
        tile = tile > low ? tile - 1 : high;
        turn++;
        // The registers of D 128 do not suffice for S while dK is in flight.
        if (D == 64) start_scores(base, index, plan, tile, turn, s);
        wgmma_wait<D == 64 ? 2 : 1>();
        keep(ds);
        release(base + AT_Q_EMPTY + 8 * ((turn - 1) % STAGES));
        if (D == 128) start_scores(base, index, plan, tile, turn, s);
        wgmma_wait<1>();
        keep(dq);
        if (!first) {
          release(base + AT_DS_EMPTY + 8 * ((turn - 2) % DS_STAGES));
          store_query_gradient(base, index, turn - 2, dq);
        }
        first = false;
        process_weights(base, index, plan, shape, factor, outer, tile, turn, dv, s, dp, p, slopes);
        process_gradients(base, turn, slopes, dp, ds);
      }
      exchange_gradients(base, index, turn, ds, dk);
      wgmma_wait<0>();
      release(base + AT_Q_EMPTY + 8 * (turn % STAGES));
#pragma unroll 1
      for (u32 last = first ? turn : turn - 1; last <= turn; last++) {
        wait_stores(base + AT_DS_FULL + 8 * (last % DS_STAGES), last / DS_STAGES & 1);
        start_query_gradient(base, index, last, dq);
        wgmma_wait<0>();
        keep(dq);
        release(base + AT_DS_EMPTY + 8 * (last % DS_STAGES));
        if (last == turn) release(base + AT_KV_EMPTY);
        store_query_gradient(base, index, last, dq);
      }
      keep(dk);
      keep(dv);
      turn++;
    }
    const int thread = thread_of_warpgroup(), rows = PLAN(plan, key_rows);
    const int row = PLAN(plan, first_key) + 64 * index + thread / 32 * 16 + thread % 32 / 4;
    const i64 out = ((i64)PLAN(plan, k_token) * shape.kv_heads + PLAN(plan, kv_head)) * D_STORED;
    __syncwarp();
    release(base + AT_PLAN_EMPTY + 8 * (block % 2));
    write_gradient(dk, grad_k + out, row, rows, shape.kv_heads * D_STORED, scale, thread % 4);
    write_gradient(dv, grad_v + out, row, rows, shape.kv_heads * D_STORED, 1.0f, thread % 4);
  }
}

