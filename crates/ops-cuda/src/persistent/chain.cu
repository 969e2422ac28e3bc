// A persistent kernel, one block per SM, that executes the phases of a step one after the other in one launch. See README.md.
//
// Without phases: one linear layer, described by the parameters. This verifies the device code of the phases.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    persistent_chain(const Phase* phases, int count, u64* launches, const char* x, const char* w, const char* w_scale, const char* w_offset,
                     const float* norm, const float* residual, char* o0, char* o1, char* o2, char* o3, char* o4, char* o5,
                     const float* conv_weight, const float* conv_bias, const float* initial_state, float* final_state,
                     const int* state_indices, const u64* x_packets, u64* packets, int form, int inputs, int start1, int start2, int start3,
                     int start4, int start5, int columns, int swiglu, int out_f32, int stored, int factor_bits, float scale, float eps,
                     int conv_silu, int conv_first, int conv_channels) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ Source sources[MOST_PHASES];
  __shared__ Phase held[2];
  __shared__ __align__(8) u64 full[STAGES], empty[STAGES], factors_full[2], factors_empty[2];
  __shared__ __align__(16) float squares[WARPS];
  __shared__ float backs[WARPS], root;
  __shared__ __align__(16) float dots[4 * WARPS];
  __shared__ u64 launched;
#if CHOSEN
  __shared__ Choice chosen[CHOSEN];
  __shared__ __align__(8) u64 chosen_full;
#endif
  const int thread = threadIdx.x;
  const u32 beside = shared_address(shared) + STAGES * STAGE;
  const Ring ring = {shared_address(shared), shared_address(full), shared_address(empty), 0, 0};
  const Factors factors = {beside + X_BYTES + SUM_BYTES, shared_address(factors_full), shared_address(factors_empty), 0};
  if (phases == nullptr && thread == 0) {
    held[0].kind = LINEAR;
    held[0].linear = {x,          w,          w_scale,       w_offset,    norm,          residual,  o0,      o1,   o2,     o3,
                      o4,         o5,         conv_weight,   conv_bias,   initial_state, final_state, state_indices, x_packets, packets, form,
                      inputs,     start1,     start2,     start3,        start4,      start5,        columns,   swiglu,  out_f32, stored, factor_bits,
                      scale,      eps,        conv_silu,     conv_first,  conv_channels};
    sources[0] = Source::of(held[0]);
  }
  if (phases != nullptr) {
    for (int i = thread; i < count; i += THREADS) sources[i] = Source::of(phases[i]);
    if (thread < PHASE_WORDS) ((uint4*)&held[0])[thread] = __ldg((const uint4*)phases + thread);
  }
  if (thread == 0) {
    ring.begin();
    if constexpr (BLOCKS != 0) factors.begin();
#if CHOSEN
    barrier_init(shared_address(&chosen_full), 1);
#endif
    barriers_are_there();
  }
  __syncthreads();

  if (thread >= CONSUMERS) {
    const bool brings_factors = thread >= CONSUMERS + 32, first = thread == CONSUMERS;
    // The router's choice needs a whole warp.
    if (!brings_factors && !first && !CHOSEN) return;
    Ring to = ring;
    Factors of = factors;
#if CHOSEN
    u32 number = 0;
    bool counted = false;
#endif
    for (int phase = 0; phase < count; phase++) {
      const Source& source = sources[phase];
      if (brings_factors) {
        if constexpr (BLOCKS != 0) {
          if (source.kind == LINEAR) of.bring(source);
        }
        continue;
      }
      // After the weights they would arrive late.
      if (first && blockIdx.x == 0 && !OFFSET && source.beside != nullptr) prefetch(source.beside, source.inputs * 4);
      if (first && source.kind == NORM) {
        for (int column = blockIdx.x; column < source.columns; column += gridDim.x) prefetch(source.w + (i64)column * source.inputs * 2, source.inputs * 2);
      }
#if CHOSEN
      if (source.kind == UP) {
        if (!counted) {
          wait_for_previous();
          number = launches == nullptr ? 0 : (u32)(*(volatile u64*)launches / gridDim.x) * MOST_PHASES, counted = true;
        }
        bring_up(to, phases[phase].up, source, number + phase, chosen, shared_address(&chosen_full));
      } else if (source.kind == DOWN && first) {
        bring_down(to, source, chosen);
      }
#endif
      if (source.kind == LINEAR && first) to.bring(source);
      if constexpr (CHOSEN != 0) __syncwarp();
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    return;
  }

  wait_for_previous();
  let_next_start();
  if (thread == 0) launched = launches == nullptr ? 0 : *(volatile u64*)launches / gridDim.x;
  meet_inside();
  // Numbers continue those of the preceding launch; fewer than all blocks of this launch have ended, so the quotient counts earlier launches.
  Block block = {ring,    factors, beside, (float*)(shared + STAGES * STAGE + X_BYTES), squares, (u32)launched * MOST_PHASES, backs, &root, dots,
#if CHOSEN
                 chosen, shared_address(&chosen_full), 0
#endif
  };
  for (int phase = 0; phase < count; phase++) {
    const Phase& of = held[phase % 2];
    // The next record is copied while this phase runs.
    if (thread < PHASE_WORDS && phase + 1 < count) {
      copy_async<16>(shared_address(&held[(phase + 1) % 2]) + 16 * thread, (const uint4*)(phases + phase + 1) + thread);
    }
    copy_commit();
    const Columns& own = sources[phase].own;
#define LINEAR_PHASE(...) \
  case FORM(__VA_ARGS__): linear_phase<Input<__VA_ARGS__>>(of.linear, own, block); break
    // Forms are larger than all kinds, so one switch has both.
    switch (of.kind == LINEAR ? of.linear.form : of.kind) {
      case SCAN: scan_phase(of.scan, block.number); break;
#if CHOSEN
      case NORM: norm_phase<Stream>(of.norm, block); break;
      case UP: up_phase(of.up, own, block); break;
      case DOWN: down_phase(of.down, own, block); break;
#endif
#if !CHOSEN || BY_CHUNKS
      LINEAR_PHASE(1, 4, 1);
      LINEAR_PHASE(0, 4, 1);
#endif
#if !CHOSEN
      LINEAR_PHASE(0, 8, 0);
#endif
#if BY_CHUNKS || !CHOSEN && (!BLOCKS || WEIGHT_BITS == 4)
      LINEAR_PHASE(0, 2, 0);
#endif
    }
    block.number++;
    copy_wait<0>();
    meet_inside();
  }
  if (thread == 0 && launches != nullptr) asm volatile("red.relaxed.gpu.global.add.u64 [%0], 1;" ::"l"(launches) : "memory");
}
