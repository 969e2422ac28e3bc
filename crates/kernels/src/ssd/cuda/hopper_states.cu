// The states that segments leave by themselves, by wgmma: what states.cu computes, for P = 64 on sm_90a.
//
// Chunks are taken from the last to the first: a token's weight then holds the whole decay up to the segment's end, and
// the accumulators are never scaled.
//
// x and b by the copy engine's maps, as in hopper.cu; other arguments, shapes and grid as in states.cu; H / G is even. Block (384); dynamic shared memory SHARED_BYTES.
// Macros: those of hopper_tile.cuh with STATES_ONLY = 1.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ssd_hopper_states(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap b,
                      const void* __restrict__ dt, const void* __restrict__ rate, const void* __restrict__ dt_bias, const int* __restrict__ cu_seqlens,
                      const int* __restrict__ state_indices, float* __restrict__ states, float* __restrict__ decays,
                      int tokens, int heads, int groups, int segments, int dt_f32, int rate_f32, int bias_f32,
                      int softplus, float dt_min, float dt_max) {
  let_next_start();
  extern __shared__ __align__(128) unsigned char raw_shared[];
  const u32 base = (shared_address(raw_shared) + 1023) & ~1023u;
  unsigned char* const shared = raw_shared + (base - shared_address(raw_shared));
  // By a shuffle, so that the compiler knows that a warp takes one branch.
  const int thread = threadIdx.x, warp = __shfl_sync(0xffffffff, thread / 32, 0), lane = thread % 32;
  const int head_block = blockIdx.x * HEADS, sequence = blockIdx.z;
  const Segment segment(cu_seqlens, tokens, sequence, blockIdx.y, segments);
  if (segment.is_last || (state_indices != nullptr && state_indices[sequence] < 0)) return;
  init_barriers(base, thread);
  __syncthreads();
  float* const tables = (float*)(shared + DECAYS_AT);
  const int last = segment.end - Q, count = (segment.end - segment.first) / Q;  // every chunk here is whole
  const i64 row = ((i64)sequence * (segments - 1) + blockIdx.y) * heads + head_block;

  if (warp >= 8) {
    // ---- Loads and decays.
    const Steps steps = {dt, rate, dt_bias, dt_min, dt_max, dt_f32, rate_f32, bias_f32, softplus};
    const int group = head_block / (heads / groups), maker = warp - 8;
    const i64 dt_row = segment.start * heads + head_block + maker;
    const HeadSteps of_head = steps.of_head(head_block + min(maker, HEADS - 1));
    auto load = [&](int index) {
      if (maker != LOADER || index >= count || !elect_one()) return;
      const int place = index % STAGES;
      load_chunk(base + place * STAGE_BYTES, loaded_barrier(base, place), &x, &b, nullptr, head_block, group,
                 (int)segment.start + last - index * Q);
    };
    RawSteps raw;
    auto fetch = [&](int index) {
      if (index >= count || maker >= HEADS) return;
      raw.fetch(steps, dt_row, heads, last - index * Q, segment.end, lane);
    };
    for (int ahead = 0; ahead < STAGES - 1; ahead++) load(ahead);
    fetch(0);
    float after = 0.0f;
#pragma unroll 1
    for (int index = 0; index < count; index++) {
      const int table = index % STAGES;
      if (maker < HEADS) {
        after += make_decays(tables + (table * HEADS + maker) * (DECAYS * Q), raw, steps, of_head, Q, lane, after);
      }
      fetch(index + 1);
      hand_over(full_barrier(base, table), lane);
      // The stage of the chunk that was taken before this one.
      if (index > 0) mbarrier_wait(empty_barrier(base, (index - 1) % STAGES), (index - 1) / STAGES % 2);
      load(index + STAGES - 1);
    }
    if (maker < HEADS && lane == 0) decays[row + maker] = after;
    return;
  }

  // ---- Products.
  const int head = warp / 4;  // of the block
  State h = {};
#pragma unroll 1
  for (int index = 0; index < count; index++) {
    const int table = index % STAGES;
    const u32 stage = base + table * STAGE_BYTES;
    mbarrier_wait(loaded_barrier(base, table), index / STAGES % 2);
    mbarrier_wait(full_barrier(base, table), index / STAGES % 2);
    const float* const to_end = tables + (table * HEADS + head) * (DECAYS * Q) + TO_END;
    u32 weighed[Q / 16][4];
#pragma unroll
    for (int j = 0; j < Q / 16; j++) {
      u32 values[4];
      load_values(values, stage + VALUES_AT + head * PANEL, j * 16, warp, lane);
      weigh_values(weighed[j], values, to_end + j * 16, lane);
      keep(weighed[j]);
    }
    keep(h);
    wgmma_fence();
    issue_state(h, weighed, stage + B_AT);
    wgmma_commit();
    wgmma_wait<0>();
    keep(h);
    hand_over(empty_barrier(base, table), lane);
  }
  write_state(h, states + (row + head) * (P * N), warp, lane);
}
