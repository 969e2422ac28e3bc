// Both scans over the chunks of the gradient of kda and gated_delta by MMA (tf32, mma.sync), from sm_80 on: the second of four
// launches (gradient_prepare_any.cu with TF32, scan, gradient_intra.cu, gradient_reduce_any.cu). Definitions: gradient_any.cuh.
//
//   forward:  entering = S;  r = inverse (V - kd S);  S <- Diag(e^{G_C}) S + ke^T Diag(beta) r
//   reverse:  leaving = dS;  dU = Aq^T dO + ke dS;  dv = inverse^T Diag(beta) dU;  y = dU - Ak^T dv;
//             dS <- Diag(e^{G_C}) dS + qd^T dO - kd^T dv
// A block scans 64 columns of V of one head in one direction, grid y; a warp has 16 of them, S^T [16, K] as accumulators, which are at
// the same time the left operand of the next product (multiply_tf32).
//
// v, output_gradient, dv [total, HV, V], v_row elements between tokens of v (a multiple of 8); initial_state, initial_gradient
// [Nseq, HV, K, V] as in state.cuh, final_gradient alike in f32, all three may be null; package f32 [slots, HV, PACKAGE].
// Workspace, in the storage type: entering, leaving [slots, HV, V, K], columns of K permuted in groups of 32 (column 8 j + 2 q + e is
// at 8 q + 2 j + e); r, y [total, HV, V]. All 16-byte aligned.
//
// Launch: grid (HV * V / 64, 2, Nseq); block (128); dynamic shared memory SHARED_BYTES.
// Macros: those of gradient_any.cuh with K 128, V a multiple of 64, DTYPE bf16 or f16; STATE_BF16 (0, 1).

constexpr int THREADS = 128;
constexpr int PART = 64;
constexpr int STAGES = 3;
constexpr int TILES = K / 8;
static_assert(K == 128 && V % PART == 0, "16 tiles of 8 channels per warp");
constexpr int KEY_ROW = K + 8;  // floats: rows in different banks
constexpr int PAIR_ROW = Q + 4;
constexpr int VALUE_ROW = PART + 8;  // of the storage type
// Floats of a stage.
constexpr int KD_AT = 0;
constexpr int KE_AT = KD_AT + Q * KEY_ROW;
constexpr int QD_AT = KE_AT + Q * KEY_ROW;
constexpr int DECAY_AT = QD_AT + Q * KEY_ROW;
constexpr int AK_AT = DECAY_AT + K;
constexpr int AQ_AT = AK_AT + Q * PAIR_ROW;
constexpr int INVERSE_AT = AQ_AT + Q * PAIR_ROW;
constexpr int BETA_AT = INVERSE_AT + Q * PAIR_ROW;
constexpr int VALUES_AT = BETA_AT + Q;
constexpr int STAGE_FLOATS = VALUES_AT + Q * VALUE_ROW / 2;
[[maybe_unused]] constexpr int SHARED_BYTES = STAGES * STAGE_FLOATS * 4;

DEVICE float load_state(const float* at) { return *at; }
DEVICE float load_state(const u16* at) { return __uint_as_float((u32)*at << 16); }
DEVICE void store_state(float* at, float value) { *at = value; }
DEVICE void store_state(u16* at, float value) { *at = (u16)narrow_states(value, 0.0f); }

// state (16 x K) += left (16 x Q) keys (Q x K); left as accumulators, rounded.
DEVICE void add_keys(float (&s)[TILES][4], const float (&left)[2][4], const float* keys, int lane) {
  const float* const from = keys + lane % 4 * 2 * KEY_ROW + lane / 4;
#pragma unroll
  for (int k = 0; k < 2; k++) {
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      multiply_tf32(s[n], left[k][0], left[k][2], left[k][1], left[k][3], from[k * 8 * KEY_ROW + n * 8],
                    from[(k * 8 + 1) * KEY_ROW + n * 8]);
    }
  }
}

// to (16 x Q) += state (16 x K) keys^T (K x Q).
DEVICE void read_keys(float (&to)[2][4], const float (&s)[TILES][4], const float* keys, int lane) {
  const float* const from = keys + lane / 4 * KEY_ROW + lane % 4 * 2;
  float other[2][4] = {};  // a second sum, so that fewer products wait for their predecessor
#pragma unroll
  for (int k = 0; k < TILES; k += 2) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float a0 = round_tf32(s[k + half][0]), a1 = round_tf32(s[k + half][2]), a2 = round_tf32(s[k + half][1]),
                  a3 = round_tf32(s[k + half][3]);
#pragma unroll
      for (int n = 0; n < 2; n++) {
        const float2 b = *(const float2*)(from + n * 8 * KEY_ROW + (k + half) * 8);
        multiply_tf32(half == 0 ? to[n] : other[n], a0, a1, a2, a3, b.x, b.y);
      }
    }
  }
