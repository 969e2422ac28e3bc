// Conversion of 8-bit and 4-bit quantized weights to pairs of bf16. Requires the definitions of DEVICE and u32.
//
// Macros: WEIGHT_BITS (8; 4: integers from 0 to 15), INTEGERS (of 8 bits, otherwise e4m3).

// a b + c of pairs in bf16.
DEVICE u32 fma_pair(u32 a, u32 b, u32 c) {
  u32 to;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(to) : "r"(a), "r"(b), "r"(c));
  return to;
}

// bits & mask | set.
template <u32 mask, u32 set>
DEVICE u32 masked(u32 bits) {
  u32 to;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(to) : "r"(bits), "n"(mask), "n"(set));
  return to;
}

constexpr u32 ONES = 0x3f803f80;

// The bits of an e4m3 value, read as bf16, are 2^-120 times the value (difference of the exponent biases). Activations are multiplied by
// 2^64, which overflows bf16 for no value that a model computes, and sums by OF_SUMS = 2^56.
constexpr bool SCALED_UP = WEIGHT_BITS == 8 && !INTEGERS;
constexpr float OF_SUMS = SCALED_UP ? 0x1p56f : 1.0f;

DEVICE u32 scaled_up(u32 pair) { return SCALED_UP ? fma_pair(pair, 0x5f805f80, 0x80008000) : pair; }

// Pairs per word of weights; a pair has elements PAIRS apart, because adjacent elements would take more instructions.
constexpr int PAIRS = 16 / WEIGHT_BITS;

// Unpacks a word of weights to pairs of bf16; 4-bit values are 128 too large.
DEVICE void take_apart(u32 bits, u32 (&to)[PAIRS]) {
  if constexpr (WEIGHT_BITS == 4) {
    // 0x430 followed by a nibble is the bf16 of 128 plus the nibble.
#pragma unroll
    for (int i = 0; i < PAIRS; i++) to[i] = masked<0x000f000f, 0x43004300>(bits >> 4 * i);
  } else if constexpr (WEIGHT_BITS == 8 && INTEGERS) {
    // 128 plus the low seven bits, minus 128, or minus 256 if the sign bit is set.
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      const u32 own = bits >> 8 * i;
      to[i] = fma_pair(masked<0x007f007f, 0x43004300>(own), ONES, masked<0x00800080, 0xc300c300>(own));
    }
  } else if constexpr (WEIGHT_BITS == 8) {
    // Sign, exponent and mantissa at their bf16 positions.
    to[0] = (bits << 8 & 0x80008000) | (bits << 4 & 0x07f007f0);
    to[1] = (bits & 0x80008000) | (bits >> 4 & 0x07f007f0);
  }
}

// Reorders activations (two per word) to the order of the weights' pairs: PAIRS words per word of weights.
template <int words>
DEVICE void put_apart(u32 (&to)[words]) {
#pragma unroll
  for (int w = 0; w < words; w += PAIRS) {
    u32 own[PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) own[i] = to[w + i];
#pragma unroll
    for (int i = 0; i < PAIRS / 2; i++) {
      to[w + 2 * i] = __byte_perm(own[i], own[i + PAIRS / 2], 0x5410);
      to[w + 2 * i + 1] = __byte_perm(own[i], own[i + PAIRS / 2], 0x7632);
    }
  }
}
