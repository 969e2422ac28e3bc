// Gradients within chunks of ssd in float32 arithmetic, for any P and N and every storage type: the second of three launches
// (states, chunk, reduce). The formulas and the division of work among blocks are those of gradient_chunk.cu, with chunks of
// CHUNK tokens; products are computed in tiles of 4 x 4 per thread. States are read from global memory.
// Row sums minus column sums of S E are computed as the sum of S_ij E_ij over j < t <= i, from prefix sums along the rows: in the
// difference large terms would cancel, and dA would have 20 times the error if decays are fast or of very different size.
//
// With a gate o = y silu(z): dy = do silu(z) from gradient_gate.cu, and y is recomputed for dz = do y silu'(z). Without, z and dz are
// null and dy is do.
//
// Arguments as in gradient_chunk.cu, but entering and leaving are f32 [slots, H, P, N4], N4 = N rounded up to a multiple of 4, and
// strides and alignment are free. Also: z, output_gradient (do) and dz like x, z with z_row elements between tokens; ddt [B, T, H] or
// [total, H]; table, sums and sums_d as in gradient_states_any.cu.
//
// Launch: grid (G * splits, chunks of the longest sequence, Nseq); block (256); dynamic shared memory SHARED_BYTES:
// 4 * (2 CHUNK (P4 + 2 N4) + 4 CHUNK^2 + 12 CHUNK + CHUNK (N4 / 4 + 2 P4 / 4) + 8).
// Macros: DTYPE (f32, bf16, f16), DY_F32 (0, 1: dy is float32, from gradient_gate.cu), P, N, CHUNK (16, 32).

#ifndef DY_F32
#define DY_F32 0
#endif

constexpr int THREADS = 256;
constexpr int TABLE_ARRAYS = STEP_ARRAYS + 1;
constexpr int EXPONENT_LOW = STEP_ARRAYS * Q;  // the remainder of a_i, rounded to float
constexpr int P4 = ceil_div(P, 4) * 4, N4 = ceil_div(N, 4) * 4;
// Floats in shared memory.
constexpr int X_AT = 0;
constexpr int DY_AT = X_AT + Q * P4;
constexpr int B_AT = DY_AT + Q * P4;
constexpr int C_AT = B_AT + Q * N4;
constexpr int DB_AT = C_AT + Q * N4;
constexpr int DC_AT = DB_AT + Q * N4;
constexpr int SCORES_AT = DC_AT + Q * N4;
constexpr int MIX_AT = SCORES_AT + Q * Q;       // S exp(a_t - a_s)
constexpr int WEIGHTS_AT = MIX_AT + Q * Q;      // E, summed over heads
constexpr int TERMS_AT = WEIGHTS_AT + Q * Q;    // S E of a head below the diagonal, 0 elsewhere
constexpr int STEPS_AT = TERMS_AT + Q * Q;
constexpr int FROM_ENTERING_AT = STEPS_AT + TABLE_ARRAYS * Q;    // [N4 / 4][Q]: exp(a_t) dy_t . h C_t
constexpr int TO_LEAVING_AT = FROM_ENTERING_AT + N4 / 4 * Q;     // [P4 / 4][Q]: exp(a_L - a_s) x_s . g B_s
constexpr int ALL_OF_STEP_AT = TO_LEAVING_AT + P4 / 4 * Q;       // [P4 / 4][Q]: x_s . R_s
constexpr int PAIRS_AT = ALL_OF_STEP_AT + P4 / 4 * Q;            // [8 warps][Q]: a warp's rows of the pairs of alpha
constexpr int TRACE_AT = PAIRS_AT + 8 * Q;                       // [8 warps]: <h, g>
constexpr int SHARED_BYTES = (TRACE_AT + 8) * 4;
static_assert(Q <= 32 && SHARED_BYTES <= 227 * 1024, "a lane per token; no more shared memory than a GPU has");

DEVICE void unpack(float (&to)[4], float4 v) {
  to[0] = v.x;
  to[1] = v.y;
  to[2] = v.z;
  to[3] = v.w;
}

