// One scan step with the device code of chain.cu, in a separate launch: verifies what such phases compute.

extern "C" __global__ void __launch_bounds__(CONSUMERS, 1)
    ssd_persistent(const char* x, const char* z, const char* dt, const char* b, const char* c, const float* rate, const float* d,
                   const float* dt_bias, const float* initial_state, float* final_state, const int* state_indices, char* o,
                   const u64* x_packets, const u64* z_packets, const u64* dt_packets, const u64* b_packets, const u64* c_packets,
                   u64* packets, int heads, int head_dim, int head_magic, int heads_of_group, int softplus, int stored, float dt_min,
                   float dt_max) {
  wait_for_previous();
  let_next_start();
  const Scan of = {x,         z,         dt,        b,         c,         rate,    d,     dt_bias,  initial_state, final_state,    state_indices, o,
                   x_packets, z_packets, dt_packets, b_packets, c_packets, packets, heads, head_dim, head_magic,    heads_of_group, softplus,      stored,
                   dt_min,    dt_max};
  scan_phase(of, 0);
}
