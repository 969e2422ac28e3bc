// Attention forward for Hopper (sm_90a), head dims 32 to 256: o = softmax(scale Q K^T + mask) V, and lse.
//
// A persistent block has one producer warpgroup, of which one thread issues all copies and one warp picks the tiles, and CONSUMERS warpgroups with
// 64 query rows each, so a tile has BLOCK_Q = 64 CONSUMERS rows. Keys and values are loaded in blocks of BLOCK_K through
// rings of STAGES stages. A consumer issues Q K^T of the next block and P V of this one, then does the softmax of the
// next block while P V runs; with PINGPONG the consumers take turns at issuing, so that one's softmax runs under the
// other's products. See README-hopper.md.
//
// Source: include/hopper.cuh, then attention/hopper_config.cuh, hopper_tile.cuh, hopper_softmax.cuh,
// hopper_products.cuh and hopper.cu.
//
// Macros
//   DTYPE       bf16 or f16, of q, k, v and o
//   D, DV       channels of q and k, of v and o; multiples of 32 up to 256
//   DV_STORED   channels of a row of o where v has fewer than DV: a multiple of 8. The maps give the true channels of q, k
//               and v, and TMA fills the channels past them with zeros
//   BLOCK_K     keys in a block, a multiple of 16 up to 256
//   CONSUMERS   2 or 3
//   STAGES      of K and of V, default 2
//   MASK        0: every query sees every key; 1: window_left and window_right hold (causal is window_right = 0)
//   SOFTCAP     1: logits are capped
//   PINGPONG    1: the consumers take turns, default where D <= 64
//
// Arguments, in this order
//   map_q, map_k, map_v  CUtensorMap by value, 16-bit elements, dimensions from the innermost: channel, head, row,
//       batch, with any strides that TMA takes. Dense: [B, T, heads, channels]. Packed: batch 1, row = token.
//       Box: {W, 1, R, 1} with W = 64 and 128-byte swizzle where the channels (D for q and k, DV for v) are a multiple
//       of 64, else W = 32 and 64-byte swizzle; R = 64 for q, BLOCK_K for k and v. Out of bounds fill: zero. An
//       extent of 0 is encoded as 1 (nothing of it is used).
//   o    [B, Tq, H, DV] or [total, H, DV], 16-byte aligned
//   lse  f32 [B, H, Tq] or [H, total], or null
//   cu_queries, cu_keys  i32 [B + 1], or null when dense
//   key_counts  i32 [B] keys in use of each dense sequence, or null
//   counter     u32 [2], both 0 before the launch; the kernel leaves them 0. Not to be shared by launches that may run
//       at the same time.
//   batch, heads, kv_heads, queries, keys, total   i32; queries is Tq (packed: of the longest sequence), keys is Tk
//       (dense), total is the number of packed query rows
//   window_left, window_right   i32, keys seen before and after the query's own position i + Tk - Tq; -1 is unlimited,
//       others are at most 2^29
//   section     i32, at least 1: (sequence, head) pairs that are processed together; their K and V should fit L2
//   scale, softcap   f32, both above 0 (softcap is read where SOFTCAP is 1)
//
// Launch: grid = min(SMs, B * H * ceil(queries / BLOCK_Q)) (nothing to launch when that is 0),
//   block = 128 (CONSUMERS + 1), dynamic shared memory =
//   2 D BLOCK_Q + 2 STAGES BLOCK_K (D + DV) + 2048 bytes.

