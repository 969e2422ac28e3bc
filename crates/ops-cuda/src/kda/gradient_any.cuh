// Shared by the gradient kernels of kda and gated_delta: chunks, gates, the package of a chunk.
// Requires storage.cuh.
//
// With S the state that enters a chunk of Q = 16 tokens, G_i the sum of log decays up to and including token i, C the last token:
//   kd_i = k_i e^{G_i}, qd_i = scale q_i e^{G_i}, ke_i = k_i e^{G_C - G_i}
//   Ak_ij = k_i e^{G_i - G_j} k_j for j < i, Aq_ij = scale q_i e^{G_i - G_j} k_j for j <= i
//   inverse = (I + Ak Diag(beta))^-1;  r = inverse (V - kd S);  U = Diag(beta) r;  S <- Diag(e^{G_C}) S + ke^T U
// All exponents are sums of log decays over tokens, in base 2, as a float and its remainder, so that differences lose no digits.
//
// Macros: DTYPE (f32, bf16, f16), K, V, GATES (K, or 1: one decay per head).

constexpr int Q = 16;
constexpr int K4 = ceil_div(K, 4) * 4;
[[maybe_unused]] constexpr int V4 = ceil_div(V, 4) * 4;
#define LOG2_E 1.44269504f
// A decay below 2^-150 per token underflows to 0 in float, and a sum with such tokens would lose the digits of others.
#define LEAST_DECAY (-150.0)

struct Chunks {
  i64 start;   // first token of the sequence among all
  int length;  // tokens of the sequence
  int count;   // chunks
  int slot;    // of the first chunk; slots: Nseq * ceil(T / Q), or packed total / Q + Nseq

  DEVICE Chunks(const int* cu_seqlens, int tokens, int sequence) {
    start = cu_seqlens != nullptr ? cu_seqlens[sequence] : (i64)sequence * tokens;
    length = cu_seqlens != nullptr ? (int)(cu_seqlens[sequence + 1] - start) : tokens;
    count = (length + Q - 1) / Q;
    slot = cu_seqlens != nullptr ? (int)(start / Q) + sequence : sequence * count;
  }
};

// Package of a chunk and value head, f32 [slots, HV, PACKAGE].
enum Package {
  KD = 0,                   // [Q, K4]
  QD = KD + Q * K4,         // [Q, K4]
  KE = QD + Q * K4,         // [Q, K4]
  DECAY = KE + Q * K4,      // [K4]: e^{G_C}
  AK = DECAY + K4,          // [Q, Q]
  AQ = AK + Q * Q,          // [Q, Q]
  INVERSE = AQ + Q * Q,     // [Q, Q]
  BETA = INVERSE + Q * Q,   // [Q]: write strength, 0 beyond the end
  PACKAGE = BETA + Q,
};

enum Gate { GATE_NONE = 0, GATE_PLAIN = 1, GATE_SAFE = 2 };

// The gate and the write strength, and what their gradients need.
struct Gates {
  const void *g, *beta, *rate_log, *bias;
  int gate, g_f32, beta_f32, rate_f32, bias_f32;
  float lower_bound, factor;

