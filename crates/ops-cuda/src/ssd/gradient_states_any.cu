// States of the gradient of ssd in float32 arithmetic, for any P and N and every storage type: the first of three launches
// (states, chunk, reduce). The formulas are those of gradient_states.cu, with chunks of CHUNK tokens.
//
// A block scans one head of a sequence in one direction and keeps the state in registers, in tiles of 4 x 4.
//
// Arguments as in gradient_states.cu and gradient_steps.cu, but entering and leaving are f32 [slots, H, P, N4], N4 = N rounded up to a
// multiple of 4; strides and alignment are free; table f32 [slots, H, 4, CHUNK], the last array as EXPONENT_LOW.
//
// Launch: grid (H, 2, Nseq); block (256); dynamic shared memory SHARED_BYTES = 4 * CHUNK * (P4 + N4 + 1) + 16.
// Macros: DTYPE (f32, bf16, f16), DY_F32 (0, 1: dy is float32, from gradient_gate.cu), P, N (up to 32768 elements of a state),
// CHUNK (16, 32), STATE_BF16 (0, 1).

#ifndef DY_F32
#define DY_F32 0
#endif

constexpr int THREADS = 256;
constexpr int P4 = ceil_div(P, 4) * 4, N4 = ceil_div(N, 4) * 4;
constexpr int TABLE_ARRAYS = STEP_ARRAYS + 1;
constexpr int EXPONENT_LOW = STEP_ARRAYS * Q;  // the remainder of a_i, rounded to float
constexpr int STATE_TILES = P4 / 4 * (N4 / 4);
constexpr int OWN_TILES = ceil_div(STATE_TILES, THREADS);
constexpr int PROJECTION_AT = Q * P4;  // floats
constexpr int WEIGHTS_AT = PROJECTION_AT + Q * N4;
constexpr int SHARED_BYTES = (WEIGHTS_AT + Q + 4) * 4;
static_assert(Q <= 32, "one warp has a lane per token");

DEVICE float load_state(const float* at) { return *at; }
DEVICE float load_state(const u16* at) { return __uint_as_float((u32)*at << 16); }
DEVICE void store_state(float* at, float value) { *at = value; }
DEVICE void store_state(u16* at, float value) { *at = (u16)narrow_states(value, 0.0f); }