// A slot of a ring of stages, and the phase parity of the current round.
struct Ring {
  u32 stage, parity;
  DEVICE void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// Copies block number `turn` of keys or of values, counted from the start, into its stage of the ring: BYTES in boxes of
// WIDTH channels.
template <int BYTES, int WIDTH, int BOX_BYTES>
DEVICE void load_block(u32 stages, u32 full, u32 empty, const TensorMap* map, u32 turn, int head, int row, int batch) {
  const u32 stage = turn % STAGES;
  mbarrier_wait(empty + 8 * stage, (turn / STAGES & 1) ^ 1);
  mbarrier_expect(full + 8 * stage, BYTES);
#pragma unroll
  for (int i = 0; i < BYTES / BOX_BYTES; i++) {
    tma_load_4d(stages + stage * BYTES + i * BOX_BYTES, map, full + 8 * stage, i * WIDTH, head, row, batch);
  }
}

DEVICE void load_keys(u32 base, const TensorMap* map, u32 turn, int head, int row, int batch) {
  load_block<K_BYTES, QK_WIDTH, BOX_K_BYTES>(base + AT_K, base + AT_K_FULL, base + AT_K_EMPTY, map, turn, head, row,
                                             batch);
}

DEVICE void load_values(u32 base, const TensorMap* map, u32 turn, int head, int row, int batch) {
  load_block<V_BYTES, V_WIDTH, BOX_V_BYTES>(base + AT_V, base + AT_V_FULL, base + AT_V_EMPTY, map, turn, head, row,
                                            batch);
}

// One warp chooses the tiles, one ahead of the copies.
DEVICE void schedule(u32 base, Plan* plans, const Shape& shape, u32* counter) {
  const int lane = threadIdx.x % 32;
  Cursor cursor = {0, 0};
  int index = blockIdx.x;
  for (u32 turn = 0;; turn++) {
    const Place place = shape.cu_queries ? find_packed(shape, index, cursor) : find_dense(shape, index);
    const bool last = place.sequence < 0;
    mbarrier_wait(base + AT_PLAN_EMPTY + 8 * (turn % 2), (turn / 2 & 1) ^ 1);
    if (lane == 0) {
      Plan& plan = plans[turn % 2];
      if (last) plan.tile.head = -1; else plan = plan_at(shape, place);
      mbarrier_arrive(base + AT_PLAN_FULL + 8 * (turn % 2));
    }
    if (last) break;
    if (lane == 0) index = gridDim.x + atomicAdd(counter, 1);
    index = __shfl_sync(0xffffffff, index, 0);
  }
  // The block that increments counter[1] last resets both: every other block has taken its last tile index.
  __threadfence();
  if (lane == 0 && atomicInc(counter + 1, gridDim.x - 1) == gridDim.x - 1) counter[0] = 0;
}

// One thread issues all copies.
DEVICE void load(u32 base, const Plan* plans, const TensorMap* map_q, const TensorMap* map_k, const TensorMap* map_v) {
  u32 turn = 0;  // blocks of keys and of values copied
  for (u32 tile = 0;; tile++) {
    mbarrier_wait(base + AT_PLAN_FULL + 8 * (tile % 2), tile / 2 & 1);
    const volatile Plan& plan = plans[tile % 2];
    const bool last = plan.tile.head < 0;
    const bool some = !last && plan.tile.block_begin < plan.tile.block_end;
    const int kv_head = plan.kv_head, batch = plan.kv_batch, end_row = plan.first_row;
    int row = plan.last_row;
    // The first keys are loaded before the queries: their stage is free earlier.
    if (some) load_keys(base, map_k, turn, kv_head, row, batch);
#pragma unroll 1
    for (int c = 0; c < CONSUMERS; c++) {
      mbarrier_wait(base + AT_Q_EMPTY + 8 * c, (tile & 1) ^ 1);
      const u32 full = base + AT_Q_FULL + 8 * c;
      if (!some) {
        mbarrier_arrive(full);
        continue;
      }
      mbarrier_expect(full, Q_BYTES);
#pragma unroll
      for (int i = 0; i < D / QK_WIDTH; i++) {
        tma_load_4d(base + AT_Q + c * Q_BYTES + i * 64 * QK_SWIZZLE, map_q, full, i * QK_WIDTH, plan.tile.head,
                    plan.q_row + 64 * c, plan.q_batch);
      }
    }
    if (last) return;
    // All consumers have released the preceding plan.
    if (tile > 0) mbarrier_arrive(base + AT_PLAN_EMPTY + 8 * ((tile - 1) % 2));
    if (!some) continue;
#pragma unroll 1
    for (; row > end_row; row -= BLOCK_K, turn++) {
      load_keys(base, map_k, turn + 1, kv_head, row - BLOCK_K, batch);
      load_values(base, map_v, turn, kv_head, row, batch);
    }
    load_values(base, map_v, turn++, kv_head, row, batch);
  }
}

// One lane of each warp arrives at the empty barrier: this warp is done with a buffer.
DEVICE void release(u32 barrier, int lane) {
  if (lane == 0) mbarrier_arrive(barrier);
}

// Zeroes the value rows of a block from `first` on: the memory past a sequence's last key is another sequence or unused,
// and a weight of 0 times NaN is NaN. Each consumer zeroes all of them, which needs no barrier between consumers;
// they write the same zeros.
DEVICE void clear_values(u32 stage, int first, int thread, int consumer) {
  const int rows = BLOCK_K - first;
#pragma unroll
  for (int c = 0; c < DV / V_WIDTH; c++) {
    const u32 from = stage + c * BOX_V_BYTES + first * V_SWIZZLE;
    for (int at = 16 * thread; at < rows * V_SWIZZLE; at += 16 * 128) {
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(from + at), "r"(0) : "memory");
    }
  }
  fence_async_shared();
  named_barrier_sync(8 + consumer, 128);
}

