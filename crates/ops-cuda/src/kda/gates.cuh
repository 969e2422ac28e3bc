// Input conversion shared by all kda kernels: elements of the storage type or f32, log decays and write strengths.
//
// Macros: STORAGE is how q, k, v and o are stored: 0 bf16, 1 f16, 2 f32.
//
// `types` has the bits of f32 inputs (others are stored like q): bit 0 g, 1 beta, 2 A_log, 3 dt_bias; bit 4: the initial
// state is bf16 rather than f32. `gate` is 0 for log decays as given, 1 for the plain and 2 for the safe gate.

#define LOG2E 1.44269504f

enum { WIDE_GATE = 1, WIDE_BETA = 2, WIDE_RATE = 4, WIDE_BIAS = 8, NARROW_STATE = 16 };

DEVICE float widen(u32 half) {
#if STORAGE == 1
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((u16)half));
  return x;
#else
  return __uint_as_float(half << 16);
#endif
}

// Two halves of a word.
DEVICE float widen_low(u32 word) { return STORAGE == 1 ? widen(word & 0xffff) : __uint_as_float(word << 16); }
DEVICE float widen_high(u32 word) { return STORAGE == 1 ? widen(word >> 16) : __uint_as_float(word & 0xffff0000); }

// Two floats rounded to the storage type; `low` gets the lower half.
DEVICE u32 narrow(float low, float high) {
  u32 word;
#if STORAGE == 1
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#endif
  return word;
}

DEVICE float element(const void* from, i64 at, bool wide) {
  return wide || STORAGE == 2 ? ((const float*)from)[at] : widen(((const u16*)from)[at]);
}

DEVICE float bf16_element(const void* from, i64 at) { return __uint_as_float((u32)((const u16*)from)[at] << 16); }

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

DEVICE float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// The log decay of one channel; `rate` is e^A_log.
DEVICE float log_decay(float x, int gate, float rate, float bias, float lower_bound) {
  if (gate == 0) return x;
  return gate == 1 ? -rate * softplus(x + bias) : lower_bound * sigmoid(rate * (x + bias));
}

// The write strength (beta); a factor of 0 means that x is the strength itself.
DEVICE float strength(float x, float factor) { return factor == 0.0f ? x : factor * sigmoid(x); }
