// Turns the final states of segments that start from zero into the true final states: the second of three launches.
//
//   states[s] <- 2^decays[s] states[s - 1] + states[s],  states[-1] the initial state
//
// states f32 [Nseq, segments - 1, H, size], decays f32 [Nseq, segments - 1, H]; initial_state [slots, H, size] as in state.cuh,
// or null; size = P N is a multiple of 4. Segments as in chunk.cuh.
//
// Launch: grid (ceil(size / 4 / 256), H, Nseq); block (256). May overlap the preceding kernel (PDL). Macros: STATE_BF16 (0, 1).

constexpr int Q = 64;
constexpr int AHEAD = 8;

extern "C" __global__ void __launch_bounds__(256)
    ssd_combine(float* __restrict__ states, const float* __restrict__ decays, const Held* __restrict__ initial_state,
                const int* __restrict__ cu_seqlens, const int* __restrict__ state_indices, int tokens, int heads,
                int size, int segments) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const int at = blockIdx.x * 256 + threadIdx.x, head = blockIdx.y, sequence = blockIdx.z;
  const int slot = state_indices != nullptr ? state_indices[sequence] : sequence;
  if (slot < 0 || at * 4 >= size) return;
  const int length = cu_seqlens != nullptr ? cu_seqlens[sequence + 1] - cu_seqlens[sequence] : tokens;
  const int chunks = (length + Q - 1) / Q, each = (chunks + segments - 1) / segments;
  const int count = each == 0 ? 0 : (chunks + each - 1) / each - 1;  // all segments but the last
  const long long row = (long long)sequence * (segments - 1) * heads + head;
  float4* const mine = (float4*)(states + row * size) + at;
  const long long stride = (long long)heads * size / 4;
  float4 h = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (initial_state != nullptr) {
    const Held* const from = initial_state + ((long long)slot * heads + head) * size;
#if STATE_BF16
    const uint2 four = ((const uint2*)from)[at];
    const float2 low = widen_states(four.x), high = widen_states(four.y);
    h = make_float4(low.x, low.y, high.x, high.y);
#else
    h = ((const float4*)from)[at];
#endif
  }
  for (int first = 0; first < count; first += AHEAD) {
    float4 own[AHEAD];
    float factor[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      if (first + i >= count) continue;
      own[i] = mine[(first + i) * stride];
      factor[i] = exp2f(decays[row + (long long)(first + i) * heads]);
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      if (first + i >= count) break;
      h.x = fmaf(factor[i], h.x, own[i].x);
      h.y = fmaf(factor[i], h.y, own[i].y);
      h.z = fmaf(factor[i], h.z, own[i].z);
      h.w = fmaf(factor[i], h.w, own[i].w);
      mine[(first + i) * stride] = h;
    }
  }
}