// Read from the special register each time: one more value in a register through the loop would exceed the registers.
DEVICE int thread_of_warpgroup() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread % 128;
}

DEVICE void consume(u32 base, const Plan* plans, int consumer, const Shape& shape, u16* output, float* lse, float scale,
                    float softcap) {
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int thread_row = 64 * consumer + thread / 32 * 16 + lane / 4, t = lane % 4;
  const u32 own_turn = 1 + consumer, next_turn = 1 + (consumer + 1) % CONSUMERS;
#if SOFTCAP
  const float inner = 2.0f * 1.44269504089f * scale / softcap, outer = softcap * 1.44269504089f, factor = 1.0f;
#else
  const float factor = scale * 1.44269504089f;
#endif
  const u64 q = descriptor_k_major<QK_SWIZZLE>(base + AT_Q + consumer * Q_BYTES);
  const u64 k = descriptor_k_major<QK_SWIZZLE>(base + AT_K);
  const u64 v = descriptor_mn_major<V_SWIZZLE>(base + AT_V, BOX_V_BYTES);
  Ring keys = {0, 0}, values = {0, 0};
  float s[BLOCK_K / 2], o[DV / 2];
  u32 p[BLOCK_K / 4];
  // The last consumer gives the first consumer its first turn.
  if (PINGPONG && consumer == CONSUMERS - 1) named_barrier_arrive(1, 256);
  for (u32 turn = 0;; turn++) {
    mbarrier_wait(base + AT_Q_FULL + 8 * consumer, turn & 1);
    Tile tile = read_tile(plans + turn % 2);
    if (tile.head < 0) break;
    Rows rows = {{NEGATIVE_INFINITY, NEGATIVE_INFINITY}, {0.0f, 0.0f}};
#pragma unroll
    for (int i = 0; i < DV / 2; i++) o[i] = 0.0f;
    int block = tile.block_end - 1;
    if (block < tile.block_begin) {
      release(base + AT_Q_EMPTY + 8 * consumer, lane);
      write_rows(o, rows, tile, tile.row + thread_row, t, shape.heads, output, lse);
      continue;
    }
    const Visible visible[2] = {visible_keys(shape, tile, tile.row + thread_row),
                                visible_keys(shape, tile, tile.row + thread_row + 8)};
    // The keys that all rows of this warpgroup see.
    const int first_row = tile.row + 64 * consumer;
    const int common_first = visible_keys(shape, tile, first_row + 63).first;
    const int common_last = visible_keys(shape, tile, first_row).last;

    mbarrier_wait(base + AT_K_FULL + 8 * keys.stage, keys.parity);
    issue_scores(s, q, k + keys.stage * (K_BYTES >> 4));
    wgmma_wait<0>();
    keep(s);
    release(base + AT_K_EMPTY + 8 * keys.stage, lane);
    keys.advance();
#if SOFTCAP
    cap_scores(s, inner, outer);
#endif
    if (block * BLOCK_K + BLOCK_K - 1 > common_last || block * BLOCK_K < common_first) {
      mask_scores(s, block * BLOCK_K + 2 * t, visible);
    }
    float none[2] = {1.0f, 1.0f};  // nothing has been summed that needs it
    raise_to_maxima(s, rows, factor, none);
    weigh(s, rows, factor, rows.sum);
    pack_weights(s, p);
    if (block * BLOCK_K + BLOCK_K > tile.keys) {
      mbarrier_wait(base + AT_V_FULL + 8 * values.stage, values.parity);
      clear_values(base + AT_V + values.stage * V_BYTES, tile.keys - block * BLOCK_K, thread, consumer);
    }

    for (int left = block - tile.block_begin; left > 0; left--) {
      block--;
      // The maxima are taken where a mask cuts the block or some row has no reference yet.
      bool with_maxima = !is_settled(rows);
#if MASK
      const bool cut = block * BLOCK_K + BLOCK_K - 1 > common_last || block * BLOCK_K < common_first;
      with_maxima |= cut;
#endif
      mbarrier_wait(base + AT_K_FULL + 8 * keys.stage, keys.parity);
      if (PINGPONG) named_barrier_sync(own_turn, 256);
      issue_scores(s, q, k + keys.stage * (K_BYTES >> 4));
      mbarrier_wait(base + AT_V_FULL + 8 * values.stage, values.parity);
      issue_output(o, p, v + values.stage * (V_BYTES >> 4));
      if (PINGPONG) named_barrier_arrive(next_turn, 256);
      wgmma_wait<1>();
      keep(s);
#if SOFTCAP
      cap_scores(s, inner, outer);
#endif
      if (with_maxima) {
#if MASK
        if (cut) mask_scores(s, block * BLOCK_K + 2 * t, visible);
#endif
        float rescale[2] = {1.0f, 1.0f};
        raise_to_maxima(s, rows, factor, rescale);
        wgmma_wait<0>();
        keep(o);
        rescale_output(o, rescale);
      }
      float sum[2];
      weigh(s, rows, factor, sum);
      // If maxima were taken, sums above the limit are NaN. (Also, ptxas hoists a wait for P V without a preceding branch
      // above the exponentials, which would run the softmax after P V instead of overlapping it.)
      if (!with_maxima && is_above(sum, SUM_LIMIT)) {
        wgmma_wait<0>();
        keep(o);
        float rescale[2] = {1.0f, 1.0f};
        if (is_above(sum, SUM_LOST)) {
          recompute_scores(s, base + AT_Q + consumer * Q_BYTES, base + AT_K + keys.stage * K_BYTES);
#if SOFTCAP
          cap_scores(s, inner, outer);
#endif
          raise_to_maxima(s, rows, factor, rescale);
          weigh(s, rows, factor, sum);
        } else {
          shrink_weights(s, rows, sum, rescale);
        }
        rescale_output(o, rescale);
        release(base + AT_K_EMPTY + 8 * keys.stage, lane);
      } else {
        // The keys are released only here: recompute_scores reads them.
        release(base + AT_K_EMPTY + 8 * keys.stage, lane);
        wgmma_wait<0>();
        keep(o);
      }
      release(base + AT_V_EMPTY + 8 * values.stage, lane);
      keys.advance();
      values.advance();
      rows.sum[0] += sum[0];
      rows.sum[1] += sum[1];
      pack_weights(s, p);
    }
    // Read again, so that it takes no registers in the loop; the plan is valid until the queries are released.
    tile = read_tile(plans + turn % 2);
    const int again = thread_of_warpgroup();
    release(base + AT_Q_EMPTY + 8 * consumer, lane);
    mbarrier_wait(base + AT_V_FULL + 8 * values.stage, values.parity);
    issue_output(o, p, v + values.stage * (V_BYTES >> 4));
    wgmma_wait<0>();
    keep(o);
    release(base + AT_V_EMPTY + 8 * values.stage, lane);
    values.advance();
    write_rows(o, rows, tile, tile.row + 64 * consumer + again / 32 * 16 + again % 32 / 4, again % 4, shape.heads, output,
               lse);
  }
}