// acc += left right^T: 4 rows of each, `depth` long, a multiple of 4; rows outside `right_rows` are not read.
DEVICE void multiply_rows(float (&acc)[4][4], const float* left, int left_row, const float* right, int right_row, int right_rows,
                          int depth) {
#pragma unroll 2
  for (int k = 0; k < depth; k += 4) {
    float l[4][4], r[4][4] = {};
#pragma unroll
    for (int e = 0; e < 4; e++) {
      unpack(l[e], *(const float4*)(left + e * left_row + k));
      if (e < right_rows) unpack(r[e], *(const float4*)(right + e * right_row + k));
    }
#pragma unroll
    for (int e = 0; e < 16; e++) {
#pragma unroll
      for (int j = 0; j < 4; j++) acc[e / 4][e % 4] = fmaf(l[e / 4][j], r[e % 4][j], acc[e / 4][e % 4]);
    }
  }
}

// acc += left right: 4 rows of left, 4 columns of right, `depth` from `first`.
DEVICE void multiply_columns(float (&acc)[4][4], const float* left, int left_row, const float* right, int right_row, int first,
                             int depth) {
#pragma unroll 4
  for (int k = first; k < depth; k++) {
    float r[4];
    unpack(r, *(const float4*)(right + (i64)k * right_row));
#pragma unroll
    for (int e = 0; e < 16; e++) acc[e / 4][e % 4] = fmaf(left[e / 4 * left_row + k], r[e % 4], acc[e / 4][e % 4]);
  }
}

// acc += left^T right: 4 columns of each, rows `first` to `depth`.
DEVICE void multiply_transposed(float (&acc)[4][4], const float* left, int left_row, const float* right, int right_row, int first,
                                int depth) {
#pragma unroll 4
  for (int k = first; k < depth; k++) {
    float l[4], r[4];
    unpack(l, *(const float4*)(left + k * left_row));
    unpack(r, *(const float4*)(right + k * right_row));
#pragma unroll
    for (int e = 0; e < 16; e++) acc[e / 4][e % 4] = fmaf(l[e / 4], r[e % 4], acc[e / 4][e % 4]);
  }
}

// exp(a_t - a_s).
DEVICE float decay_of(const float* steps, int t, int s) {
  return exp2_fast(steps[EXPONENT + t] - steps[EXPONENT + s] + (steps[EXPONENT_LOW + t] - steps[EXPONENT_LOW + s]));
}

