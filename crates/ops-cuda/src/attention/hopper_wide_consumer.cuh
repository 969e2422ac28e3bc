// The consumer warpgroups of the wide Hopper kernels; see hopper_wide.cuh.

// Four 8 x 8 tiles of 16-bit elements from a warp's registers, lane l naming row l % 8 of tile l / 8.
DEVICE void store_matrices(u32 to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}

// Arrives at a barrier of another block, given by its address in the cluster's window. Without .release.cluster, which
// the compiler turns into a membar of the whole device: only reads precede it here, and their values have been
// used.
DEVICE void arrive_remote(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Four floats to another block of the cluster, counted on its barrier.
DEVICE void store_async(u32 to, u32 barrier, const float* x) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(to),
      "r"(barrier), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
      : "memory");
}

DEVICE float load_shared(u32 from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}

DEVICE void store_shared(u32 to, float x) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory"); }

// State of a consumer warpgroup, with two positions in the ring: the next stage to multiply and the next to release.
struct Consumer {
  Part part;
  int group, thread, warp, lane, row;  // row: the thread's first of the 64
  u64 q, k, p, v;                      // descriptors, of stage 0 for k and v
  Ring next, done;
};

// A warp arrives at the empty barrier of a stage that it has read.
DEVICE void release(Consumer& me) {
  const u32 barrier = me.part.base + AT_EMPTY + 8 * me.done.stage;
  if (me.lane == 0) mbarrier_arrive(barrier);
  me.done.advance();
}

// s (+)= Q K^T over channel group c, issued.
DEVICE void issue_scores(Consumer& me, float (&s)[BLOCK_K / 2], int c) {
  mbarrier_wait(me.part.base + AT_FULL + 8 * me.next.stage, me.next.parity);
  const u64 q = me.q + c * (8192 >> 4), k = me.k + me.next.stage * (STAGE_BYTES >> 4);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; i++) wgmma_ss<0>(s, q + 2 * i, k + 2 * i, c + i);
  wgmma_commit();
  me.next.advance();
}

// Zeroes the value rows of a stage from `first` on, in this warpgroup's channels: the memory past a sequence's last key
// is another sequence or unused, and a weight of 0 times NaN is NaN.
template <int GROUPS>
DEVICE void clear_values(const Consumer& me, int first) {
  const u32 stage = me.part.base + AT_STAGES + me.next.stage * STAGE_BYTES;
  const int group0 = me.group == 0 ? 0 : me.part.v_groups - GROUPS;
  for (int at = me.thread; at < V_KEYS * GROUPS * 8; at += 128) {
    const int row = at / 8 % 8, group = at / 64 % GROUPS, octet = at / 64 / GROUPS;
    if (octet * 8 + row < first) continue;
    const u32 to = stage + (octet * me.part.v_groups + group0 + group) * 1024 + row * 128 + at % 8 * 16;
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
  }
  fence_async_shared();
  named_barrier_sync(OWN + me.group, 128);
}

// The accumulator of 64 rows and 64 GROUPS channels: a product writes 256 at most.
template <int GROUPS>
struct Output {
  static constexpr int FIRST = GROUPS > 4 ? (GROUPS + 1) / 2 : GROUPS, SECOND = GROUPS - FIRST;
  float first[32 * FIRST], second[SECOND > 0 ? 32 * SECOND : 1];
};

// o += P V over stage i of the values, issued.
template <int GROUPS, bool last>
DEVICE void issue_output(Consumer& me, Output<GROUPS>& o, int i, int keys_left) {
  mbarrier_wait(me.part.base + AT_FULL + 8 * me.next.stage, me.next.parity);
  if (last && (i + 1) * V_KEYS > keys_left) clear_values<GROUPS>(me, keys_left - i * V_KEYS);
  const u64 v = me.v + me.next.stage * (STAGE_BYTES >> 4);
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < V_KEYS / 16; j++) {
    const int key = i * V_KEYS + 16 * j;
    const u64 p = me.p + key / 64 * (8192 >> 4) + key % 64 / 8, values = v + j * 2 * me.part.v_groups * (1024 >> 4);
    wgmma_ss<1>(o.first, p, values, 1);
    if constexpr (GROUPS > 4) wgmma_ss<1>(o.second, p, values + Output<GROUPS>::FIRST * (1024 >> 4), 1);
  }
  wgmma_commit();
  me.next.advance();
}

