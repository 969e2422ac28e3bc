// The states that segments leave by themselves, by wgmma: what states.cu computes, for P = 64 on sm_90a.
//
// Chunks are taken from the last to the first: a token's weight then holds the whole decay up to the segment's end, and
// the accumulators are never scaled.
//
// Arguments, shapes and grid as in states.cu; H / G is a multiple of 4. Block (256); dynamic shared memory SHARED_BYTES.
// Macros: those of hopper_tile.cuh with STATES_ONLY = 1.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ssd_hopper_states(const u16* __restrict__ x, const void* __restrict__ dt, const void* __restrict__ rate,
                      const u16* __restrict__ b, const void* __restrict__ dt_bias, const int* __restrict__ cu_seqlens,
                      const int* __restrict__ state_indices, float* __restrict__ states, float* __restrict__ decays,
                      int tokens, int heads, int groups, int segments, int dt_f32, int rate_f32, int bias_f32,
                      int softplus, float dt_min, float dt_max) {
  extern __shared__ __align__(128) unsigned char raw_shared[];
  const u32 base = (shared_address(raw_shared) + 1023) & ~1023u;
  unsigned char* const shared = raw_shared + (base - shared_address(raw_shared));
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int head_block = blockIdx.x * HEADS, sequence = blockIdx.z;
  const Segment segment(cu_seqlens, tokens, sequence, blockIdx.y, segments);
  if (segment.is_last || (state_indices != nullptr && state_indices[sequence] < 0)) return;
  const Steps steps = {dt, rate, dt_bias, dt_min, dt_max, dt_f32, rate_f32, bias_f32, softplus};
  const int group = head_block / (heads / groups);
  const i64 dt_row = segment.start * heads + head_block;

  // Every chunk of a segment that is not the last is whole.
  auto load_chunk = [&](int first) {
    if (first >= segment.first) {
      const u32 stage = base + first / Q % STAGES * STAGE_BYTES;
      const i64 token = segment.start + first;
      const i64 projection = (token * groups + group) * N;
#pragma unroll
      for (int panel = 0; panel < PANELS; panel++) {
        load_panel(stage + B_AT + panel * PANEL, b + projection + panel * 64, groups * N, Q, thread);
      }
#pragma unroll
      for (int head = 0; head < HEADS; head++) {
        load_panel(stage + VALUES_AT + head * PANEL, x + (token * heads + head_block + head) * P, heads * P, Q, thread);
      }
    }
    copy_commit();
  };
  float* const tables = (float*)(shared + DECAYS_AT);
  auto table = [&](int first, int head) { return tables + (first / Q % 2 * HEADS + head) * (DECAYS * Q); };
  const int own_scan = scan_head(warp);
  RawSteps raw;
  float after = 0.0f;
  auto fetch = [&](int first) {
    if (own_scan < 0 || first < segment.first) return;
    raw.fetch(steps, dt_row + own_scan, head_block + own_scan, heads, first, segment.end, lane);
  };
  auto scan = [&](int first) {
    if (own_scan < 0 || first < segment.first) return;
    after += make_decays(table(first, own_scan), raw, steps, Q, lane, after);
  };

  const int last = segment.end - Q;
#pragma unroll
  for (int ahead = 0; ahead < STAGES - 1; ahead++) load_chunk(last - ahead * Q);
  fetch(last);
  scan(last);
  fetch(last - Q);
  State h[OWN_HEADS] = {};
#pragma unroll 1
  for (int first = last; first >= segment.first; first -= Q) {
    copy_wait<STAGES - 2>();
    fence_async_shared();
    wgmma_wait<0>();
    __syncthreads();
    load_chunk(first - (STAGES - 1) * Q);
    const u32 stage = base + first / Q % STAGES * STAGE_BYTES;
    u32 weighed[OWN_HEADS][Q / 16][4];
#pragma unroll
    for (int own = 0; own < OWN_HEADS; own++) {
      const int head = warp / 4 * OWN_HEADS + own;
      const float* const to_end = table(first, head) + TO_END;
#pragma unroll
      for (int j = 0; j < Q / 16; j++) {
        u32 values[4];
        load_values(values, stage + VALUES_AT + head * PANEL, j * 16, warp, lane);
        weigh_values(weighed[own][j], values, to_end + j * 16, lane);
        keep(weighed[own][j]);
      }
      keep(h[own]);
      wgmma_fence();
      issue_state(h[own], weighed[own], stage + B_AT);
      wgmma_commit();
    }
    scan(first - Q);
    fetch(first - 2 * Q);
    wgmma_wait<0>();
    keep(h[0]);
    keep(h[1]);
  }
  copy_wait<0>();
  const i64 row = ((i64)sequence * (segments - 1) + blockIdx.y) * heads + head_block;
#pragma unroll
  for (int own = 0; own < OWN_HEADS; own++) {
    write_state(h[own], states + (row + warp / 4 * OWN_HEADS + own) * (P * N), warp, lane);
  }
  if (own_scan >= 0 && lane == 0) decays[row + own_scan] = after;
}
