// Attention backward for Hopper (sm_90a), D up to 256: gradients of k and v, and sums of the gradient of q in f32, which
// convert.cu scales and rounds. Weights are recomputed: P = 2^(scale log2(e) K Q^T - row_lse), dV += P dO,
// dS = P (V dO^T - delta), dK += dS Q, dQ += dS^T K.
//
// A persistent block takes BLOCK_K = 128 keys of one key head, with K and V in shared memory, and processes all queries
// that see them, of all query heads of the group, in tiles of BLOCK_Q rows from the last to the first. One producer thread
// issues the copies of Q and dO. Two consumer warpgroups have 64 keys each: they hold dK and dV of their keys, compute S^T
// and dP^T, use P^T and dS^T from registers as operands of dV and dK, and exchange dS^T through shared memory for
// dQ, of which each computes one half. For each of them one more thread adds its half to memory by bulk reductions.
//
// Order of the dQ sums: with a mask key blocks add to a tile of dQ in the order of their numbers, without one in that of
// blocks_before, which depends on the grid and on `section`. counters has the number of halves of dQ (D 256: of blocks) that
// have been added to each tile, and a block waits for its number; the first one stores. So dQ sums need no initial zeros and
// the same input gives the same bits.
//
// Source: include/hopper.cuh, then rows.cuh, hopper_config.cuh, hopper_plan.cuh,
// hopper_products.cuh, hopper_producer.cuh, hopper_consumer.cuh (D 256: hopper_wide_consumer.cuh)
// and this file.
//
// Macros
//   DTYPE       bf16 or f16
//   D           64, 128 or 256: channels, padded; D_STORED: actual channels, a multiple of 8 (TMA reads zeros past them)
//   MASK        0: every query sees every key; 1: window_left and window_right hold (causal is window_right = 0)
//   SOFTCAP     1: logits are capped
//
// Arguments, in this order
//   map_q, map_grad_o, map_k, map_v  CUtensorMap by value, 16-bit elements, dimensions from the innermost: channel, head, row,
//       batch. Dense: [B, T, heads, channels]. Packed: batch 1, row = token. Box: {64, 1, R, 1}, R = BLOCK_Q for q and grad_o,
//       128 for k and v; 128-byte swizzle; out of bounds fill: zero.
//   map_statistics  CUtensorMap by value, f32 elements, [2, H, padded]: row_lse, then row_delta of prepare.cu, one
//       after the other; box {BLOCK_Q, 1, 1}, no swizzle
//   grad_k, grad_v  as k and v, contiguous, D_STORED channels, 16-byte aligned
//   grad_q_sums  f32 [H, padded, D], 16-byte aligned, in the order of the accumulators
//   counters    i32 [1 + H * padded / BLOCK_Q], all 0: the next key block, and what has been added to each tile
//   cu_queries, cu_keys  i32 [B + 1], or null when dense
//   key_counts  i32 [B] keys in use of each dense sequence, or null
//   batch, heads, kv_heads, queries, keys   i32; queries and keys are Tq and Tk (packed: of the longest sequence)
//   window_left, window_right   i32, keys seen before and after the query's own position i + keys - queries; 0 to 2^29,
//       2^29 is unlimited
//   section     i32, at least 1: (sequence, key head) pairs that are processed together
//   scale, softcap   f32 (softcap is read where SOFTCAP is 1)
//
// Launch: grid = min(SMs, B * Hkv * ceil(keys / 128)), cooperative where MASK is 0; block 384; dynamic shared memory SHARED_BYTES:
//   231824 (D 64 and 128) and 231920 bytes (D 256); see hopper_config.cuh.

extern "C" __global__ void __launch_bounds__(384, 1)
    attention_backward_hopper(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_grad_o,
                              const __grid_constant__ TensorMap map_k, const __grid_constant__ TensorMap map_v,
                              const __grid_constant__ TensorMap map_statistics, u16* grad_k, u16* grad_v, float* grad_q_sums,
                              int* counters, const int* cu_queries, const int* cu_keys, const int* key_counts, int batch,
                              int heads, int kv_heads, int queries, int keys, int window_left, int window_right,
                              int section, float scale, float softcap) {
  extern __shared__ __align__(1024) u8 shared[];
  const u32 start = shared_address(shared);
  const u32 base = (start + 1023) & ~1023u;
  if (ALIGNMENT_BYTES == 0 && base != start) __trap();
  Plan* plans = reinterpret_cast<Plan*>(shared + (base - start) + AT_PLANS);
  const Shape shape = {cu_queries, cu_keys, key_counts, batch, heads, kv_heads, queries, keys,
                       MASK ? window_left : NO_LIMIT, MASK ? window_right : NO_LIMIT, section};
  const int padded = padded_start(batch, first_row_of(batch, cu_queries, queries));
  // Broadcast, which makes it warp-uniform for the compiler.
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      mbarrier_init(base + AT_Q_FULL + 8 * i, 1);
      mbarrier_init(base + AT_Q_EMPTY + 8 * i, 4 * CONSUMERS);
      mbarrier_init(base + AT_GRAD_O_FULL + 8 * i, 1);
      mbarrier_init(base + AT_GRAD_O_EMPTY + 8 * i, 4 * CONSUMERS);
    }
    mbarrier_init(base + AT_KV_FULL, 1);
    mbarrier_init(base + AT_KV_EMPTY, 4 * CONSUMERS);
    for (int i = 0; i < CONSUMERS * GRAD_Q_STAGES; i++) {
      mbarrier_init(base + AT_GRAD_Q_FULL + 8 * i, D == 256 ? 4 * CONSUMERS : 4);
      mbarrier_init(base + AT_GRAD_Q_EMPTY + 8 * i, 1);
    }
    for (int i = 0; i < 2; i++) {
      mbarrier_init(base + AT_P_FULL + 8 * i, 4);
      mbarrier_init(base + AT_P_EMPTY + 8 * i, 4);
    }
    for (int i = 0; i < DS_STAGES; i++) {
      mbarrier_init(base + AT_DS_FULL + 8 * i, D == 256 ? 4 : 4 * CONSUMERS);
      mbarrier_init(base + AT_DS_EMPTY + 8 * i, 4 * CONSUMERS);
    }
    for (int i = 0; i < 2; i++) {
      mbarrier_init(base + AT_PLAN_FULL + 8 * i, 1);
      mbarrier_init(base + AT_PLAN_EMPTY + 8 * i, 4 * CONSUMERS + (D == 256 ? 1 : CONSUMERS));
    }
    fence_barrier_init();
    tma_prefetch(&map_q);
    tma_prefetch(&map_grad_o);
    tma_prefetch(&map_k);
    tma_prefetch(&map_v);
    tma_prefetch(&map_statistics);
  }
  __syncthreads();
  if (warpgroup == 0) {
    registers_decrease<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      load(base, plans, shape, &map_q, &map_grad_o, &map_k, &map_v, &map_statistics, counters);
    }
    if (threadIdx.x == 32 || (D != 256 && threadIdx.x == 64)) {
      reduce(base, threadIdx.x / 32 - 1, shape, grad_q_sums, counters, padded);
    }
  } else {
    registers_increase<CONSUMER_REGISTERS>();
    consume(base, shape, grad_k, grad_v, scale, softcap);
  }
}
