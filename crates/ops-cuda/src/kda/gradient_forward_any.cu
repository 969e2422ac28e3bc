// States that enter the chunks, and r = inverse (V - kd S): the second launch of the gradient of kda and gated_delta
// (prepare, forward, reverse, intra, reduce). Definitions: gradient_any.cuh.
//
// v [total, HV, V] with v_row elements between tokens; initial_state [Nseq, HV, K, V] as in state.cuh or null; package as written by
// gradient_prepare_any.cu. Workspace: entering f32 [slots, HV, K, V4], r f32 [total, HV, V4].
//
// Launch: grid (HV, ceil(V / 32), Nseq); block (256); dynamic shared memory 4 * (2 * 16 * K4 + K4 + 272 + 32 * K4 + 2 * 512).
// Macros: those of gradient_any.cuh, STATE_BF16 (0, 1).

extern "C" __global__ void __launch_bounds__(THREADS)
    kda_gradient_forward_any(const void* __restrict__ v, const Held* __restrict__ initial_state,
                             const int* __restrict__ cu_seqlens, const float* __restrict__ package,
                             float* __restrict__ entering, float* __restrict__ r, int tokens, int value_heads, int v_row) {
  extern __shared__ __align__(128) unsigned char shared[];
  float* const kd = (float*)shared;
  float* const ke = kd + Q * K4;  // then decay
  float* const decay = ke + Q * K4;
  float* const inverse = decay + K4;  // then beta
  float* const beta = inverse + Q * Q;
  float* const state = beta + Q;
  float* const x = state + K4 * PART;
  float* const u = x + Q * PART;
  const int thread = threadIdx.x, head = blockIdx.x, part = blockIdx.y * PART, sequence = blockIdx.z;
  const Chunks chunks(cu_seqlens, tokens, sequence);
  State s;
  s.read(initial_state != nullptr ? initial_state + ((i64)sequence * value_heads + head) * (K * V) : nullptr, part, thread);
  const int own_v = thread % PART, first_row = thread / PART;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks.count; chunk++) {
    const i64 token = chunks.start + chunk * Q, row = (i64)(chunks.slot + chunk) * value_heads + head;
    const int valid = min(Q, chunks.length - chunk * Q);
    __syncthreads();  // the preceding chunk is no longer read
    const float* const from = package + row * PACKAGE;
    copy_floats(kd, from + KD, Q * K4, thread);
    copy_floats(ke, from + KE, Q * K4 + K4, thread);
    copy_floats(inverse, from + INVERSE, Q * Q + Q, thread);
    s.snapshot(state, entering + row * (K * V4), part, thread);
    __syncthreads();
    for (int i = first_row; i < Q; i += THREADS / PART) {
      const bool there = i < valid && part + own_v < V;
      const float value = there ? number(v, (token + i) * v_row + head * V + part + own_v, false) : 0.0f;
      x[i * PART + own_v] = value - read_state(kd, state, i, own_v);
    }
    __syncthreads();
    for (int i = first_row; i < Q; i += THREADS / PART) {
      float sum = 0.0f;
      for (int j = 0; j <= i; j++) sum = fmaf(inverse[i * Q + j], x[j * PART + own_v], sum);
      u[i * PART + own_v] = beta[i] * sum;
      if (i < valid && part + own_v < V4) r[((token + i) * value_heads + head) * V4 + part + own_v] = sum;
    }
    __syncthreads();
    s.fade(decay, thread);
    s.add(ke, u, 1.0f, thread);
  }
}