extern "C" __global__ void __launch_bounds__(THREADS)
    ssd_gradient_states_any(const void* __restrict__ x, const void* __restrict__ dy, const void* __restrict__ dt,
                            const void* __restrict__ rate, const void* __restrict__ b, const void* __restrict__ c,
                            const void* __restrict__ dt_bias, const Held* __restrict__ initial_state,
                            const Held* __restrict__ final_gradient, const int* __restrict__ cu_seqlens,
                            float* __restrict__ entering, float* __restrict__ leaving, float* __restrict__ table,
                            float* __restrict__ sums, float* __restrict__ sums_d, Held* __restrict__ initial_gradient,
                            int tokens, int heads, int groups, int slots, int d_columns, int x_row, int dt_row, int b_row,
                            int dt_f32, int rate_f32, int bias_f32, int softplus, float dt_min, float dt_max) {
  extern __shared__ __align__(128) unsigned char shared[];
  float* const memory = (float*)shared;
  float* const weights = memory + WEIGHTS_AT;  // [Q], then exp(a_L)
  const int thread = threadIdx.x, lane = thread % 32;
  const int head = blockIdx.x, sequence = blockIdx.z;
  const bool reverse = blockIdx.y != 0;
  const Chunks chunks(cu_seqlens, tokens, sequence);
  const int group = head / (heads / groups);
  const Steps steps = {dt, rate, dt_bias, dt_min, dt_max, dt_f32, rate_f32, bias_f32, softplus};
  const float bias = number_or_zero(dt_bias, rate, head, bias_f32);
  const double rate2 = (double)number(rate, head, rate_f32) * 1.4426950408889634;
  const i64 own_state = ((i64)sequence * heads + head) * (P * N);
  const Held* const from = reverse ? final_gradient : initial_state;

  float h[OWN_TILES][4][4];
#pragma unroll
  for (int k = 0; k < OWN_TILES; k++) {
    const int tile = thread + k * THREADS, p = tile / (N4 / 4) * 4, n = tile % (N4 / 4) * 4;
#pragma unroll
    for (int e = 0; e < 16; e++) {
      const int row = p + e / 4, column = n + e % 4;
      const bool there = from != nullptr && row < P && column < N;
      h[k][e / 4][e % 4] = there ? load_state(from + own_state + row * N + column) : 0.0f;
    }
  }
#pragma unroll 1
  for (int i = 0; i < chunks.count; i++) {
    const int chunk = reverse ? chunks.count - 1 - i : i;
    const i64 token = chunks.start + chunk * Q;
    const int valid = min(Q, chunks.length - chunk * Q);
    __syncthreads();  // the preceding chunk is no longer read
    if (thread < 32) {
      float slope = 0.0f, step = 0.0f;
      if (lane < valid) step = step_of(number(dt, (token + lane) * dt_row + head, dt_f32) + bias, steps, slope);
      // In double: differences of a large sum would lose digits.
      double a = fmax(step * rate2, (double)LEAST_STEP);
#pragma unroll
      for (int far = 1; far < 32; far *= 2) {
        const double other = __shfl_up_sync(0xffffffff, a, far);
        if (lane >= far) a += other;
      }
      const double end = __shfl_sync(0xffffffff, a, Q - 1);
      if (lane < Q) {
        weights[lane] = reverse ? exp2_fast((float)a) : exp2_fast((float)(end - a)) * step;
        if (!reverse) {
          float* const row = table + ((i64)(chunks.slot + chunk) * heads + head) * (TABLE_ARRAYS * Q);
          row[EXPONENT + lane] = (float)a;
          row[EXPONENT_LOW + lane] = (float)(a - (float)a);
          row[STEP + lane] = step;
          row[SLOPE + lane] = slope;
        }
      }
      if (lane == 0) weights[Q] = exp2_fast((float)end);
    }
    __syncthreads();
    for (int at = thread; at < Q * P4; at += THREADS) {
      const int t = at / P4, p = at % P4;
      float value = 0.0f;
      if (t < valid && p < P) {
        value = reverse ? number(dy, ((token + t) * heads + head) * P + p, DY_F32)
                        : number(x, (token + t) * x_row + head * P + p, false);
        value *= weights[t];
      }
      memory[at] = value;
    }
    for (int at = thread; at < Q * N4; at += THREADS) {
      const int t = at / N4, n = at % N4;
      const bool there = t < valid && n < N;
      memory[PROJECTION_AT + at] = there ? number(reverse ? c : b, (token + t) * b_row + group * N + n, false) : 0.0f;
    }
    __syncthreads();
    float* const to = (reverse ? leaving : entering) + ((i64)(chunks.slot + chunk) * heads + head) * (P * N4);
    const float fade = weights[Q];
#pragma unroll
    for (int k = 0; k < OWN_TILES; k++) {
      const int tile = thread + k * THREADS, p = tile / (N4 / 4) * 4, n = tile % (N4 / 4) * 4;
      if (tile >= STATE_TILES) continue;
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float(&v)[4] = h[k][e];
        if (p + e < P) *(float4*)(to + (p + e) * N4 + n) = make_float4(v[0], v[1], v[2], v[3]);
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] *= fade;
      }
#pragma unroll 4
      for (int t = 0; t < Q; t++) {
        const float4 left = *(const float4*)(memory + t * P4 + p);
        const float4 right = *(const float4*)(memory + PROJECTION_AT + t * N4 + n);
        const float l[4] = {left.x, left.y, left.z, left.w}, r[4] = {right.x, right.y, right.z, right.w};
#pragma unroll
        for (int e = 0; e < 16; e++) h[k][e / 4][e % 4] = fmaf(l[e / 4], r[e % 4], h[k][e / 4][e % 4]);
      }
    }
  }
  if (reverse && initial_gradient != nullptr) {
#pragma unroll
    for (int k = 0; k < OWN_TILES; k++) {
      const int tile = thread + k * THREADS, p = tile / (N4 / 4) * 4, n = tile % (N4 / 4) * 4;
#pragma unroll
      for (int e = 0; e < 16; e++) {
        const int row = p + e / 4, column = n + e % 4;
        if (row < P && column < N) store_state(initial_gradient + own_state + row * N + column, h[k][e / 4][e % 4]);
      }
    }
  }
  if (!reverse && thread < 32) {
    const int next = sequence + 1 == gridDim.z ? slots : cu_seqlens != nullptr ? cu_seqlens[sequence + 1] / Q + sequence + 1
                                                                               : chunks.slot + chunks.count;
    for (int slot = chunks.slot + chunks.count; slot < next; slot++) {
      const i64 row = (i64)slot * heads + head;
      if (lane < SUMS) sums[row * SUMS + lane] = 0.0f;
      for (int i = lane; i < d_columns; i += 32) sums_d[row * d_columns + i] = 0.0f;
    }
  }
}
