// Gradients of the states that leave the chunks, and dv: the third launch of the gradient of kda and gated_delta
// (prepare, forward, reverse, intra, reduce). Definitions: gradient_any.cuh. With dS the gradient of the leaving state:
//
//   dU = Aq^T dO + ke dS;  dv = inverse^T Diag(beta) dU;  Y = dU - Ak^T dv  (dv = Diag(beta) Y)
//   dS <- Diag(e^{G_C}) dS + qd^T dO - kd^T dv
//
// output_gradient, dv [total, HV, V]; final_gradient f32 and initial_gradient as in state.cuh [Nseq, HV, K, V], may be null;
// package as written by gradient_prepare_any.cu. Workspace: leaving f32 [slots, HV, K, V4], y f32 [total, HV, V4].
//
// Launch: grid (HV, ceil(V / 32), Nseq); block (256); dynamic shared memory 4 * (3 * 16 * K4 + K4 + 784 + 32 * K4 + 3 * 512).
// Macros: those of gradient_any.cuh, STATE_BF16 (0, 1).

extern "C" __global__ void __launch_bounds__(THREADS)
    kda_gradient_reverse_any(const void* __restrict__ output_gradient, const float* __restrict__ final_gradient,
                             const int* __restrict__ cu_seqlens, const float* __restrict__ package,
                             float* __restrict__ leaving, float* __restrict__ y, void* __restrict__ dv,
                             Held* __restrict__ initial_gradient, int tokens, int value_heads) {
  extern __shared__ __align__(128) unsigned char shared[];
  float* const own = (float*)shared;  // the package
  float* const state = own + PACKAGE;
  float* const d_o = state + K4 * PART;
  float* const du = d_o + Q * PART;
  float* const dx = du + Q * PART;
  const int thread = threadIdx.x, head = blockIdx.x, part = blockIdx.y * PART, sequence = blockIdx.z;
  const Chunks chunks(cu_seqlens, tokens, sequence);
  const i64 own_state = ((i64)sequence * value_heads + head) * (K * V);
  State s;
  s.read(final_gradient != nullptr ? final_gradient + own_state : nullptr, part, thread);
  const int own_v = thread % PART, first_row = thread / PART;
#pragma unroll 1
  for (int chunk = chunks.count - 1; chunk >= 0; chunk--) {
    const i64 token = chunks.start + chunk * Q, row = (i64)(chunks.slot + chunk) * value_heads + head;
    const int valid = min(Q, chunks.length - chunk * Q);
    __syncthreads();  // the preceding chunk is no longer read
    copy_floats(own, package + row * PACKAGE, PACKAGE, thread);
    s.snapshot(state, leaving + row * (K * V4), part, thread);
    for (int i = first_row; i < Q; i += THREADS / PART) {
      const bool there = i < valid && part + own_v < V;
      d_o[i * PART + own_v] = there ? number(output_gradient, ((token + i) * value_heads + head) * V + part + own_v, false) : 0.0f;
    }
    __syncthreads();
    for (int i = first_row; i < Q; i += THREADS / PART) {
      float sum = read_state(own + KE, state, i, own_v);
      for (int j = i; j < Q; j++) sum = fmaf(own[AQ + j * Q + i], d_o[j * PART + own_v], sum);
      du[i * PART + own_v] = sum;
    }
    __syncthreads();
    for (int i = first_row; i < Q; i += THREADS / PART) {
      float sum = 0.0f;
      for (int j = i; j < Q; j++) sum = fmaf(own[INVERSE + j * Q + i] * own[BETA + j], du[j * PART + own_v], sum);
      dx[i * PART + own_v] = sum;
      if (i < valid && part + own_v < V) store_number(dv, ((token + i) * value_heads + head) * V + part + own_v, sum, false);
    }
    __syncthreads();
    for (int i = first_row; i < Q; i += THREADS / PART) {
      float sum = du[i * PART + own_v];
      for (int j = i + 1; j < Q; j++) sum = fmaf(-own[AK + j * Q + i], dx[j * PART + own_v], sum);
      if (i < valid && part + own_v < V4) y[((token + i) * value_heads + head) * V4 + part + own_v] = sum;
    }
    s.fade(own + DECAY, thread);
    s.add(own + QD, d_o, 1.0f, thread);
    s.add(own + KD, dx, -1.0f, thread);
  }
  if (initial_gradient != nullptr) s.write(initial_gradient + own_state, part, thread);
}
