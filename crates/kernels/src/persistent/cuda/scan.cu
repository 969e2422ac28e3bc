// One step of a scan as a phase of `chain.cu` takes it, by itself: what such phases compute is verified by it.

extern "C" __global__ void __launch_bounds__(CONSUMERS, 1)
    ssd_persistent(const char* x, const void* dt, const void* rate, const char* b, const char* c, const void* d, const char* z,
                   const void* dt_bias, const float* initial_state, float* final_state, const int* state_indices, char* o, int heads,
                   int groups, int head_dim, int dt_f32, int rate_f32, int d_f32, int bias_f32, int d_per_channel, int softplus,
                   float dt_min, float dt_max) {
  __shared__ Phase held;
  if (threadIdx.x == 0) {
    held.kind = SCAN;
    held.scan = {x,     dt,     rate,     b,      c,        d,     z,        dt_bias,       initial_state, final_state, state_indices, o,
                 heads, groups, head_dim, dt_f32, rate_f32, d_f32, bias_f32, d_per_channel, softplus,      dt_min,      dt_max};
  }
  __syncthreads();
  wait_for_previous();
  let_next_start();
  scan_phase(held.scan, NoMeeting());
}
