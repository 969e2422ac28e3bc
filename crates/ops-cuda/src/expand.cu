// Dequantizes weights to bf16 (times their scales) for the kernels for many rows.
//
// w [rows, inputs] in e4m3, or with INTEGERS in int8, or (WEIGHT_BITS 4) in uint4, the low nibble of a byte first, minus
// zero points: w_zero u8 of w_scale's shape, or 8 if both it and w_offset are null. w_scale [rows / each, groups, each], groups =
// ceil(inputs / group), f32 (factor_bits 32), f16 (16) or bf16 (17); w_offset f32 of w_scale's shape or null, subtracted after scaling.
// o [rows, inputs] in bf16; with order i32 [inputs] column k of w is column order[k] of o. w and o 16-byte aligned.
//
// Launch: grid ceil(rows * inputs / 4096); block 256. Source: include/storage.cuh, then this. Macros: DTYPE (bf16), INTEGERS, WEIGHT_BITS.

// Exact, subnormals included: sign, exponent and mantissa at their float32 positions, times 2^120 for the difference of the exponent biases.
DEVICE float e4m3(u32 bits) {
  const float value = __uint_as_float((bits & 0x80) << 24 | (bits & 0x7f) << 20) * 1.329227995784916e36f;
  return (bits & 0x7f) == 0x7f ? __uint_as_float(0x7fffffff) : value;
}

DEVICE float weight(u32 bits, float zero) {
  if constexpr (WEIGHT_BITS == 4) return (float)bits - zero;
  return INTEGERS ? (float)(signed char)bits : e4m3(bits);
}

// Scale, zero point and offset of a weight.
struct Factor {
  float scale, zero, offset;

  DEVICE float apply(u32 bits) const { return weight(bits, zero) * scale - offset; }
};

extern "C" __global__ void __launch_bounds__(256)
    expand(const unsigned char* __restrict__ w, const void* __restrict__ w_scale,
           const unsigned char* __restrict__ w_zero, const float* __restrict__ w_offset, const int* __restrict__ order,
           u16* __restrict__ o, int rows, int inputs, int each, int group, int factor_bits) {
  const i64 count = (i64)rows * inputs, from = ((i64)blockIdx.x * 256 + threadIdx.x) * 16;
  if (from >= count) return;
  const int row = from / inputs, column = from - (i64)row * inputs;
  const auto factor = [&](int row, int column) {
    const int item = row / each;
    const i64 at = ((i64)item * ceil_div(inputs, group) + column / group) * each + (row - item * each);
    Factor of = {0.0f, w_zero != nullptr ? (float)__ldg(w_zero + at) : w_offset != nullptr ? 0.0f : 8.0f, 0.0f};
    if (w_offset != nullptr) of.offset = __ldg(w_offset + at);
    if (factor_bits == 32) {
      of.scale = __ldg((const float*)w_scale + at);
    } else {
      const u16 half = __ldg((const u16*)w_scale + at);
      asm("cvt.f32.f16 %0, %1;" : "=f"(of.scale) : "h"(half));
      if (factor_bits == 17) of.scale = __uint_as_float((u32)half << 16);
    }
    return of;
  };
  // Groups are multiples of 32 columns, so these 16 columns have one scale.
  if (inputs % 16 == 0 && order == nullptr) {
    u32 word[WEIGHT_BITS / 2];
    if constexpr (WEIGHT_BITS == 4) {
      const uint2 piece = __ldg((const uint2*)(w + from / 2));
      word[0] = piece.x, word[1] = piece.y;
    } else {
      const uint4 piece = __ldg((const uint4*)(w + from));
      word[0] = piece.x, word[1] = piece.y, word[2] = piece.z, word[3] = piece.w;
    }
    const Factor of = factor(row, column);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float values[8];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        constexpr int IN_WORD = 32 / WEIGHT_BITS;
        const int at = half * 8 + i;
        values[i] = of.apply(word[at / IN_WORD] >> at % IN_WORD * WEIGHT_BITS & ((1 << WEIGHT_BITS) - 1));
      }
      Stored<8> rounded;
      rounded.set(values);
      rounded.store(o + from + half * 8);
    }
    return;
  }
  int here = row, k = column;
  for (i64 i = from; i < min(from + 16, count); i++) {
    const u32 bits = WEIGHT_BITS == 4 ? w[i / 2] >> i % 2 * 4 & 15 : w[i];
    const Factor of = factor(here, k);
    o[(i64)here * inputs + (order != nullptr ? order[k] : k)] = narrow_half(of.apply(bits));
    if (++k == inputs) k = 0, here++;
  }
}