  // Loads are made in any case: one that is not volatile may be moved above a condition.
  DEVICE float x(i64 token, int heads, int head, int channel) const {
    const float raw = number(g, (token * heads + head) * GATES + channel, g_f32);
    const float own = number(bias != nullptr ? bias : g, bias != nullptr ? head * GATES + channel : 0, bias_f32);
    return bias != nullptr ? raw + own : raw;
  }
  DEVICE float rate(int head) const {
    const float own = number(gate != GATE_NONE ? rate_log : g, gate != GATE_NONE ? head : 0, rate_f32);
    return gate == GATE_NONE ? 1.0f : expf(own);
  }
  static DEVICE float sigmoid(float v) {
    const float e = expf(-fabsf(v)), s = 1.0f / (1.0f + e);
    return v >= 0.0f ? s : e * s;
  }
  // The derivative of a sigmoid. 1 less the sigmoid would lose all digits where it saturates.
  static DEVICE float slope(float v) { return sigmoid(v) * sigmoid(-v); }
  DEVICE float log_decay(float x, float rate) const {
    if (gate == GATE_PLAIN) return -rate * (fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))));
    if (gate == GATE_SAFE) return lower_bound * sigmoid(rate * x);
    return x;
  }
  // The gradient of the logit x from that of its log decay; adds to that of A_log.
  DEVICE float of_logit(float gradient, float x, float rate, float& of_rate_log) const {
    if (gate == GATE_NONE) return gradient;
    if (gate == GATE_PLAIN) {
      of_rate_log = fmaf(gradient, log_decay(x, rate), of_rate_log);
      return gradient * (-rate * sigmoid(x));
    }
    gradient *= lower_bound * rate * slope(rate * x);
    of_rate_log = fmaf(gradient, x, of_rate_log);
    return gradient;
  }
  DEVICE float strength(i64 token, int heads, int head) const {
    const float v = number(beta, token * heads + head, beta_f32);
    return gate == GATE_NONE ? v : factor * sigmoid(v);
  }
  DEVICE float strength_slope(i64 token, int heads, int head) const {
    const float v = number(beta, token * heads + head, beta_f32);
    return gate == GATE_NONE ? 1.0f : factor * slope(v);
  }
};

DEVICE void store_number(void* to, i64 index, float value, bool is_f32) {
  if (is_f32 || STORAGE == STORED_f32) {
    ((float*)to)[index] = value;
  } else {
    ((u16*)to)[index] = narrow_half(value);
  }
}

DEVICE void unpack(float (&to)[4], float4 v) {
  to[0] = v.x;
  to[1] = v.y;
  to[2] = v.z;
  to[3] = v.w;
}

DEVICE float warp_sum(float v) {
#pragma unroll
  for (int far = 16; far > 0; far /= 2) v += __shfl_xor_sync(0xffffffff, v, far);
  return v;
}

// Loads q and k of a chunk, normalised if `l2norm`; zeros beyond the end and beyond K. Each warp has whole rows.
template <int threads>
DEVICE void load_keys(float* q_tile, float* k_tile, const void* q, const void* k, int q_row, int k_row, int valid, int l2norm,
                      int thread) {
  const int lane = thread % 32;
  for (int t = thread / 32; t < 2 * Q; t += threads / 32) {
    const void* const from = t < Q ? q : k;
    float* const to = (t < Q ? q_tile : k_tile) + t % Q * K4;
    float squares = 0.0f;
    for (int c = lane; c < K4; c += 32) {
      const float v = t % Q < valid && c < K ? number(from, (i64)(t % Q) * (t < Q ? q_row : k_row) + c, false) : 0.0f;
      to[c] = v;
      squares = fmaf(v, v, squares);
    }
    if (l2norm) {
      const float scale = 1.0f / sqrtf(warp_sum(squares) + 1e-6f);
      for (int c = lane; c < K4; c += 32) to[c] *= scale;
    }
  }
}

// Sums of log decays in base 2, [Q, K4] each: the float and its remainder.
template <int threads>
DEVICE void load_sums(float* high, float* low, const Gates& gates, i64 token, int heads, int head, int valid, int thread) {
  const float rate = gates.rate(head);
  for (int c = thread; c < K4; c += threads) {
    double sum = 0.0;
    for (int t = 0; t < Q; t++) {
      if (t < valid && c < K) {
        const float g = gates.log_decay(gates.x(token + t, heads, head, GATES == 1 ? 0 : c), rate);
        sum += fmax((double)g * 1.4426950408889634, LEAST_DECAY);
      }
      high[t * K4 + c] = (float)sum;
      low[t * K4 + c] = (float)(sum - (float)sum);
    }
  }
}
