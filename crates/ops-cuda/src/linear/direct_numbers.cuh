// Conversion of a lane's loads to MMA operands in direct.cu. Follows direct_batch.cuh.
//
// Macros: those of direct.cu.

// The A fragments of two MMAs from chunk c of load s, whose group is f.
DEVICE void numbers_of(const Batch& batch, int s, int c, int f, u32 (&first_rows)[4], u32 (&second_rows)[4]) {
  const uint4 &a = batch.low[s], &b = batch.high[s];
#if WEIGHT_BITS == 4 && !HALVED
  const u32 low_bits = c == 0 ? a.x : c == 1 ? a.y : c == 2 ? a.z : a.w, high_bits = c == 0 ? b.x : c == 1 ? b.y : c == 2 ? b.z : b.w;
  u32 low_pair[4], high_pair[4];
#if FOLDED
  four_bits(low_bits, less_of(8), low_pair);
  four_bits(high_bits, less_of(8), high_pair);
#else
  four_bits(low_bits, less_of(batch.low_zero[f]), low_pair);
  four_bits(high_bits, less_of(batch.high_zero[f]), high_pair);
#endif
#pragma unroll
  for (int i = 0; i < 2; i++) {
    first_rows[2 * i] = low_pair[i], first_rows[2 * i + 1] = high_pair[i];
    second_rows[2 * i] = low_pair[2 + i], second_rows[2 * i + 1] = high_pair[2 + i];
  }
#elif WEIGHT_BITS == 4
  const u32 low_bits = c == 0 ? a.x : c == 1 ? a.y : c == 2 ? a.z : a.w, high_bits = c == 0 ? b.x : c == 1 ? b.y : c == 2 ? b.z : b.w;
  four_bits(low_bits << 2, first_rows[0], first_rows[2]);
  four_bits(high_bits << 2, first_rows[1], first_rows[3]);
  four_bits(low_bits >> 6, second_rows[0], second_rows[2]);
  four_bits(high_bits >> 6, second_rows[1], second_rows[3]);
#else
  small_weights(c == 0 ? a.x : a.z, first_rows[0], first_rows[2]);
  small_weights(c == 0 ? b.x : b.z, first_rows[1], first_rows[3]);
  small_weights(c == 0 ? a.y : a.w, second_rows[0], second_rows[2]);
  small_weights(c == 0 ? b.y : b.w, second_rows[1], second_rows[3]);
#endif
}

#if FOLDED
// Scales are prepared for a batch at once, or, where registers are scarce, for a load at a time, which is slower.
constexpr bool BY_LOAD = THROUGH && OF_LANE == 2;

// A float as two bf16 values, the second being the remainder of the first: twice the digits.
DEVICE u32 halves_of(float value) {
  u32 first, both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(first) : "f"(value));
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(value - __uint_as_float(first << 16)), "f"(value));
  return both;
}

// Multiplier and addend of the values of a load, for each of the lane's two rows.
struct Folds {
  u32 factor[2], more[2];

  static DEVICE Folds of(const Batch& batch, int s, int factor_bits, bool offsets) {
    Folds of;
#pragma unroll
    for (int row = 0; row < 2; row++) {
      const int at = 2 * row + s % OF_LANE;
      const float own = factor_of(batch.factor[at], factor_bits);
      of.factor[row] = halves_of(own);
#if OFFSET
      // The unpacked values are 128 more than the stored ones.
      of.more[row] = halves_of(fmaf(-128.0f, own, -below_of(batch.below[at], offsets, own)));
#endif
    }
    return of;
  }

  // For each load of a batch.
  static DEVICE void of_all(Folds (&all)[LOADS], const Batch& batch, int factor_bits, bool offsets) {
#pragma unroll
    for (int s = 0; s < LOADS; s++) all[s] = of(batch, s, factor_bits, offsets);
    if constexpr (OF_LANE == 1) {
      // A lane has the scale of the load of its parity, its neighbour that of the other load.
#pragma unroll
      for (int row = 0; row < 2; row++) {
        const u32 own = all[0].factor[row], other = __shfl_xor_sync(0xffffffff, own, 1);
        all[0].factor[row] = threadIdx.x % 2 ? other : own, all[1].factor[row] = threadIdx.x % 2 ? own : other;
      }
    }
  }

  // Scales the pairs of a load, rounded as with a scale of twice bf16's digits. With an addend, the high parts are combined first, which
  // leaves about the weight's magnitude, and the low parts are added to that.
  DEVICE void meet(u32 (&rows)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const auto half = [](u32 both, int at) { return __byte_perm(both, 0, at ? 0x3232 : 0x1010); };
      const u32 of = factor[i % 2];
#if OFFSET
      const u32 behind = more[i % 2];
      const u32 rest = fma_pair(rows[i], half(of, 1), half(behind, 1));
      rows[i] = fma_pair(fma_pair(rows[i], half(of, 0), half(behind, 0)), ONES, rest);
#else
      rows[i] = fma_pair(rows[i], half(of, 0), fma_pair(rows[i], half(of, 1), 0x80008000));
#endif
    }
  }
};
#endif
