// Shared by the two Hopper attention kernels for wide heads (hopper_wide.cu, hopper_cluster.cu): the division of
// channels, the shared memory, the producer and the consumers. README-hopper-wide.md derives the schedule.
//
// A block has 64 query rows. Its two consumer warpgroups share them: in Q K^T each has its own BLOCK_K of a step's
// STEP_K = 2 BLOCK_K keys, in P V its own part of the channels, so that the accumulator of 64 x 512 floats, which is
// half of all registers, is spread over 256 threads. Weights P go through shared memory.
//
// Channels are divided in groups of 64, one 128-byte swizzled box row each. With SPLIT 2 the two blocks of a cluster share
// them: block 0 has the first half of the channels of Q and K (the larger one, if the number of groups is odd)
// and the first half of those of V (then the smaller one, so that both blocks have equal work). Partial scores are exchanged
// over distributed shared memory.

#define SPLIT_OF(groups, high) (SPLIT == 1 ? (groups) : (high) ? ((groups) + 1) / 2 : (groups) / 2)
#define QK_GROUPS (D / 64)
#define V_GROUPS (DV / 64)
#define QK_GROUPS_MOST SPLIT_OF(QK_GROUPS, 1)
#define V_GROUPS_MOST SPLIT_OF(V_GROUPS, 1)
#define V_GROUPS_LEAST SPLIT_OF(V_GROUPS, 0)
#define STEP_K (2 * BLOCK_K)

// A stage holds 64 channels of STEP_K keys, [key][64], or all channels of V_KEYS values, [V_KEYS / 8][group][8][64]:
// so a stage is released as soon as one product has read it, and none waits for a whole tile.
#ifndef V_KEYS
#define V_KEYS (SPLIT == 1 && DV <= 320 ? 32 : 16)
#endif
#define V_STAGES (STEP_K / V_KEYS)
#define K_BYTES (STEP_K * 128)
#define V_BYTES_MOST (V_KEYS * V_GROUPS_MOST * 128)
#define STAGE_BYTES (K_BYTES > V_BYTES_MOST ? K_BYTES : V_BYTES_MOST)

// Shared memory, from a base aligned to 1024 bytes.
#define Q_BYTES (QK_GROUPS_MOST * 64 * 128)
#define P_BYTES ((STEP_K + 63) / 64 * 64 * 64 * 2)
#define X_BYTES (SPLIT == 2 ? 2 * 64 * BLOCK_K * 4 : 0)
#define AT_Q 0
#define AT_P (AT_Q + Q_BYTES)
#define AT_X (AT_P + P_BYTES)
#define AT_STAGES (AT_X + X_BYTES)
#ifndef STAGES
#define STAGES ((232448 - 2048 - AT_STAGES) / STAGE_BYTES)
#endif
#define AT_FULL (AT_STAGES + STAGES * STAGE_BYTES)
#define AT_EMPTY (AT_FULL + 8 * STAGES)
#define AT_Q_FULL (AT_EMPTY + 8 * STAGES)
#define AT_X_FULL (AT_Q_FULL + 8)
#define AT_X_FREE (AT_X_FULL + 64)
#define AT_ROWS ((AT_X_FREE + 64 + 15) / 16 * 16)
#define SHARED_BYTES (1024 + AT_ROWS + 2 * 64 * 4)

// Named barriers. 1 and 2: warpgroup 0 or 1 waits until the other warpgroup has read P.
#define P_STORED 3
#define MAXIMA_STORED 4
#define OWN 5  // and 6: within one warpgroup

// The value stage during whose P V product new scores are processed: late enough for the peer's partial scores to have arrived,
// early enough for the following products to hide it. Measured.
#ifndef JUDGE
#define JUDGE (SPLIT == 2 ? V_STAGES * 3 / 4 : V_STAGES * 5 / 8)
#endif

// Value stages during whose products partial scores are sent, at most JUDGE - 1 and 4.
#ifndef SEND_STAGES
#define SEND_STAGES 4
#endif