DEVICE float warp_sum(float v) {
#pragma unroll
  for (int far = 16; far > 0; far /= 2) v += __shfl_xor_sync(0xffffffff, v, far);
  return v;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ssd_gradient_chunk_any(const void* __restrict__ x, const void* __restrict__ dy, const void* __restrict__ rate,
                           const void* __restrict__ b, const void* __restrict__ c, const void* __restrict__ d,
                           const void* __restrict__ z, const void* __restrict__ output_gradient,
                           const int* __restrict__ cu_seqlens, const float* __restrict__ entering,
                           const float* __restrict__ leaving, const float* __restrict__ table, void* __restrict__ dx,
                           void* __restrict__ ddt, void* __restrict__ db, void* __restrict__ dc, void* __restrict__ dz,
                           float* __restrict__ sums, float* __restrict__ sums_d, float* __restrict__ partial, i64 total,
                           int tokens, int heads, int groups, int splits, int x_row, int b_row, int z_row, int dt_f32,
                           int rate_f32, int d_f32, int d_per_channel) {
  extern __shared__ __align__(128) unsigned char shared[];
  float* const memory = (float*)shared;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const Chunks chunks(cu_seqlens, tokens, blockIdx.z);
  const int chunk = blockIdx.y;
  if (chunk >= chunks.count) return;
  const int group = blockIdx.x / splits, split = blockIdx.x % splits;
  const int per_group = heads / groups, per_split = (per_group + splits - 1) / splits;
  const int first_head = group * per_group + split * per_split;
  const int last_head = min(first_head + per_split, (group + 1) * per_group);
  const i64 token = chunks.start + chunk * Q;
  const int valid = min(Q, chunks.length - chunk * Q);
  const i64 slot_row = (i64)(chunks.slot + chunk) * heads;
  const float* const steps = memory + STEPS_AT;

  for (int at = thread; at < Q * N4; at += THREADS) {
    const int t = at / N4, n = at % N4;
    const bool there = t < valid && n < N;
    const i64 from = (token + t) * b_row + group * N + n;
    memory[B_AT + at] = there ? number(b, from, false) : 0.0f;
    memory[C_AT + at] = there ? number(c, from, false) : 0.0f;
    memory[DB_AT + at] = memory[DC_AT + at] = 0.0f;
  }
  for (int at = thread; at < Q * Q; at += THREADS) memory[WEIGHTS_AT + at] = memory[MIX_AT + at] = memory[TERMS_AT + at] = 0.0f;
  __syncthreads();
  constexpr int TOKEN_TILES = Q / 4;
  const int own_row = thread / TOKEN_TILES * 4, own_column = thread % TOKEN_TILES * 4;  // tile of [Q, Q]
  const bool own_tile = own_row < Q && own_column <= own_row;
  if (own_tile) {
    float acc[4][4] = {};
    multiply_rows(acc, memory + C_AT + own_row * N4, N4, memory + B_AT + own_column * N4, N4, 4, N4);
#pragma unroll
    for (int e = 0; e < 16; e++) memory[SCORES_AT + (own_row + e / 4) * Q + own_column + e % 4] = acc[e / 4][e % 4];
  }

#pragma unroll 1
  for (int head = first_head; head < last_head; head++) {
    __syncthreads();  // no thread reads the tiles of the preceding head
    for (int at = thread; at < Q * P4; at += THREADS) {
      const int t = at / P4, p = at % P4;
      const bool there = t < valid && p < P;
      memory[X_AT + at] = there ? number(x, (token + t) * x_row + head * P + p, false) : 0.0f;
      memory[DY_AT + at] = there ? number(dy, ((token + t) * heads + head) * P + p, DY_F32) : 0.0f;
    }
    for (int at = thread; at < TABLE_ARRAYS * Q; at += THREADS) {
      memory[STEPS_AT + at] = table[(slot_row + head) * (TABLE_ARRAYS * Q) + at];
    }
    __syncthreads();
    const float* const h = entering + (slot_row + head) * (P * N4);
    const float* const g = leaving + (slot_row + head) * (P * N4);

    // ---- W, the mixing weights, E, and the terms S E.
    if (own_tile) {
      float w[4][4] = {};
      multiply_rows(w, memory + DY_AT + own_row * P4, P4, memory + X_AT + own_column * P4, P4, 4, P4);
#pragma unroll
      for (int e = 0; e < 16; e++) {
        const int t = own_row + e / 4, s = own_column + e % 4, at = t * Q + s;
        if (s > t) continue;  // the exponent may be positive
        const float decay = decay_of(steps, t, s), score = memory[SCORES_AT + at];
        const float weight = decay * steps[STEP + s] * w[e / 4][e % 4];
        memory[MIX_AT + at] = decay * score;
        memory[WEIGHTS_AT + at] += weight;
        if (s < t) memory[TERMS_AT + at] = weight * score;
      }
    }
    // ---- dC += exp(a_t) h^T dy_t, and its product with C; dB += exp(a_L - a_s) D_s g^T x_s.
    for (int tile = thread; tile < TOKEN_TILES * (N4 / 4); tile += THREADS) {
      const int t = tile / (N4 / 4) * 4, n = tile % (N4 / 4) * 4;
      float of_c[4][4] = {}, of_b[4][4] = {};
      multiply_columns(of_c, memory + DY_AT + t * P4, P4, h + n, N4, 0, P);
      multiply_columns(of_b, memory + X_AT + t * P4, P4, g + n, N4, 0, P);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float from_start = exp2_fast(steps[EXPONENT + t + e]), to_end = decay_of(steps, Q - 1, t + e) * steps[STEP + t + e];
        float dot = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const int at = (t + e) * N4 + n + j;
          dot = fmaf(of_c[e][j], memory[C_AT + at], dot);
          memory[DC_AT + at] += from_start * of_c[e][j];
          memory[DB_AT + at] += to_end * of_b[e][j];
        }
        memory[FROM_ENTERING_AT + n / 4 * Q + t + e] = from_start * dot;
      }
    }
    float trace = 0.0f;
    for (int at = thread; at < P * N4; at += THREADS) trace = fmaf(h[at], g[at], trace);
    trace = warp_sum(trace);
    if (lane == 0) memory[TRACE_AT + warp] = trace;
    __syncthreads();  // the mixing weights and the terms are written

    // ---- Pairs of alpha_t: sum over rows i >= t of the terms left of column t; a lane per t, rows distributed over warps.
    float pairs = 0.0f;
#pragma unroll
    for (int row = warp; row < Q; row += THREADS / 32) {
      float left = lane > 0 && lane <= row ? memory[TERMS_AT + row * Q + lane - 1] : 0.0f;
#pragma unroll
      for (int far = 1; far < Q; far *= 2) {
        const float other = __shfl_up_sync(0xffffffff, left, far);
        if (lane >= far) left += other;
      }
      if (lane <= row) pairs += left;
    }
    if (lane < Q) memory[PAIRS_AT + warp * Q + lane] = pairs;

    // ---- R, dx; with a gate y, dz.
    for (int tile = thread; tile < TOKEN_TILES * (P4 / 4); tile += THREADS) {
      const int s = tile / (P4 / 4) * 4, p = tile % (P4 / 4) * 4;
      float r[4][4] = {}, y[4][4] = {};
      multiply_rows(r, memory + B_AT + s * N4, N4, g + p * N4, N4, P - p, N4);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float to_end = decay_of(steps, Q - 1, s + e);
        float dot = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
          r[e][j] *= to_end;
          dot = fmaf(r[e][j], memory[X_AT + (s + e) * P4 + p + j], dot);
        }
        memory[TO_LEAVING_AT + p / 4 * Q + s + e] = dot;
      }
      multiply_transposed(r, memory + MIX_AT + s, Q, memory + DY_AT + p, P4, s, Q);
      if (z != nullptr) {
        multiply_rows(y, memory + C_AT + s * N4, N4, h + p * N4, N4, P - p, N4);
#pragma unroll
        for (int e = 0; e < 16; e++) y[e / 4][e % 4] *= exp2_fast(steps[EXPONENT + s + e / 4]);
        for (int k = 0; k < s + 4; k++) {
          float right[4];
          unpack(right, *(const float4*)(memory + X_AT + k * P4 + p));
#pragma unroll
          for (int e = 0; e < 4; e++) {
            const float mix = memory[MIX_AT + (s + e) * Q + k] * steps[STEP + k];
#pragma unroll
            for (int j = 0; j < 4; j++) y[e][j] = fmaf(mix, right[j], y[e][j]);
          }
        }
      }
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float dot = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const float own_x = memory[X_AT + (s + e) * P4 + p + j];
          dot = fmaf(r[e][j], own_x, dot);
          if (s + e >= valid || p + j >= P) continue;
          const float skip = number_or_zero(d, rate, d_per_channel ? head * P + p + j : head, d_f32);
          const i64 at = ((token + s + e) * heads + head) * P + p + j;
          store_number(dx, at, fmaf(steps[STEP + s + e], r[e][j], skip * memory[DY_AT + (s + e) * P4 + p + j]), false);
          if (z != nullptr) {
            const float gate = number_or_zero(z, rate, (token + s + e) * z_row + head * P + p + j, false);
            store_number(dz, at, number_or_zero(output_gradient, rate, at, false) * fmaf(skip, own_x, y[e][j]) * silu_slope(gate), false);
          }
        }
        memory[ALL_OF_STEP_AT + p / 4 * Q + s + e] = dot;
      }
    }
    __syncthreads();

    // ---- Sums over tokens: D by the second warp on, all others by the first, a lane per token.
    if (warp == 0) {
      const bool there = lane < Q;
      const int t = there ? lane : Q - 1;
      float after = 0.0f, before = 0.0f, all = 0.0f, of_pairs = 0.0f, of_trace = 0.0f;
      for (int k = 0; k < N4 / 4; k++) after += memory[FROM_ENTERING_AT + k * Q + t];
      for (int k = 0; k < P4 / 4; k++) {
        before += memory[TO_LEAVING_AT + k * Q + t];
        all += memory[ALL_OF_STEP_AT + k * Q + t];
      }
      for (int k = 0; k < 8; k++) {
        of_pairs += memory[PAIRS_AT + k * Q + t];
        of_trace += memory[TRACE_AT + k];
      }
      const float step = there ? steps[STEP + t] : 0.0f;
      before *= step;
      if (!there) after = 0.0f;
#pragma unroll
      for (int far = 1; far < 32; far *= 2) {
        const float later = __shfl_down_sync(0xffffffff, after, far), earlier = __shfl_up_sync(0xffffffff, before, far);
        if (lane + far < 32) after += later;
        if (lane >= far) before += earlier;
      }
      // Shifted: subtracting the own term could lose smaller ones.
      before = __shfl_up_sync(0xffffffff, before, 1);
      if (lane == 0) before = 0.0f;
      const float alpha = of_pairs + after + (before + exp2_fast(steps[EXPONENT + Q - 1]) * of_trace);
      const float gradient = there ? steps[SLOPE + t] * fmaf(alpha, number(rate, head, rate_f32), all) : 0.0f;
      if (lane < valid) store_number(ddt, (token + lane) * heads + head, gradient, dt_f32);
      const float of_rate = warp_sum(alpha * step), of_step = warp_sum(gradient);
      if (lane == 0) {
        sums[(slot_row + head) * SUMS + SUM_RATE] = of_rate;
        sums[(slot_row + head) * SUMS + SUM_STEP] = of_step;
      }
    } else if (warp == 1) {
      float of_head = 0.0f;
      for (int p = lane; p < P; p += 32) {
        float of_d = 0.0f;
        for (int t = 0; t < Q; t++) of_d = fmaf(memory[X_AT + t * P4 + p], memory[DY_AT + t * P4 + p], of_d);
        if (d_per_channel) sums_d[(slot_row + head) * P + p] = of_d;
        of_head += of_d;
      }
      of_head = warp_sum(of_head);
      if (!d_per_channel && lane == 0) sums_d[slot_row + head] = of_head;
    }
  }
  __syncthreads();

  // ---- dC += E B, dB += E^T C.
  for (int tile = thread; tile < TOKEN_TILES * (N4 / 4); tile += THREADS) {
    const int t = tile / (N4 / 4) * 4, n = tile % (N4 / 4) * 4;
    float of_c[4][4] = {}, of_b[4][4] = {};
    multiply_columns(of_c, memory + WEIGHTS_AT + t * Q, Q, memory + B_AT + n, N4, 0, t + 4);
    multiply_transposed(of_b, memory + WEIGHTS_AT + t, Q, memory + C_AT + n, N4, t, Q);
#pragma unroll
    for (int e = 0; e < 16; e++) {
      const int row = t + e / 4, column = n + e % 4;
      if (row >= valid || column >= N) continue;
      const i64 at = ((token + row) * groups + group) * N + column, all = total * groups * N;
      const float value_b = memory[DB_AT + row * N4 + column] + of_b[e / 4][e % 4];
      const float value_c = memory[DC_AT + row * N4 + column] + of_c[e / 4][e % 4];
      if (splits > 1) {
        partial[split * all + at] = value_b;
        partial[(splits + split) * all + at] = value_c;
      } else {
        store_number(db, at, value_b, false);
        store_number(dc, at, value_c, false);
      }
    }
  }
}
