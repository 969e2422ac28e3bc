// Package of every chunk for the gradient of kda and gated_delta, the first of five launches (prepare, forward, reverse, intra,
// reduce). Definitions: gradient_any.cuh.
//
// q, k [total, H, K], g [total, HV, GATES], beta [total, HV], A_log [HV] (null for GATE_NONE), dt_bias [HV, GATES] or null,
// cu_seqlens [Nseq + 1] or null (dense); package f32 [slots, HV, PACKAGE]. q_row, k_row: elements between tokens.
//
// Launch: grid (HV, chunks of the longest sequence, Nseq); block (256); dynamic shared memory 4 * (4 * 16 * K4 + 784).
// Macros: those of gradient_any.cuh, TF32 (0, 1): the package is rounded to tf32, as gradient_scan.cu requires.

#ifndef TF32
#define TF32 0
#endif
#if TF32
#define ROUNDED(v) round_tf32(v)
#else
#define ROUNDED(v) (v)
#endif

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
    kda_gradient_prepare_any(const void* __restrict__ q, const void* __restrict__ k, const void* __restrict__ g,
                             const void* __restrict__ beta, const void* __restrict__ a_log, const void* __restrict__ dt_bias,
                             const int* __restrict__ cu_seqlens, float* __restrict__ package, int tokens, int heads,
                             int value_heads, int q_row, int k_row, int l2norm, float scale, int gate, float lower_bound,
                             float factor, int g_f32, int beta_f32, int rate_f32, int bias_f32) {
  extern __shared__ __align__(128) unsigned char shared[];
  float* const q_tile = (float*)shared;
  float* const k_tile = q_tile + Q * K4;
  float* const high = k_tile + Q * K4;
  float* const low = high + Q * K4;
  float* const ak = low + Q * K4;
  float* const aq = ak + Q * Q;
  float* const inverse = aq + Q * Q;
  float* const strength = inverse + Q * Q;
  const int thread = threadIdx.x, head = blockIdx.x, chunk = blockIdx.y;
  const Chunks chunks(cu_seqlens, tokens, blockIdx.z);
  if (chunk >= chunks.count) return;
  const i64 token = chunks.start + chunk * Q;
  const int valid = min(Q, chunks.length - chunk * Q);
  const Gates gates = {g, beta, a_log, dt_bias, gate, g_f32, beta_f32, rate_f32, bias_f32, lower_bound, factor};
  const int shared_head = head / (value_heads / heads);
  load_keys<THREADS>(q_tile, k_tile, (const char*)q + (token * q_row + shared_head * K) * ELEMENT_BYTES,
                     (const char*)k + (token * k_row + shared_head * K) * ELEMENT_BYTES, q_row, k_row, valid, l2norm, thread);
  load_sums<THREADS>(high, low, gates, token, value_heads, head, valid, thread);
  if (thread < Q) strength[thread] = thread < valid ? gates.strength(token + thread, value_heads, head) : 0.0f;
  ak[thread] = aq[thread] = 0.0f;
  static_assert(THREADS == Q * Q, "a thread per element");
  __syncthreads();
  // Two threads per pair j < i, each half of the channels; 16 more threads for i = j, which has no decay.
  constexpr int PAIRS = Q * (Q - 1) / 2, HALF = K4 / 2;
  static_assert(2 * PAIRS + Q <= THREADS, "all at once");
  if (thread < 2 * PAIRS) {
    const int pair = thread / 2;
    int i = 1;
    while (i * (i + 1) / 2 <= pair) i++;
    const int j = pair - i * (i - 1) / 2;
    float of_q = 0.0f, of_k = 0.0f;
    int c = thread % 32 % HALF;  // lanes in different banks
#pragma unroll 4
    for (int step = 0; step < HALF; step++) {
      const int at = thread % 2 * HALF + c;
      const float decayed = k_tile[j * K4 + at] * exp2_fast(high[i * K4 + at] - high[j * K4 + at] + (low[i * K4 + at] - low[j * K4 + at]));
      of_q = fmaf(q_tile[i * K4 + at], decayed, of_q);
      of_k = fmaf(k_tile[i * K4 + at], decayed, of_k);
      c = c + 1 == HALF ? 0 : c + 1;
    }
    of_q += __shfl_xor_sync(thread < 224 ? 0xffffffff : 0xffff, of_q, 1);
    of_k += __shfl_xor_sync(thread < 224 ? 0xffffffff : 0xffff, of_k, 1);
    if (thread % 2 == 0) {
      aq[i * Q + j] = scale * of_q;
      ak[i * Q + j] = of_k;
    }
  } else {
    const int i = thread - 2 * PAIRS;
    float of_q = 0.0f;
    int c = i % K4;
    for (int step = 0; step < K4; step++) {
      of_q = fmaf(q_tile[i * K4 + c], k_tile[i * K4 + c], of_q);
      c = c + 1 == K4 ? 0 : c + 1;
    }
    aq[i * Q + i] = scale * of_q;
  }
  __syncthreads();
  if (thread < Q) {  // a column of the inverse per thread
    for (int row = 0; row < Q; row++) {
      float v = row == thread ? 1.0f : 0.0f;
      for (int l = thread; l < row; l++) v -= ak[row * Q + l] * strength[l] * inverse[l * Q + thread];
      inverse[row * Q + thread] = row < thread ? 0.0f : v;
    }
  }
  __syncthreads();
  float* const to = package + ((i64)(chunks.slot + chunk) * value_heads + head) * PACKAGE;
  for (int at = thread; at < Q * K4; at += THREADS) {
    const int c = at % K4, last = (Q - 1) * K4 + c;
    const float from_start = exp2_fast(high[at]);
    to[KD + at] = ROUNDED(k_tile[at] * from_start);
    to[QD + at] = ROUNDED(scale * q_tile[at] * from_start);
    to[KE + at] = ROUNDED(k_tile[at] * exp2_fast(high[last] - high[at] + (low[last] - low[at])));
  }
  for (int c = thread; c < K4; c += THREADS) to[DECAY + c] = exp2_fast(high[(Q - 1) * K4 + c]);
  to[AK + thread] = ROUNDED(ak[thread]);
  to[AQ + thread] = ROUNDED(aq[thread]);
  to[INVERSE + thread] = ROUNDED(inverse[thread]);
  if (thread < Q) to[BETA + thread] = strength[thread];
}
