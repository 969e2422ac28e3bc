// Phases of a step, one behind the other in one launch of a block a multiprocessor: blocks meet in memory after each. See README.md.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    persistent_chain(const Phase* phases, int count, u32* meeting) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ Source sources[MOST_PHASES];
  __shared__ Phase held[2];
  __shared__ __align__(8) u64 full[STAGES], empty[STAGES], met;
  __shared__ float squares[WARPS];
  __shared__ volatile int busy;
  const Ring ring = {shared_address(shared), shared_address(full), shared_address(empty)};
  const Sums sums = {(float*)(shared + STAGES * STAGE_BYTES), squares};
  const u32 met_at = shared_address(&met);
  const int thread = threadIdx.x, warp = thread / 32;
  for (int i = thread; i < count; i += THREADS) sources[i] = Source::of(phases[i]);
  if (thread < PHASE_WORDS) ((uint4*)&held[0])[thread] = ((const uint4*)phases)[thread];
  if (thread == 0) {
    barrier_init(met_at, 1), ring.begin(), busy = 0;
    barriers_are_there();
  }
  __syncthreads();

  if (warp == WARPS) {
    if (thread % 32 != 0) return;
    int at = 0;
    for (int phase = 0; phase < count; phase++) {
      if (sources[phase].columns > 0) ring.bring(sources[phase], at, busy);
    }
    return;
  }
  if (warp == WARPS + 1) return wait_for_blocks(meeting, count, met_at);

  wait_for_previous();
  let_next_start();
  int at = 0;
  for (int phase = 0; phase < count; phase++) {
    const Phase& p = held[phase % 2];
    // The next record is on its way while this phase runs.
    uint4 ahead;
    const bool takes = thread < PHASE_WORDS && phase + 1 < count;
    if (takes) ahead = __ldg((const uint4*)(phases + phase + 1) + thread);
    const auto meet = [&] {
      if (phase != 0) barrier_wait(met_at, phase - 1 & 1);
    };
    if (p.kind == SCAN) {
      scan_phase(p.scan, meet);
    } else {
      linear_phase(p.linear, sources[phase].segments, ring, sums, busy, at, meet);
    }
    if (takes) ((uint4*)&held[(phase + 1) % 2])[thread] = ahead;
    meet_inside();
    // The last phase is counted too: the next launch begins with a whole number of meetings.
    if (phase == 0 && warp == 0) until_begun_is_known();
    if (thread == 0) say_through(meeting);
  }
}