#pragma unroll
  for (int e = 0; e < 8; e++) to[e / 4][e % 4] += other[e / 4][e % 4];
}

// to (16 x Q) += left (16 x Q) pairs (Q x Q), or with `transposed` pairs^T; left rounded.
template <bool transposed>
DEVICE void multiply_pairs(float (&to)[2][4], const float (&left)[2][4], const float* pairs, int lane) {
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int term = k * 8 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const int column = n * 8 + lane / 4;
      const float b0 = transposed ? pairs[column * PAIR_ROW + term] : pairs[term * PAIR_ROW + column];
      const float b1 = transposed ? pairs[column * PAIR_ROW + term + 1] : pairs[(term + 1) * PAIR_ROW + column];
      multiply_tf32(to[n], left[k][0], left[k][2], left[k][1], left[k][3], b0, b1);
    }
  }
}

DEVICE void round_all(float (&v)[2][4]) {
#pragma unroll
  for (int e = 0; e < 8; e++) v[e / 4][e % 4] = round_tf32(v[e / 4][e % 4]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    kda_gradient_scan(const u16* __restrict__ v, const u16* __restrict__ output_gradient, const Held* __restrict__ initial_state,
                      const float* __restrict__ final_gradient, const int* __restrict__ cu_seqlens,
                      const float* __restrict__ package, u16* __restrict__ entering, u16* __restrict__ leaving,
                      u16* __restrict__ r, u16* __restrict__ y, u16* __restrict__ dv, Held* __restrict__ initial_gradient,
                      int tokens, int value_heads, int v_row) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int head = blockIdx.x / (V / PART), part = blockIdx.x % (V / PART) * PART, sequence = blockIdx.z;
  const bool reverse = blockIdx.y != 0;
  const Chunks chunks(cu_seqlens, tokens, sequence);
  const int value_row = reverse ? value_heads * V : v_row;
  const u16* const values = (reverse ? output_gradient : v) + chunks.start * value_row + head * V + part;
  auto chunk_of = [&](int i) { return reverse ? chunks.count - 1 - i : i; };

  auto load = [&](int i) {
    if (i < chunks.count) {
      const int chunk = chunk_of(i);
      const u32 stage = base + i % STAGES * (STAGE_FLOATS * 4);
      const float* const from = package + ((i64)(chunks.slot + chunk) * value_heads + head) * PACKAGE;
#pragma unroll
      for (int at = thread; at < Q * K / 4; at += THREADS) {
        const int row = at / (K / 4), column = at % (K / 4) * 4, to = (row * KEY_ROW + column) * 4;
        copy_async<16>(stage + KD_AT * 4 + to, from + KD + at * 4);
        copy_async<16>(stage + KE_AT * 4 + to, from + KE + at * 4);
        if (reverse) copy_async<16>(stage + QD_AT * 4 + to, from + QD + at * 4);
      }
      if (thread < K / 4) copy_async<16>(stage + DECAY_AT * 4 + thread * 16, from + DECAY + thread * 4);
      if (thread < Q * Q / 4) {
        const int to = (thread / (Q / 4) * PAIR_ROW + thread % (Q / 4) * 4) * 4;
        copy_async<16>(stage + INVERSE_AT * 4 + to, from + INVERSE + thread * 4);
        if (reverse) {
          copy_async<16>(stage + AK_AT * 4 + to, from + AK + thread * 4);
          copy_async<16>(stage + AQ_AT * 4 + to, from + AQ + thread * 4);
        }
      }
      if (thread < Q / 4) copy_async<16>(stage + BETA_AT * 4 + thread * 16, from + BETA + thread * 4);
      const int row = thread / (PART / 8), column = thread % (PART / 8) * 8, t = chunk * Q + row;
      const bool there = t < chunks.length;
      copy_async<16>(stage + VALUES_AT * 4 + (row * VALUE_ROW + column) * 2, values + (there ? (i64)t * value_row + column : 0), there);
    }
    copy_commit();
  };
  static_assert(THREADS == Q * PART / 8, "a copy of values per thread");
#pragma unroll 1
  for (int i = 0; i < STAGES - 1; i++) load(i);

  const int own_v = part + warp * 16 + lane / 4;
  const i64 own_state = ((i64)sequence * value_heads + head) * (K * V);
  float s[TILES][4];
  {
    const bool there = reverse ? final_gradient != nullptr : initial_state != nullptr;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int channel = n * 8 + lane % 4 * 2 + e % 2;
        const i64 at = own_state + channel * V + own_v + e / 2 * 8;
        s[n][e] = !there ? 0.0f : reverse ? final_gradient[at] : load_state(initial_state + at);
      }
    }
  }
