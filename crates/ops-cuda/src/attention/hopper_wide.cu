// Attention forward for Hopper (sm_90a), wide heads: o = softmax(scale Q K^T + mask) V, and lse, for D = 320 to 640 and
// DV = 128 to 640, multiples of 64, at their exact widths (so MLA's D 576, DV 512 too).
//
// A block has 64 query rows, which two consumer warpgroups share: each has half the keys of the scores, and half the channels
// of the output. A producer thread copies keys and values in stages of about 16 KiB. README-hopper-wide.md derives
// the schedule.
//
// Source: attention/hopper_wide_config.cuh, include/hopper.cuh, attention/hopper_tile.cuh, hopper_softmax.cuh,
// hopper_wide.cuh, hopper_wide_consumer.cuh, hopper_wide_kernel.cuh, hopper_wide.cu in this order.
//
// Macros
//   SPLIT       1
//   DTYPE       bf16 or f16, of q, k, v and o
//   D, DV       channels of q and k, of v and o
//   MASK        0: every query sees every key; 1: window_left and window_right hold
//   SOFTCAP     1: logits are capped
//   BLOCK_K     keys of a warpgroup in a step: 64, or 48 where DV > 512 (the default); the launcher needs it for map_k
//   V_KEYS, STAGES, JUDGE, SEND_STAGES   of the schedule; the defaults are the measured best
//
// Arguments, in this order
//   map_q, map_k  CUtensorMap by value, 16-bit elements, dimensions from the innermost: channel, head, row, batch,
//       128-byte swizzle, box {64, 1, 64, 1} for q and {64, 1, 2 BLOCK_K, 1} for k. Dense: [B, T, heads,
//       channels]. Packed: batch 1, row = token. Out of bounds fill: zero. An extent of 0 is encoded as 1.
//   map_v  the same with dimensions channel of the group, row, group of 64 channels, head, batch; box
//       {64, 8, DV / 64, 1, 1}
//   o    [B, Tq, H, DV] or [total, H, DV], 16-byte aligned
//   lse  f32 [B, H, Tq] or [H, total], or null
//   cu_queries, cu_keys  i32 [B + 1], or null when dense
//   key_counts  i32 [B] keys in use of each dense sequence, or null
//   batch, heads, kv_heads, queries, keys, total   i32; queries is Tq (packed: of the longest sequence), keys is Tk
//       (dense), total is the number of packed query rows
//   window_left, window_right   i32, keys seen before and after the query's own position i + Tk - Tq; -1 is unlimited,
//       others are at most 2^29 (causal is window_right = 0)
//   section     i32, at least 1: (sequence, head) pairs that are worked on together; 1 is best for long sequences
//   scale, softcap   f32, both above 0 (softcap is read where SOFTCAP is 1)
//
// Launch: grid = B * H * ceil(queries / 64) (nothing to launch when that is 0), block = 384, dynamic
// shared memory = SHARED_BYTES of hopper_wide.cuh, which is at most 232448.

extern "C" __global__ void __launch_bounds__(384, 1)
    attention_hopper_wide(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                          const __grid_constant__ TensorMap map_v, u16* output, float* lse, const int* cu_queries,
                          const int* cu_keys, const int* key_counts, int batch, int heads, int kv_heads, int queries,
                          int keys, int total, int window_left, int window_right, int section, float scale,
                          float softcap) {
  extern __shared__ __align__(1024) u8 shared[];
  const Shape shape = {cu_queries, cu_keys, key_counts, batch,       heads,        heads / kv_heads,
                       queries,    keys,    total,      window_left, window_right, section};
  attend(shared, &map_q, &map_k, &map_v, &map_v, output, lse, shape, scale, softcap);
}
