// The producer threads of the Hopper attention backward kernels, and helpers of their consumers.

// A member of a plan, read from shared memory each time: in registers through a loop they would exceed the registers.
DEVICE int read_int(u32 address) {
  int value;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
#define PLAN(plan, member) read_int((plan) + PLAN_##member)

// The first lane's value, which all lanes have: tells the compiler that it is the same in the warp. Loops and branches on such
// values keep the descriptors of the products in uniform registers; otherwise each product copies four registers first.
DEVICE int uniform(int value) { return __shfl_sync(0xffffffff, value, 0); }

// Read from the special register each time: more values in registers through the loop would exceed the registers.
DEVICE int thread_of_warpgroup() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread % 128;
}

DEVICE int lane_of_warp() { return thread_of_warpgroup() % 32; }

// Which of the two consumers.
DEVICE int consumer_index() { return uniform(threadIdx.x / 128 - 1); }

// One lane of each warp arrives at the barrier: this warp is done with a buffer.
DEVICE void release(u32 barrier) {
  if (elect_one()) mbarrier_arrive(barrier);
}

// Waits for threads that have stored to shared memory, where this one's products or bulk copies read. The proxy fence is here and
// not after the stores, where it would also wait for them.
DEVICE void wait_stores(u32 barrier, u32 parity) {
  mbarrier_wait(barrier, parity);
  fence_async_shared();
}

// The number of blocks that add to a tile before this one.
DEVICE int blocks_before(u32 plan, int tile) {
  const int block = PLAN(plan, first_key) / BLOCK_K, group = PLAN(plan, group), member = block % group;
  const int members = min(group, (PLAN(plan, keys) + BLOCK_K - 1) / BLOCK_K - (block - member));
  // The last member that starts at this tile or a higher one comes first, then those before it, then those after it.
  const int first = min(members - 1, (PLAN(plan, high) - tile) / SKEW);
  return block - member + (member <= first ? first - member : first + members - member);
}

// One thread chooses the key blocks and issues all loads.
DEVICE void load(u32 base, Plan* plans, const Shape& shape, const TensorMap* map_q, const TensorMap* map_grad_o,
                 const TensorMap* map_k, const TensorMap* map_v, const TensorMap* map_statistics, int* counters) {
  u32 turn = 0, used = 0;  // tiles of queries loaded, blocks of keys loaded
  for (u32 block = 0;; block++) {
    const u32 plan = base + AT_PLANS + block % 2 * PLAN_BYTES;
    bool exists;
    do {
      const Plan next = plan_at(shape, atomicAdd(counters, 1), exists);
      if (exists) {
        mbarrier_wait(base + AT_PLAN_EMPTY + 8 * (block % 2), (block / 2 & 1) ^ 1);
        plans[block % 2] = next;
        mbarrier_arrive(base + AT_PLAN_FULL + 8 * (block % 2));
      }
    } while (!exists);
    if (PLAN(plan, kv_head) < 0) return;
    const int low = PLAN(plan, low), high = PLAN(plan, high);
    if (high < low) continue;
    bool first = true;
    const int group = shape.heads / shape.kv_heads;
    int head = PLAN(plan, kv_head) * group;
    for (const int end = head + group; head < end; head++) {
      int tile = PLAN(plan, start);
#pragma unroll 1
      for (int left = high - low + 1; left > 0; left--, turn++, tile = tile > low ? tile - 1 : high) {
        const u32 stage = turn % STAGES, parity = (turn / STAGES & 1) ^ 1;
        const u32 q_full = base + AT_Q_FULL + 8 * stage, grad_o_full = base + AT_GRAD_O_FULL + 8 * stage;
        const int row = PLAN(plan, q_row) + tile * BLOCK_Q, batch = PLAN(plan, q_batch);
        const int statistics = PLAN(plan, padded_row) + tile * BLOCK_Q;
        mbarrier_wait(base + AT_Q_EMPTY + 8 * stage, parity);
        mbarrier_expect(q_full, Q_BYTES + STATISTIC_BYTES);
#pragma unroll
        for (int i = 0; i < D / 64; i++) {
          tma_load_4d(base + AT_Q + stage * Q_BYTES + i * BOX_Q_BYTES, map_q, q_full, i * 64, head, row, batch);
        }
        tma_load_3d(base + AT_LSE + stage * STATISTIC_BYTES, map_statistics, q_full, statistics, head, 0);
        if (first) {
          first = false;
          mbarrier_wait(base + AT_KV_EMPTY, (used & 1) ^ 1);
          used++;
          mbarrier_expect(base + AT_KV_FULL, 2 * K_BYTES);
          const int k_row = PLAN(plan, k_row) + PLAN(plan, first_key), k_batch = PLAN(plan, k_batch);
          const int kv_head = PLAN(plan, kv_head);
#pragma unroll
          for (int i = 0; i < D / 64; i++) {
            tma_load_4d(base + AT_K + i * BOX_K_BYTES, map_k, base + AT_KV_FULL, i * 64, kv_head, k_row, k_batch);
            tma_load_4d(base + AT_V + i * BOX_K_BYTES, map_v, base + AT_KV_FULL, i * 64, kv_head, k_row, k_batch);
          }
        }
        mbarrier_wait(base + AT_GRAD_O_EMPTY + 8 * stage, parity);
        mbarrier_expect(grad_o_full, Q_BYTES + STATISTIC_BYTES);
#pragma unroll
        for (int i = 0; i < D / 64; i++) {
          tma_load_4d(base + AT_GRAD_O + stage * Q_BYTES + i * BOX_Q_BYTES, map_grad_o, grad_o_full, i * 64, head, row,
                      batch);
        }
        tma_load_3d(base + AT_DELTA + stage * STATISTIC_BYTES, map_statistics, grad_o_full, statistics, head, 1);
      }
    }
  }
}

