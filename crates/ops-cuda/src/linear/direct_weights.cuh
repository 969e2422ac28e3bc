// Conversion of direct.cu's quantized weights to pairs of f16 or bf16, and its MMA. Follows include/narrow.cuh and stream.cuh.
//
// Macros: those of direct.cu.

// For up to eight rows x is in f16: one instruction converts two e4m3 values (from compute capability 8.9 on). Integers need few
// instructions, so their x is in f16 for up to sixteen rows. Otherwise it is in bf16; so it is for more than eight rows if weights
// have BLOCKS, whose scales are then applied to the weights before the MMA.
#define FOLDED (BLOCKS && TOKENS > 8)
#define HALVED (INTEGERS ? TOKENS <= (FOLDED ? 8 : 16) : TOKENS <= 8 && __CUDA_ARCH__ >= 890)

#if INTEGERS && WEIGHT_BITS == 8 && !HALVED
// Four int8 weights as two pairs in bf16: 128 plus the low seven bits, minus 128, or minus 256 if the sign bit
// is set.
DEVICE void small_weights(u32 bits, u32& first, u32& second) {
  const u32 low = __byte_perm(bits, 0, 0x4140), high = __byte_perm(bits, 0, 0x4342);
  first = fma_pair(masked<0x007f007f, 0x43004300>(low), ONES, masked<0x00800080, 0xc300c300>(low));
  second = fma_pair(masked<0x007f007f, 0x43004300>(high), ONES, masked<0x00800080, 0xc300c300>(high));
}
#elif INTEGERS && WEIGHT_BITS == 8
// Four int8 weights as two pairs in f16: 0x64 followed by a byte is 1024 plus the byte, which is the weight plus 128.
DEVICE void small_weights(u32 bits, u32& first, u32& second) {
  bits ^= 0x80808080;
  const u32 low = __byte_perm(bits, 0x64646464, 0x4140), high = __byte_perm(bits, 0x64646464, 0x4342);
  asm("sub.f16x2 %0, %1, %2;" : "=r"(first) : "r"(low), "r"(0x64806480));
  asm("sub.f16x2 %0, %1, %2;" : "=r"(second) : "r"(high), "r"(0x64806480));
}
#elif HALVED
// Four weights in e4m3 as two pairs in f16.
DEVICE void small_weights(u32 bits, u32& first, u32& second) {
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}"
      : "=r"(first), "=r"(second)
      : "r"(bits));
}
#else
// Four weights in e4m3 as two pairs in bf16, scaled by 2^-120: sign, exponent and mantissa are at their bf16 positions, and bf16's
// exponent bias is 120 larger. That holds for subnormals too, which both types have. x is scaled by X_FACTOR = 2^64,
// which overflows bf16 for no value that a model computes, and the sums by SUM_FACTOR = 2^56.
DEVICE void small_weights(u32 bits, u32& first, u32& second) {
  const u32 low = __byte_perm(bits, 0, 0x1404), high = __byte_perm(bits, 0, 0x3424);
  first = (low & 0x80008000) | (low >> 4 & 0x07f007f0);
  second = (high & 0x80008000) | (high >> 4 & 0x07f007f0);
#if THROUGH
  // x is not scaled here, so the weights are; adding -0 keeps the sign of a zero.
  asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(first) : "r"(0x5f805f80), "r"(0x80008000));
  asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(second) : "r"(0x5f805f80), "r"(0x80008000));
#endif
}
#endif

#if WEIGHT_BITS == 4 && !HALVED
// Eight 4-bit weights as pairs in bf16: 0x430 and a nibble is 128 plus the nibble; `less` subtracts 128 and the zero point, unless the
// scale's addend does (FOLDED and OFFSET). Pairs have elements four apart, as x is stored, or with THROUGH adjacent ones, as x is read.
DEVICE void four_bits(u32 bits, u32 less, u32 (&pair)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
#if THROUGH
    u32 both = bits >> 8 * i;
    asm("lop3.b32 %0, %0, %1, %2, 0xd8;" : "+r"(both) : "r"(both << 12), "r"(0x000f0000));
#else
    const u32 both = bits >> 4 * i;
#endif
    pair[i] = masked<0x000f000f, 0x43004300>(both);
    if (!(FOLDED && OFFSET)) pair[i] = fma_pair(pair[i], ONES, less);
  }
}

// Minus 128 and minus the zero point, twice in bf16: the addend for the weights of a group.
DEVICE u32 less_of(u32 zero) { return 0xc300c300 + zero * 0x10001; }
#elif WEIGHT_BITS == 4
// Two pairs of 4-bit weights (elements four apart) in f16, the first 256 and the second 16 more than the weights. Bits of f16's
// mantissa are set, so this is exact, and so are the products; 256 and 16 times the sums of x are subtracted after the MMA.
DEVICE void four_bits(u32 bits, u32& first, u32& second) {
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(first) : "r"(bits), "r"(0x003c003c), "r"(0x5c005c00));
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(second) : "r"(bits), "r"(0x03c003c0), "r"(0x4c004c00));
}
#endif

// d += a b, in the type of x.
DEVICE void multiply_x(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (HALVED) {
    float to[4];
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));
#pragma unroll
    for (int i = 0; i < 4; i++) d[i] = to[i];
  } else {
    multiply(d, a, b0, b1);
  }
}