#pragma unroll 1
  for (int i = 0; i < chunks.count; i++) {
    copy_wait<STAGES - 2>();
    __syncthreads();  // this chunk has arrived; no warp reads the preceding one
    load(i + STAGES - 1);
    const int chunk = chunk_of(i), valid = min(Q, chunks.length - chunk * Q);
    const float* const stage = (const float*)shared + i % STAGES * STAGE_FLOATS;
    const u16* const own_values = (const u16*)(stage + VALUES_AT) + warp * 16 + lane / 4;
    u16* const snapshot = (reverse ? leaving : entering) +
                          (((i64)(chunks.slot + chunk) * value_heads + head) * V + own_v) * K + lane % 4 * 8;
#pragma unroll
    for (int n = 0; n < TILES; n += 4) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int e = half * 2;
        *(uint4*)(snapshot + half * 8 * K + n * 8) = make_uint4(pack(s[n][e], s[n][e + 1]), pack(s[n + 1][e], s[n + 1][e + 1]),
                                                                pack(s[n + 2][e], s[n + 2][e + 1]), pack(s[n + 3][e], s[n + 3][e + 1]));
      }
    }
    float own[2][4];  // v or dO, transposed: columns lane / 4, that + 8; tokens 8 n + 2 q, the next
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        own[n][e] = widen_half(own_values[(n * 8 + lane % 4 * 2 + e % 2) * VALUE_ROW + e / 2 * 8]);
      }
    }
    float beta[2][2];
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const float2 two = *(const float2*)(stage + BETA_AT + n * 8 + lane % 4 * 2);
      beta[n][0] = two.x;
      beta[n][1] = two.y;
    }
    const i64 row = (chunks.start + chunk * Q) * value_heads + head;
    auto write = [&](u16* to, const float (&from)[2][4]) {
#pragma unroll
      for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int t = n * 8 + lane % 4 * 2 + e % 2;
          if (t < valid) to[(row + (i64)t * value_heads) * V + own_v + e / 2 * 8] = narrow_half(from[n][e]);
        }
      }
    };
    float read[2][4] = {}, solved[2][4] = {};
    read_keys(read, s, stage + (reverse ? KE_AT : KD_AT), lane);
    // The state's own decay.
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      const float2 decay = *(const float2*)(stage + DECAY_AT + n * 8 + lane % 4 * 2);
      s[n][0] *= decay.x;
      s[n][1] *= decay.y;
      s[n][2] *= decay.x;
      s[n][3] *= decay.y;
    }
    if (!reverse) {
#pragma unroll
      for (int e = 0; e < 8; e++) read[e / 4][e % 4] = round_tf32(own[e / 4][e % 4] - read[e / 4][e % 4]);
      multiply_pairs<true>(solved, read, stage + INVERSE_AT, lane);
      write(r, solved);
#pragma unroll
      for (int e = 0; e < 8; e++) solved[e / 4][e % 4] = round_tf32(solved[e / 4][e % 4] * beta[e / 4][e % 2]);
      add_keys(s, solved, stage + KE_AT, lane);
    } else {
      multiply_pairs<false>(read, own, stage + AQ_AT, lane);  // dU
      float weighted[2][4];
#pragma unroll
      for (int e = 0; e < 8; e++) weighted[e / 4][e % 4] = round_tf32(read[e / 4][e % 4] * beta[e / 4][e % 2]);
      multiply_pairs<false>(solved, weighted, stage + INVERSE_AT, lane);  // dv
      write(dv, solved);
#pragma unroll
      for (int e = 0; e < 8; e++) solved[e / 4][e % 4] = round_tf32(-solved[e / 4][e % 4]);
      multiply_pairs<false>(read, solved, stage + AK_AT, lane);
      write(y, read);
      add_keys(s, own, stage + QD_AT, lane);
      add_keys(s, solved, stage + KD_AT, lane);
    }
  }
  copy_wait<0>();
  if (reverse && initial_gradient != nullptr) {
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int channel = n * 8 + lane % 4 * 2 + e % 2;
        store_state(initial_gradient + own_state + channel * V + own_v + e / 2 * 8, s[n][e]);
      }
    }
  }
}
