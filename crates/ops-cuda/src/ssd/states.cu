// The final state of each segment of a sequence but its last, starting from zero, and the decay over the segment: the
// first of three launches for few long sequences (states, combine, chunk). For every GPU from sm_80 on.
//
// x [B, T, H, P], b [B, T, G, N], dt [B, T, H], or packed with cu_seqlens [Nseq + 1]; rate (A), dt_bias [H];
// state_indices [Nseq] or null; states f32 [Nseq, segments - 1, H, P, N]; decays f32 [Nseq, segments - 1, H], in base 2.
// The last segment of a sequence is not written. x, b 16-byte aligned; x_row, dt_row, b_row are strides in elements between
// tokens (of x and b multiples of 8).
//
// Launch: grid (H / HEADS, segments - 1, Nseq); block (THREADS); dynamic shared memory SHARED_BYTES.
// Macros: those of chunk.cuh, with STATES_ONLY = 1.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ssd_states(const u16* __restrict__ x, const void* __restrict__ dt, const void* __restrict__ rate,
               const u16* __restrict__ b, const void* __restrict__ dt_bias, const int* __restrict__ cu_seqlens,
               const int* __restrict__ state_indices, float* __restrict__ states, float* __restrict__ decays, int tokens,
               int heads, int groups, int x_row, int dt_row, int b_row, int segments, int dt_f32, int rate_f32, int bias_f32, int softplus, float dt_min,
               float dt_max) {
  let_next_start();
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int head_block = blockIdx.x * HEADS, sequence = blockIdx.z;
  const Segment segment(cu_seqlens, tokens, sequence, blockIdx.y, segments);
  if (segment.is_last || (state_indices != nullptr && state_indices[sequence] < 0)) return;

  const int scan_head = head_block + min(warp, HEADS - 1);
  const Steps steps = {dt, rate, dt_bias, dt_min, dt_max, dt_f32, rate_f32, bias_f32, softplus};
  const HeadSteps of_head = steps.of_head(scan_head);
  const i64 own_steps = segment.start * (STRIDED ? dt_row : heads) + scan_head;
  const int group = head_block / (heads / groups);

  auto load_chunk = [&](int first) {
    const u32 stage = base + first / Q % STAGES * STAGE_BYTES;
    const i64 token = segment.start + first;
    const int valid = segment.end - first;
    if (valid > 0) {
      const i64 projection = STRIDED ? token * b_row + group * N : (token * groups + group) * N;
      const i64 values = STRIDED ? token * x_row + head_block * P : (token * heads + head_block) * P;
      const int projection_row = STRIDED ? b_row : groups * N, value_row = STRIDED ? x_row : heads * P;
      Projection::load_range<Q, THREADS>(stage + B_AT, b + projection, projection_row, valid, thread);
      Values::load_range<Q, THREADS>(stage + VALUES_AT, x + values, value_row, valid, thread);
    }
    copy_commit();
  };
  float* const tables = (float*)(shared + DECAYS_AT);
  auto table = [&](int first, int head) { return tables + (first / Q % 2 * HEADS + head) * (DECAYS * Q); };

  load_chunk(segment.first);
  RawSteps raw;
  float total = 0.0f;
  if (warp < HEADS) {
    raw.fetch(steps, own_steps, STRIDED ? dt_row : heads, segment.first, segment.end, lane);
    total += make_decays(table(segment.first, warp), raw, steps, of_head, segment.end - segment.first, lane);
    raw.fetch(steps, own_steps, STRIDED ? dt_row : heads, segment.first + Q, segment.end, lane);
  }
  State h = {};
  const int head = warp / (P / (16 * COLUMN_TILES));
#pragma unroll 1
  for (int first = segment.first; first < segment.end; first += Q) {
    copy_wait<0>();
    __syncthreads();
    if (STAGES > 1) load_chunk(first + Q);
    if (warp < HEADS && first + Q < segment.end) {
      total += make_decays(table(first + Q, warp), raw, steps, of_head, segment.end - first - Q, lane);
      raw.fetch(steps, own_steps, STRIDED ? dt_row : heads, first + 2 * Q, segment.end, lane);
    }
    const float* const decay = table(first, head);
    const u32 stage = base + first / Q % STAGES * STAGE_BYTES;
    fade(h, decay[FROM_START + Q - 1]);
    u32 value_lane = stage + VALUES_AT + Values::lane_offset(lane);
    u32 projection_lane = stage + B_AT + Projection::lane_offset(lane);
#pragma unroll
    for (int j = 0; j < TOKEN_STEPS; j++) {
      u32 values[COLUMN_TILES][4];
      load_values(values, value_lane + j * 16 * Values::stride, warp);
      add_tokens(h, values, decay + TO_END + j * 16, projection_lane + j * 16 * Projection::stride, lane);
    }
    if (STAGES == 1) {
      __syncthreads();
      load_chunk(first + Q);
    }
  }
  copy_wait<0>();
  const i64 row = ((i64)sequence * (segments - 1) + blockIdx.y) * heads + head_block;
  write_state(h, states + (row + head) * (P * N), warp, lane);
  if (warp < HEADS && lane == 0) decays[row + warp] = total;
}
