// Sums of log decays over a warp's 16 tokens, by matrix products: a left operand of ones and zeros says which tokens count for
// which, gates [16 tokens][8 channels] are the right one, and f32 accumulators get the sums in powers of 2.
//
// Gates as given, in the storage type, are exact operands; the ones are then log2(e) in two parts. Gates made of logits or
// given in f32 go in as two parts themselves, and the ones are 1.

#if STORAGE == 1
#define STORED "f16"
#else
#define STORED "bf16"
#endif

constexpr float LOWEST_DECAY = -150.0f;  // 2^-150 leaves nothing in f32
constexpr float LOWEST_NEAR = -28.0f;    // within 8 tokens: 4 of them stay within the exponents of tf32

// d = a b, or d += a b, over 16 tokens in the storage type.
DEVICE void start_sums(float (&d)[4], const u32 (&a)[4], const u32* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." STORED "." STORED
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}

DEVICE void add_sums(float (&d)[4], const u32 (&a)[4], const u32* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." STORED "." STORED
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEVICE u32 larger_pair(u32 a, u32 b) {
  u32 larger;
  asm("max." STORED "x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

// Left operands: which of 16 tokens count for which, and what each counts.
struct Counted {
  u32 until[4], after[4], border[4], middle[4];
};

// Leaves the words as they are, but no compiler can know that words of several operands are equal: each operand stays in
// registers of its own instead of being put together for every product. `scratch` is this thread's, 4 words 512 bytes apart.
DEVICE void apart(u32 (&words)[4], u32 scratch) {
#pragma unroll
  for (int i = 0; i < 4; i++) asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(scratch + i * 512), "r"(words[i]) : "memory");
#pragma unroll
  for (int i = 0; i < 4; i++) asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(words[i]) : "r"(scratch + i * 512) : "memory");
}

DEVICE Counted counted(float one, int row, int quad, u32 scratch) {
  const int low = quad * 2, high = low + 1;
  auto near = [&](int j) { return row >= 4 ? (j >= 4 && j <= row ? one : 0.0f) : (j > row && j < 4 ? -one : 0.0f); };
  const u32 all = narrow(one, one), until = narrow(low <= row ? one : 0.0f, high <= row ? one : 0.0f);
  const u32 after = narrow(low > row ? one : 0.0f, high > row ? one : 0.0f), middle = narrow(near(low), near(high));
  Counted of = {{until, all, 0, until}, {after, 0, all, after}, {after, 0, 0, until}, {middle, 0, 0, middle}};
  apart(of.until, scratch), apart(of.after, scratch), apart(of.border, scratch), apart(of.middle, scratch);
  return of;
}

// For tokens `row` and `row` + 8 and two channels of 8 (d[0], d[1] and d[2], d[3]): sums from the first of 16 tokens on, to
// the last, across the halves' border (after the token in the first half, up to it in the second), and from the middle of
// the token's half.
struct DecaySums {
  float until[4], after[4], border[4], middle[4];
};

DEVICE void sum_decays(DecaySums& sums, const Counted& one, const Counted& rest, const u32* gates, const u32* rests,
                       const u32* limited) {
  start_sums(sums.until, one.until, gates);
  start_sums(sums.after, one.after, gates);
  start_sums(sums.border, one.border, gates);
  start_sums(sums.middle, one.middle, limited);
  add_sums(sums.until, rest.until, rests);
  add_sums(sums.after, rest.after, rests);
  add_sums(sums.border, rest.border, rests);
  add_sums(sums.middle, rest.middle, rests);
}

// d += a b for keys and queries of 8 tokens against the keys of the same 8, over 8 channels, tf32.
DEVICE void multiply_near(float (&d)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)), "r"(__float_as_uint(a3)),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// tf32 operands are cut, not rounded, which takes 3.5e-4 of a number on average: of a product of two, this gives it back.
constexpr float CUT = 1.000704f;