// Packed weights, [keys / 64][row][64] with a 128-byte swizzle.
DEVICE void store_weights(const Consumer& me, const u32 (&p)[BLOCK_K / 4]) {
  const int row = me.warp * 16 + me.lane % 16;
  const u32 to = me.part.base + AT_P + row * 128;
#pragma unroll
  for (int i = 0; i < BLOCK_K / 8; i += 2) {
    const int chunk = me.group * (BLOCK_K / 8) + i + me.lane / 16;
    const u32 at = to + chunk / 8 * 8192 + ((chunk ^ row) % 8) * 16;
    store_matrices(at, p[2 * i], p[2 * i + 1], p[2 * i + 2], p[2 * i + 3]);
  }
  fence_async_shared();
}

#if SPLIT == 2
// Partial scores go to the same warp of the block with the other half of the channels, into a buffer that this warp's
// peer has to have read.
DEVICE void announce_scores(const Consumer& me, int step) {
  const int warp = 4 * me.group + me.warp;
  if (me.lane == 0) mbarrier_expect(me.part.base + AT_X_FULL + 8 * warp, 64 * BLOCK_K);
  if (step > me.part.step_begin) {
    mbarrier_wait(me.part.base + AT_X_FREE + 8 * warp, (step - me.part.step_begin - 1) & 1);
  }
}

// They are sent in parts: the link to the other block takes about 16 bytes a cycle, and while stores queue for it the
// warp reaches no barrier, so it issues no product either.
template <int part, int parts>
DEVICE void send_scores(const Consumer& me, const float (&w)[BLOCK_K / 2]) {
  const int warp = 4 * me.group + me.warp;
  const u32 peer = me.part.half ^ 1;
  const u32 to = cluster_address(me.part.base + AT_X + warp * (64 * BLOCK_K) + me.lane * 16, peer);
  const u32 barrier = cluster_address(me.part.base + AT_X_FULL + 8 * warp, peer);
#pragma unroll
  for (int i = part * (BLOCK_K / 8) / parts; i < (part + 1) * (BLOCK_K / 8) / parts; i++) {
    store_async(to + i * 512, barrier, w + 4 * i);
  }
}

// Both blocks add the same two values, so both have the same bits.
DEVICE void receive_scores(const Consumer& me, float (&w)[BLOCK_K / 2], int step) {
  const int warp = 4 * me.group + me.warp;
  const u32 from = me.part.base + AT_X + warp * (64 * BLOCK_K) + me.lane * 16;
  mbarrier_wait(me.part.base + AT_X_FULL + 8 * warp, (step - me.part.step_begin) & 1);
#pragma unroll
  for (int i = 0; i < BLOCK_K / 8; i++) {
    float x[4];
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(from + i * 512)
                 : "memory");
#pragma unroll
    for (int j = 0; j < 4; j++) w[4 * i + j] += x[j];
  }
  __syncwarp();
  if (me.lane == 0) arrive_remote(cluster_address(me.part.base + AT_X_FREE + 8 * warp, me.part.half ^ 1));
}
#endif

// Growth of the row maximum, in powers of 2, up to which o and the sums keep their reference: weights are then at most
// 2^8, far inside bf16, f16 and the sums, and the accumulator is seldom rescaled.
#define GROWTH 8.0f

// Raises both rows' references to the scores of both warpgroups. Returns whether o must be multiplied by `rescale`.
DEVICE bool update_rows(const Consumer& me, const float (&w)[BLOCK_K / 2], Rows& rows, float factor,
                        float (&rescale)[2]) {
  float top[4];
#pragma unroll
  for (int j = 0; j < 4; j++) top[j] = w[j];
#pragma unroll
  for (int i = 1; i < BLOCK_K / 8; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) top[j] = fmaxf(top[j], w[4 * i + j]);
  }
  float most[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    most[r] = quad_max(fmaxf(top[2 * r], top[2 * r + 1]));
    const u32 mine = me.part.base + AT_ROWS + (64 * me.group + me.row + 8 * r) * 4;
    if (me.lane % 4 == 0) store_shared(mine, most[r]);
  }
  named_barrier_sync(MAXIMA_STORED, 256);
  bool grew = false;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const u32 others = me.part.base + AT_ROWS + (64 * (me.group ^ 1) + me.row + 8 * r) * 4;
    const float all = fmaxf(most[r], load_shared(others)) * factor;
    rescale[r] = 1.0f;
    // From a reference of -inf any visible score is a growth, and rescales zeros by 0.
    if (all > rows.reference[r] + GROWTH) {
      rescale[r] = exp2_approximate(rows.reference[r] - all);
      rows.reference[r] = all;
      rows.sum[r] *= rescale[r];
      grew = true;
    }
  }
  return __any_sync(0xffffffff, grew);
}