// One thread for each consumer adds its part of dQ to memory, in order; D 256: one thread tells both that it is the block's turn.
DEVICE void reduce(u32 base, int index, const Shape& shape, float* sums, int* counters, int padded) {
  u32 turn = 0;
  for (u32 block = 0;; block++) {
    const u32 plan = base + AT_PLANS + block % 2 * PLAN_BYTES;
    mbarrier_wait(base + AT_PLAN_FULL + 8 * (block % 2), block / 2 & 1);
    if (PLAN(plan, kv_head) < 0) return;
    const int low = PLAN(plan, low), high = PLAN(plan, high), group = shape.heads / shape.kv_heads;
    int head = PLAN(plan, kv_head) * group;
    i64 pending = -1;
    for (const int end = head + (high < low ? 0 : group); head < end; head++) {
      int tile = PLAN(plan, start);
#pragma unroll 1
      for (int left = high - low + 1; left > 0; left--, turn++, tile = tile > low ? tile - 1 : high) {
        const i64 at = ((i64)head * padded + PLAN(plan, padded_row)) / BLOCK_Q + tile;
        const int before = MASK ? PLAN(plan, first_key) / BLOCK_K - first_block_of(tile, PLAN(plan, shift), shape.window_left)
                                : blocks_before(plan, tile);
        const int parts = (D == 256 ? 1 : CONSUMERS) * before;
        bool reached = parts == 0 || counter_reached(counters + 1 + at, parts);
        if (pending >= 0) {
          tma_store_wait<0>();
          counter_add(counters + 1 + pending);
        }
        while (!reached) reached = counter_reached(counters + 1 + at, parts);
        char* const to = reinterpret_cast<char*>(sums + at * GRAD_Q_FLOATS);
#if D == 256
        asm volatile("st.shared.u64 [%0], %1;" ::"r"(base + AT_GRAD_Q), "l"((u64)to + (before > 0 ? 0 : 1)) : "memory");
        mbarrier_arrive(base + AT_GRAD_Q_EMPTY);
        mbarrier_wait(base + AT_GRAD_Q_FULL, turn & 1);
        counter_add(counters + 1 + at);
#else
        const u32 buffer = index * GRAD_Q_STAGES + turn % GRAD_Q_STAGES, from = base + AT_GRAD_Q + buffer * GRAD_Q_PART_BYTES;
        wait_stores(base + AT_GRAD_Q_FULL + 8 * buffer, turn / GRAD_Q_STAGES & 1);
        if (before > 0) {
          bulk_add(to + index * GRAD_Q_PART_BYTES, from, GRAD_Q_PART_BYTES);
        } else {
          bulk_store(to + index * GRAD_Q_PART_BYTES, from, GRAD_Q_PART_BYTES);
        }
        tma_store_commit();
        tma_store_wait_read<0>();
        mbarrier_arrive(base + AT_GRAD_Q_EMPTY + 8 * buffer);
        // Counted when the copy has ended: in the next iteration, after the first look at that tile's counter.
        pending = at;
#endif
      }
    }
    if (pending >= 0) {
      tma_store_wait<0>();
      counter_add(counters + 1 + pending);
    }
    mbarrier_arrive(base + AT_PLAN_EMPTY + 8 * (block % 2));
  }
}