extern "C" __global__ void __launch_bounds__(128 * (CONSUMERS + 1), 1)
    attention_hopper(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                     const __grid_constant__ TensorMap map_v, u16* output, float* lse, const int* cu_queries,
                     const int* cu_keys, const int* key_counts, u32* counter, int batch, int heads, int kv_heads,
                     int queries, int keys, int total, int window_left, int window_right, int section, float scale,
                     float softcap) {
  extern __shared__ __align__(1024) u8 shared[];
  const u32 start = shared_address(shared);
  const u32 base = (start + 1023) & ~1023u;
  Plan* plans = reinterpret_cast<Plan*>(shared + (base - start) + AT_PLANS);
  const Shape shape = {cu_queries, cu_keys, key_counts, batch,       heads,        heads / kv_heads,
                       queries,    keys,    total,      window_left, window_right, section};
  // Broadcast, which makes it warp-uniform for the compiler.
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      mbarrier_init(base + AT_K_FULL + 8 * i, 1);
      mbarrier_init(base + AT_V_FULL + 8 * i, 1);
      mbarrier_init(base + AT_K_EMPTY + 8 * i, 4 * CONSUMERS);
      mbarrier_init(base + AT_V_EMPTY + 8 * i, 4 * CONSUMERS);
    }
    for (int i = 0; i < CONSUMERS; i++) {
      mbarrier_init(base + AT_Q_FULL + 8 * i, 1);
      mbarrier_init(base + AT_Q_EMPTY + 8 * i, 4);
    }
    for (int i = 0; i < 2; i++) {
      mbarrier_init(base + AT_PLAN_FULL + 8 * i, 1);
      mbarrier_init(base + AT_PLAN_EMPTY + 8 * i, 1);
    }
    fence_barrier_init();
    tma_prefetch(&map_q);
    tma_prefetch(&map_k);
    tma_prefetch(&map_v);
  }
  __syncthreads();
  if (warpgroup == 0) {
    registers_decrease<CONSUMERS == 2 ? 40 : 32>();
    if (threadIdx.x == 0) load(base, plans, &map_q, &map_k, &map_v);
    if (threadIdx.x / 32 == 1) schedule(base, plans, shape, counter);
  } else {
    registers_increase<CONSUMERS == 2 ? 232 : 160>();
    consume(base, plans, warpgroup - 1, shape, output, lse, scale, softcap);
  }
}