// Converts the scores of one half of this warpgroup's keys to weights, adds them to the sums and packs them in the
// layout of the A fragment of P V.
template <int half>
DEVICE void weigh_half(const float (&w)[BLOCK_K / 2], Rows& rows, float factor, u32 (&p)[BLOCK_K / 4]) {
  float sum[4] = {rows.sum[0], 0.0f, rows.sum[1], 0.0f};
  float minus[2];
#pragma unroll
  for (int r = 0; r < 2; r++) minus[r] = rows.reference[r] == NEGATIVE_INFINITY ? 0.0f : -rows.reference[r];
#pragma unroll
  for (int i = half * BLOCK_K / 16; i < (half + 1) * BLOCK_K / 16; i++) {
    float x[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      x[j] = exp2_approximate(fmaf(w[4 * i + j], factor, minus[j / 2]));
      sum[j] += x[j];
    }
    p[2 * i] = pack(x[0], x[1]);
    p[2 * i + 1] = pack(x[2], x[3]);
  }
  rows.sum[0] = sum[0] + sum[1];
  rows.sum[1] = sum[2] + sum[3];
}

template <int GROUPS>
DEVICE void consume(Consumer& me, const Tile& tile, const Shape& shape, u16* output, float* lse, float scale,
                    float softcap) {
#if SOFTCAP
  const float inner = 2.0f * 1.44269504089f * scale / softcap, outer = softcap * 1.44269504089f, factor = 1.0f;
#else
  const float factor = scale * 1.44269504089f;
#endif
  const int t = me.lane % 4;
  const Visible visible[2] = {visible_keys(shape, tile, tile.row + me.row),
                              visible_keys(shape, tile, tile.row + me.row + 8)};
#if SOFTCAP && SPLIT == 1 && DV == 576
  // Recomputed in every step: as variables they exceed this configuration's registers by two.
#define common_first visible_keys(shape, tile, tile.row + 63).first
#define common_last visible_keys(shape, tile, tile.row).last
#else
  const int common_first = visible_keys(shape, tile, tile.row + 63).first;
  const int common_last = visible_keys(shape, tile, tile.row).last;
#endif
  Rows rows = {{NEGATIVE_INFINITY, NEGATIVE_INFINITY}, {0.0f, 0.0f}};
  Output<GROUPS> o;
  float s[BLOCK_K / 2], w[BLOCK_K / 2], rescale[2];
  u32 p[BLOCK_K / 4];
#pragma unroll
  for (int i = 0; i < 32 * o.FIRST; i++) o.first[i] = 0.0f;
#pragma unroll
  for (int i = 0; i < 32 * o.SECOND; i++) o.second[i] = 0.0f;

  // Turns products into final scores (exchange, softcap, mask) and updates the rows' references.
  auto judge = [&](int step) {
#if SPLIT == 2
    receive_scores(me, w, step);
#endif
#if SOFTCAP
    cap_scores(w, inner, outer);
#endif
    const int first = step * STEP_K + me.group * BLOCK_K;
    if (first + BLOCK_K - 1 > common_last || first < common_first) mask_scores(w, first + 2 * t, visible);
    return update_rows(me, w, rows, factor, rescale);
  };
  auto take = [&](int step) {
    keep(s);
#pragma unroll
    for (int i = 0; i < BLOCK_K / 2; i++) w[i] = s[i];
#if SPLIT == 2
    announce_scores(me, step);
#endif
  };
  auto rescale_output = [&](bool grew) {
    if (!grew) return;
#pragma unroll
    for (int i = 0; i < 32 * o.FIRST; i++) o.first[i] *= rescale[i / 2 % 2];
#pragma unroll
    for (int i = 0; i < 32 * o.SECOND; i++) o.second[i] *= rescale[i / 2 % 2];
  };

  int step = me.part.step_begin;
  if (step < me.part.step_end) {
    mbarrier_wait(me.part.base + AT_Q_FULL, 0);
#pragma unroll 1
    for (int c = 0; c < me.part.qk_groups; c++) {
      issue_scores(me, s, c);
      wgmma_wait<1>();
      if (c > 0) release(me);
    }
    wgmma_wait<0>();
    release(me);
    take(step);
#if SPLIT == 2
    send_scores<0, 1>(me, w);
#endif
    bool grew = judge(step);
    if (step + 1 < me.part.step_end) issue_scores(me, s, 0);
#pragma unroll 1
    for (; step + 1 < me.part.step_end; step++) {
      // The first product of the next scores is running. The others are issued between the parts of the softmax.
      named_barrier_arrive(1 + (me.group ^ 1), 256);
      issue_scores(me, s, 1);
      weigh_half<0>(w, rows, factor, p);
      wgmma_wait<1>();
      release(me);
      issue_scores(me, s, 2);
      weigh_half<1>(w, rows, factor, p);
      rescale_output(grew);
      wgmma_wait<1>();
      release(me);
      named_barrier_sync(1 + me.group, 256);
      store_weights(me, p);
#pragma unroll 1
      for (int c = 3; c < me.part.qk_groups; c++) {
        issue_scores(me, s, c);
        wgmma_wait<1>();
        release(me);
      }
      named_barrier_sync(P_STORED, 256);
#pragma unroll
      for (int i = 0; i < V_STAGES; i++) {
        issue_output<GROUPS, false>(me, o, i, 0);
        // Two products stay in flight while the new scores are processed.
        if (i == JUDGE - 1) continue;
        if (i == JUDGE) {
          grew = judge(step + 1);
          wgmma_wait<1>();
          release(me);
        } else {
          wgmma_wait<1>();
        }
        release(me);
        if (i == 0) take(step + 1);
#if SPLIT == 2
        if (i == 0) send_scores<0, SEND_STAGES>(me, w);
        if (i == 1 && SEND_STAGES > 1) send_scores<1, SEND_STAGES>(me, w);
        if (i == 2 && SEND_STAGES > 2) send_scores<2, SEND_STAGES>(me, w);
        if (i == 3 && SEND_STAGES > 3) send_scores<3, SEND_STAGES>(me, w);
#endif
      }
      if (step + 2 < me.part.step_end) {
        issue_scores(me, s, 0);
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
      }
      keep(o.first);
      if constexpr (GROUPS > 4) keep(o.second);
      release(me);
    }
    named_barrier_arrive(1 + (me.group ^ 1), 256);
    weigh_half<0>(w, rows, factor, p);
    weigh_half<1>(w, rows, factor, p);
    rescale_output(grew);
    named_barrier_sync(1 + me.group, 256);
    store_weights(me, p);
    named_barrier_sync(P_STORED, 256);
#pragma unroll 1
    for (int i = 0; i < V_STAGES; i++) {
      issue_output<GROUPS, true>(me, o, i, tile.keys - step * STEP_K);
      wgmma_wait<1>();
      if (i > 0) release(me);
    }
    wgmma_wait<0>();
    keep(o.first);
      if constexpr (GROUPS > 4) keep(o.second);
  }

  // Each warpgroup has summed only the weights of its keys: exchange the sums.
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const float sum = quad_sum(rows.sum[r]);
    if (t == 0) store_shared(me.part.base + AT_ROWS + (64 * me.group + me.row + 8 * r) * 4, sum);
  }
  named_barrier_sync(MAXIMA_STORED, 256);
  const int channel = 64 * (me.part.v_first + (me.group == 0 ? 0 : me.part.v_groups - GROUPS));
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const u32 sums = me.part.base + AT_ROWS + (me.row + 8 * r) * 4;
    const float sum = load_shared(sums) + load_shared(sums + 64 * 4);
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    const int at = tile.row + me.row + 8 * r;
    const bool inside = at < tile.rows;
    u16* to = output + ((i64)(tile.token + at) * shape.heads + tile.head) * DV + channel + 8 * t;
#pragma unroll
    for (int i = 0; i < 2 * GROUPS; i++) {
      u32 x[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int from = 4 * (4 * i + j) + 2 * r;
        const float* at = from < 32 * o.FIRST ? o.first + from : o.second + (from - 32 * o.FIRST);
        x[j] = pack(at[0] * inverse, at[1] * inverse);
      }
      transpose_quad(x, t);
      if (inside) *reinterpret_cast<uint4*>(to + 32 * i) = make_uint4(x[0], x[1], x[2], x[3]);
    }
    if (inside && t == 0 && lse && me.group == 0 && me.part.half == 0) {
      const float value = (rows.reference[r] + log2_approximate(sum)) * 0.69314718056f;
      lse[(i64)tile.lse_start + at] = sum == 0.0f ? NEGATIVE_INFINITY : value;
    }
  }
}
