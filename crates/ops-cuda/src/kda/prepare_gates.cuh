// Sums of log decays over 8 tokens as matrix products: the A operand of ones and zeros selects the tokens of each sum,
// gates [8 tokens][8 channels] are the B operand, and f32 accumulators have the sums in base 2.
//
// Gates given in the storage type are exact operands; the ones are then log2(e) in two parts, with an error of 4e-6 of it. Gates
// computed from logits or given in f32 are themselves split in two parts, and the ones are 1.

#if STORAGE == 1
#define STORED "f16"
#else
#define STORED "bf16"
#endif

constexpr float LOWEST_DECAY = -150.0f;  // 2^-150 underflows to 0 in f32
constexpr float LOWEST_NEAR = -28.0f;    // within 8 tokens: the product of 4 is in the exponent range of tf32

// d (16 x 8) = a (16 x 8) b (8 x 8), or d += a b, over 8 tokens in the storage type.
DEVICE void start_sums(float (&d)[4], const u32 (&a)[2], u32 b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32." STORED "." STORED ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b), "f"(0.0f));
}

DEVICE void add_sums(float (&d)[4], const u32 (&a)[2], u32 b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32." STORED "." STORED ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}

DEVICE u32 larger_pair(u32 a, u32 b) {
  u32 larger;
  asm("max." STORED "x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

// A operands: for token `row` of 8, the weights of this lane's two tokens. ends: of the tokens up to it and, in the second
// register, after it; middle: of the tokens between it and the middle (-1 before the middle).
struct Counted {
  u32 ends[2], middle[2];
};

DEVICE Counted counted(float one, int row, int quad) {
  const int low = quad * 2, high = low + 1;
  auto near = [&](int j) { return row >= 4 ? (j >= 4 && j <= row ? one : 0.0f) : (j > row && j < 4 ? -one : 0.0f); };
  return {{narrow(low <= row ? one : 0.0f, high <= row ? one : 0.0f), narrow(low > row ? one : 0.0f, high > row ? one : 0.0f)},
          {narrow(near(low), near(high)), 0}};
}

// Sums of a token and two channels. ends: from the first of its 8 tokens on, then to the last; middle: from the middle.
struct DecaySums {
  float ends[4], middle[4];
};

DEVICE void sum_decays(DecaySums& sums, const Counted& one, const Counted& rest, u32 gates, u32 rests, u32 limited) {
  start_sums(sums.ends, one.ends, gates);
  start_sums(sums.middle, one.middle, limited);
  add_sums(sums.ends, rest.ends, rests);
  add_sums(sums.middle, rest.middle, rests);
}

// Rounds to the nearest tf32 value. The tensor cores truncate instead: recurring keys are truncated alike, and where the state passes
// from token to token by their scores (beta 2, keys that swap channels) such a small bias accumulates.
DEVICE u32 tf32(float x) { return (__float_as_uint(x) + 0x1000) & 0xffffe000; }

// d += a b for keys and queries of 8 tokens against the keys of the same 8, over 8 channels, tf32.
DEVICE void multiply_near(float (&d)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(tf32(a0)), "r"(tf32(a1)), "r"(tf32(a2)), "r"(tf32(a3)), "r"(tf32(b0)), "r"(tf32(b1)));
}
