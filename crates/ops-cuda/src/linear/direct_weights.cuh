// What direct.cu multiplies: narrow weights as pairs, and the product. Stands behind include/narrow.cuh and stream.cuh.
//
// Macros: those of direct.cu.

// For up to eight rows x is in f16: one operation makes two numbers of e4m3 (from compute capability 8.9 on), and few are needed for
// integers, for up to sixteen. For more rows it is in bf16, and for more than eight if weights in blocks meet their factors before
// they are multiplied.
#define FOLDED (BLOCKS && TOKENS > 8)
#define HALVED (INTEGERS ? TOKENS <= (FOLDED ? 8 : 16) : TOKENS <= 8 && __CUDA_ARCH__ >= 890)

#if INTEGERS && WEIGHT_BITS == 8 && !HALVED
// Four weights of eight bits as two pairs in bf16: 128 and seven bits, less 128, or less 256 where the eighth says that the weight is
// below 0.
DEVICE void small_weights(u32 bits, u32& first, u32& second) {
  const u32 low = __byte_perm(bits, 0, 0x4140), high = __byte_perm(bits, 0, 0x4342);
  first = fma_pair(masked<0x007f007f, 0x43004300>(low), ONES, masked<0x00800080, 0xc300c300>(low));
  second = fma_pair(masked<0x007f007f, 0x43004300>(high), ONES, masked<0x00800080, 0xc300c300>(high));
}
#elif INTEGERS && WEIGHT_BITS == 8
// Four weights of eight bits as two pairs in f16: behind 0x64 it has 1024 and a number from 0 on, 128 more than the weight.
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
// Four weights in e4m3 as two pairs in bf16, 2^-120 times as large: sign, exponent and mantissa are set where bf16 has them, and its
// exponents' bias is 120 more. That holds for numbers below the smallest exponent too, which both types have. x is X_FACTOR times as
// large in turn, which no number that a model computes leaves bf16's range by, and SUM_FACTOR is what is left.
DEVICE void small_weights(u32 bits, u32& first, u32& second) {
  const u32 low = __byte_perm(bits, 0, 0x1404), high = __byte_perm(bits, 0, 0x3424);
  first = (low & 0x80008000) | (low >> 4 & 0x07f007f0);
  second = (high & 0x80008000) | (high >> 4 & 0x07f007f0);
#if THROUGH
  // x comes as it is; adding -0 keeps the sign of a zero.
  asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(first) : "r"(0x5f805f80), "r"(0x80008000));
  asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(second) : "r"(0x5f805f80), "r"(0x80008000));
#endif
}
#endif

#if WEIGHT_BITS == 4 && !HALVED
// Eight weights of four bits as pairs in bf16: behind 0x43 and a zero it has 128 and a number, of which `less` takes that and the zero,
// where that is not left to what comes behind a factor. Pairs stand four apart where x does so in shared memory, and beside each other where it comes as it is.
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

// What is taken from the numbers of a group: 128 and their zero.
DEVICE u32 less_of(u32 zero) { return 0xc300c300 + zero * 0x10001; }
#elif WEIGHT_BITS == 4
// Of eight weights pairs that stand four apart: of the first and the second in f16, 256 and 16 more than the numbers. Bits of f16's
// fraction are set, so this is exact, and so are the products; 256 and 16 times the sums of x are taken out behind them.
DEVICE void four_bits(u32 bits, u32& first, u32& second) {
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(first) : "r"(bits), "r"(0x003c003c), "r"(0x5c005c00));
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(second) : "r"(bits), "r"(0x03c003c0), "r"(0x4c004c00));
}
#endif

// d += a b, in what x is in.
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