// One block's part of the work.
struct Part {
  u32 base;  // of shared memory
  int half;  // rank in the cluster
  int qk_groups, qk_first, v_groups, v_first;
  int step_begin, step_end;
};

DEVICE Part part_of(u32 base, const Tile& tile) {
  Part part;
  part.base = base;
  part.half = SPLIT == 1 ? 0 : cluster_rank();
  part.qk_groups = part.half == 0 ? QK_GROUPS_MOST : QK_GROUPS - QK_GROUPS_MOST;
  part.qk_first = part.half == 0 ? 0 : QK_GROUPS_MOST;
  part.v_groups = part.half == 0 ? V_GROUPS_LEAST : V_GROUPS - V_GROUPS_LEAST;
  part.v_first = part.half == 0 ? 0 : V_GROUPS_LEAST;
  // plan_at counts blocks of BLOCK_K keys.
  part.step_begin = tile.block_begin / 2;
  part.step_end = tile.block_end > tile.block_begin ? (tile.block_end + 1) / 2 : part.step_begin;
  return part;
}

// A slot of the ring of stages, and the phase parity of the round.
struct Ring {
  u32 stage, parity;
  DEVICE void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// TMA load of values in five dimensions (channel of the group, row, group, head, batch): eight rows of all groups at once.
DEVICE void load_values(u32 to, const TensorMap* map, u32 full, int row, int group, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
      "l"(map), "r"(full), "r"(0), "r"(row), "r"(group), "r"(head), "r"(batch)
      : "memory");
}

// One thread issues all of a block's copies: the keys of a step before the values of the preceding step, in the
// order in which the consumers read them.
DEVICE void produce(const Part& part, const Plan& plan, const TensorMap* map_q, const TensorMap* map_k,
                    const TensorMap* map_v) {
  const int key_row = plan.first_row - plan.tile.block_begin * BLOCK_K;
  const u32 q_full = part.base + AT_Q_FULL;
  mbarrier_expect(q_full, part.qk_groups * 8192);
#pragma unroll 1
  for (int c = 0; c < part.qk_groups; c++) {
    tma_load_4d(part.base + AT_Q + c * 8192, map_q, q_full, 64 * (part.qk_first + c), plan.tile.head, plan.q_row,
                plan.q_batch);
  }
  Ring ring = {0, 0};
  // Waits until the next stage is free, and sets the bytes that its full barrier expects.
  auto claim = [&](u32 bytes) {
    mbarrier_wait(part.base + AT_EMPTY + 8 * ring.stage, ring.parity ^ 1);
    mbarrier_expect(part.base + AT_FULL + 8 * ring.stage, bytes);
  };
#pragma unroll 1
  for (int step = part.step_begin; step <= part.step_end; step++) {
    if (step < part.step_end) {
#pragma unroll 1
      for (int c = 0; c < part.qk_groups; c++) {
        claim(K_BYTES);
        tma_load_4d(part.base + AT_STAGES + ring.stage * STAGE_BYTES, map_k, part.base + AT_FULL + 8 * ring.stage,
                    64 * (part.qk_first + c), plan.kv_head, key_row + step * STEP_K, plan.kv_batch);
        ring.advance();
      }
    }
    if (step > part.step_begin) {
      const int row = key_row + (step - 1) * STEP_K;
#pragma unroll 1
      for (int i = 0; i < V_STAGES; i++) {
        claim(V_KEYS * 128 * part.v_groups);
#pragma unroll
        for (int octet = 0; octet < V_KEYS / 8; octet++) {
          load_values(part.base + AT_STAGES + ring.stage * STAGE_BYTES + octet * part.v_groups * 1024, map_v,
                      part.base + AT_FULL + 8 * ring.stage, row + i * V_KEYS + 8 * octet, part.v_first, plan.kv_head,
                      plan.kv_batch);
        }
        ring.advance();
      }
    }
  }
}
