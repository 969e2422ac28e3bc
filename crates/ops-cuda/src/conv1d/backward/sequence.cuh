// Parts that the gradient kernels of conv1d share.
//
// Macros: DTYPE (f32, bf16, f16), WIDTH (2 .. 4), SILU (0, 1: the activation).

constexpr int BEFORE = WIDTH - 1;

// act'(u).
DEVICE float slope(float u) {
#if SILU
  float sigmoid;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(sigmoid) : "f"(1.0f + exp2_fast(u * -1.44269504f)));
  return sigmoid * fmaf(u, 1.0f - sigmoid, 1.0f);
#else
  return 1.0f;
#endif
}

// The inputs of one channel of one sequence.
struct Sequence {
  const char *x, *d_o;         // its first token
  const void* initial_state;   // its state, or null
  i64 apart;                   // elements from one token to the next
  int length, state_len, state_f32;

  DEVICE float value(int t) const {
    if (t >= 0) return number(x, t * apart, false);
    return initial_state == nullptr ? 0.0f : number(initial_state, state_len + t, state_f32);
  }

  // The gradient of the sum before the activation at token t; 0 outside of the sequence.
  DEVICE float gradient(int t, const float (&taps)[WIDTH], float offset) const {
    if (t >= length) return 0.0f;
    float u = offset;
#pragma unroll
    for (int w = 0; w < WIDTH; w++) u = fmaf(taps[w], value(t - BEFORE + w), u);
    return number(d_o, t * apart, false) * slope(u);
  }
};
