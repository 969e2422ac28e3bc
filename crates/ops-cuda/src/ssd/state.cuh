// Recurrent states as they are stored: float32, or bfloat16 rounded to nearest even. Kernels compute with float either way.
// Requires no other file.
//
// Macros: STATE_BF16 (0, 1).

#ifndef STATE_BF16
#define STATE_BF16 0
#endif

#if STATE_BF16
typedef unsigned short Held;
#else
typedef float Held;
#endif

// Two adjacent elements of a state in bfloat16, the first in the low half.
__device__ __forceinline__ float2 widen_states(unsigned pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

__device__ __forceinline__ unsigned narrow_states(float first, float second) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
