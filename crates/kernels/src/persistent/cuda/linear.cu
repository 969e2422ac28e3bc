// One product as a phase of `chain.cu` takes it, by itself: what such phases compute is verified by it.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    linear_persistent(const char* x, const char* w, const float* w_scale, const float* norm, const void* bias, const float* residual,
                      char* o0, char* o1, char* o2, char* o3, char* o4, char* o5, const void* conv_weight, const void* conv_bias,
                      const float* initial_state, float* final_state, const int* state_indices, int start1, int start2, int start3,
                      int start4, int start5, int inputs, int columns, int x_f32, int swiglu, int bias_f32, int out_f32, float scale,
                      float eps, int conv_weight_f32, int conv_bias_f32, int conv_silu, int conv_first, int conv_channels) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ Phase held;
  __shared__ Source source;
  __shared__ __align__(8) u64 full[STAGES], empty[STAGES];
  __shared__ float squares[WARPS];
  __shared__ volatile int busy;
  const Ring ring = {shared_address(shared), shared_address(full), shared_address(empty)};
  const Sums sums = {(float*)(shared + STAGES * STAGE_BYTES), squares};
  if (threadIdx.x == 0) {
    held.kind = LINEAR;
    held.linear = {x,           w,           w_scale,       norm,   bias,    residual, o0,     o1,       o2,      o3,    o4,
                   o5,          conv_weight, conv_bias,     initial_state,   final_state,      state_indices,     start1, start2,
                   start3,      start4,      start5,        inputs, columns, x_f32,    swiglu, bias_f32, out_f32, scale, eps,
                   conv_weight_f32, conv_bias_f32, conv_silu, conv_first, conv_channels};
    source = Source::of(held);
    ring.begin(), busy = 0;
    barriers_are_there();
  }
  __syncthreads();

  int at = 0;
  if (threadIdx.x >= CONSUMERS) {
    if (threadIdx.x == CONSUMERS) ring.bring(source, at, busy);
    return;
  }
  wait_for_previous();
  let_next_start();
  linear_phase(held.linear, source.segments, ring, sums, busy, at, NoMeeting());
}