// Zeroes rows [first, rows) of a tile of `boxes` boxes: the memory past a sequence's last row is another sequence or unused, and
// a weight of 0 times NaN is NaN. Each consumer zeroes all of them, which needs no barrier between consumers; they
// write the same zeros.
template <int boxes, int rows>
DEVICE void clear_rows(u32 tile, int first) {
  const int thread = thread_of_warpgroup();
#pragma unroll 1
  for (int i = 0; i < boxes; i++) {
    for (int at = first * 128 + 16 * thread; at < rows * 128; at += 16 * 128) {
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(tile + i * rows * 128 + at), "r"(0) : "memory");
    }
  }
  fence_async_shared();
  named_barrier_sync(2 + consumer_index(), 128);
}

// Four threads hold, of a row, words 0..3 of four groups: group i has its word t in thread t. After this, thread t
// holds the four words of group t, which it can store at once.
DEVICE void transpose_quad(u32 (&w)[4], int t) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const u32 got = __shfl_xor_sync(0xffffffff, t & 1 ? w[i] : w[i + 1], 1);
    if (t & 1) w[i] = got; else w[i + 1] = got;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const u32 got = __shfl_xor_sync(0xffffffff, t & 2 ? w[i] : w[i + 2], 2);
    if (t & 2) w[i] = got; else w[i + 2] = got;
  }
}

// Writes the thread's part of dK or dV: rows `row` and `row` + 8 of those that `to` starts with.
DEVICE void write_gradient(const float (&g)[D / 2], u16* to, int row, int rows, int row_stride, float factor, int t) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const bool inside = row + 8 * r < rows;
    u16* const at = to + (i64)(row + 8 * r) * row_stride + 8 * t;
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
      u32 w[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int from = 4 * (4 * i + j) + 2 * r;
        w[j] = pack(g[from] * factor, g[from + 1] * factor);
      }
      transpose_quad(w, t);
      const bool stored = D_STORED == D || 32 * i + 8 * t < D_STORED;
      if (inside && stored) *reinterpret_cast<uint4*>(at + 32 * i) = make_uint4(w[0], w[1], w[2], w[3]);
    }
  }
}

DEVICE float2 read_pair(u32 address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address));
  return pair;
}

// The columns of a tile of queries, relative to the thread's first, that see the key of its row `half` (of the 64 rows from
// `first_row` of the block on).
DEVICE void limits(u32 plan, const Shape& shape, int tile, int first_row, int half, int& from, int& to) {
  const int thread = thread_of_warpgroup();
  const int key = PLAN(plan, first_key) + first_row + thread / 32 * 16 + thread % 32 / 4 + 8 * half;
  const int relative = key - PLAN(plan, shift) - tile * BLOCK_Q - thread % 4 * 2;
  from = key < PLAN(plan, keys) ? relative - shape.window_right : 1 << 30;
  to = relative + shape.window_left;
}
