// Weights as pairs in f16, and products with x. Requires barriers.cuh.

// d += a b in f32, a and b in f16.
DEVICE void product(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE u32 pair_f16(float low, float high) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Integers are set as bits of f16's mantissa, so the values are too large: int8 by 1152; 4-bit pairs (elements four apart) by 256 and 16
// alternately, plus the zero point, which is 8 without offsets. These constants times the sums of x are subtracted from the products.
constexpr int PAIRS = COLS / 2;  // of a lane's 16 bytes
DEVICE constexpr u32 less(int pair) {
  if (!INTEGERS) return 0;
  if (WEIGHT_BITS == 8) return 0xe480e480;
  return pair % 2 == 0 ? OFFSET ? 0xdc00dc00 : 0xdc20dc20 : OFFSET ? 0xcc00cc00 : 0xce00ce00;
}

// 16 bytes of w, converted to pairs.
struct Pairs {
  u32 pair[PAIRS];

  DEVICE explicit Pairs(const uint4& bits) {
    const u32 word[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if WEIGHT_BITS == 4
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const u32 shifted = half == 0 ? word[i] << 2 : word[i] >> 6;
        asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(pair[4 * i + 2 * half]) : "r"(shifted), "r"(0x003c003c), "r"(0x5c005c00));
        asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(pair[4 * i + 2 * half + 1]) : "r"(shifted), "r"(0x03c003c0), "r"(0x4c004c00));
      }
#elif INTEGERS
      const u32 above = word[i] ^ 0x80808080;
      pair[2 * i] = __byte_perm(above, 0x64646464, 0x4140), pair[2 * i + 1] = __byte_perm(above, 0x64646464, 0x4342);
#else
      asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}"
          : "=r"(pair[2 * i]), "=r"(pair[2 * i + 1])
          : "r"(word[i]));
#endif
    }
  }
};

// Loads the x of a lane's 16 bytes of w from shared memory, in the order of the pairs.
DEVICE void load_pairs(u32 (&pair)[PAIRS], u32 from) {
#pragma unroll
  for (int i = 0; i < COLS / 8; i++) {
    const uint4 v = load_shared(from + 16 * i);
    if constexpr (WEIGHT_BITS == 4) {
      pair[4 * i] = __byte_perm(v.x, v.z, 0x5410), pair[4 * i + 1] = __byte_perm(v.x, v.z, 0x7632);
      pair[4 * i + 2] = __byte_perm(v.y, v.w, 0x5410), pair[4 * i + 3] = __byte_perm(v.y, v.w, 0x7632);
    } else {
      pair[4 * i] = v.x, pair[4 * i + 1] = v.y, pair[4 * i + 2] = v.z, pair[4 * i + 3] = v.w;
    }
  }
}

// A lane's share of a stage: two rows, of each the 16 bytes that it loads twice. Odd rows take the second half of a warp's columns first, so that
// two rows have no bank conflict.
struct Raw {
  uint4 low[SUBS], high[SUBS];

  // `row_bytes`: of a row of the stage, or 0 where it has no more than eight of them.
  template <int row_bytes = CHUNK * WEIGHT_BITS / 8>
  DEVICE void take(u32 from, int odd) {
#pragma unroll
    for (int s = 0; s < SUBS; s++) {
      const u32 at = from + (s ^ odd) * 64;
      low[s] = load_shared(at), high[s] = row_bytes == 0 ? low[s] : load_shared(at + 8 * row_bytes);
    }
  }
};

// Products of a warp's columns of x with stages. Each row of a stage has separate columns of the MMA, because its segment of x and its
// order of the warp's columns differ from its neighbours'. If blocks of columns have scales, each block that lanes load at once has such a
// column, in which x is zero for all other lanes; if there is no room for all of them, the MMA runs twice.
template <int SEGMENTS>
struct Products {
  static constexpr int OF_SUB = BLOCKS == 32 ? SUB / 32 : 1;  // blocks of a scale in SUB columns
  static constexpr int SETS = OF_SUB * (SEGMENTS > 2 ? SEGMENTS : 2) > 8 ? 2 : 1;
  static constexpr int AT_ONCE = OF_SUB / SETS, ORDERS = 8 / AT_ONCE;
  static constexpr int KEPT = AT_ONCE > 1 ? 2 : 1;  // columns of the MMA that a lane keeps of a row
  static_assert(ORDERS >= SEGMENTS && ORDERS >= 2, "rows of a stage have columns of their own");  // words: allow(of their own)
  u32 x[SUBS][PAIRS];
  int own;  // the set that takes this lane's x
  // For a lane's two columns of the MMA, equal in all rows: the initial sums, and the sums of x.
  float begin[SUBS][SETS][2];
#if OFFSET
  float all[SUBS][SETS][2];
#endif

  int order, odd;   // of the lane's rows
  bool keeps;       // whether this lane has their sums
  int first_block;  // the first of these
  // The one of a lane's two columns of an MMA that it keeps, in one of its rows.
  DEVICE float kept(float first, float second, int which) const { return (AT_ONCE == 1 ? odd : which) ? second : first; }

  DEVICE u32 of_set(int s, int pair, int set) const { return SETS == 1 ? x[s][pair] : own == set ? x[s][pair] : 0; }

  // x from shared memory.
  DEVICE void prepare(u32 from) {
    const int lane = (int)threadIdx.x % 32, column = lane / 4, part = lane % 4, block = part * OF_SUB / 4, of_column = column / AT_ONCE;
    order = column % ORDERS, odd = order % 2, first_block = AT_ONCE == 4 ? lane % 2 * 2 : 0;
    keeps = AT_ONCE == 1 ? part == order / 2 : AT_ONCE == 2 ? part == order : part / 2 == order;
    own = block / AT_ONCE;
#pragma unroll
    for (int s = 0; s < SUBS; s++) {
      load_pairs(x[s], from + (of_column % SEGMENTS * OF_WARP + (s ^ of_column % 2) * SUB + part * COLS) * 2);
      if constexpr (OF_SUB > 1) {
        const bool there = block % AT_ONCE == column % AT_ONCE;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) x[s][i] = there ? x[s][i] : 0;
      }
      times(begin[s], s, less(0), less(1));
#if OFFSET
      times(all[s], s, 0x3c003c00, 0x3c003c00);
#endif
    }
  }
  // The products of x with two alternating constants.
  DEVICE void times(float (&to)[SETS][2], int s, u32 even, u32 odd) const {
#pragma unroll
    for (int set = 0; set < SETS; set++) {
      float sum[4] = {};
#pragma unroll
      for (int i = 0; i < PAIRS / 2 && even != 0; i++) product(sum, even, even, odd, odd, of_set(s, 2 * i, set), of_set(s, 2 * i + 1, set));
      to[set][0] = sum[0], to[set][1] = sum[1];
    }
  }

  // The sums of the columns that are loaded first or second.
  DEVICE void of(float (&sum)[SETS][4], const Raw& raw, int s) const {
    const Pairs low(raw.low[s]), high(raw.high[s]);
#pragma unroll
    for (int set = 0; set < SETS; set++) {
#pragma unroll
      for (int i = 0; i < 4; i++) sum[set][i] = begin[s][set][i % 2];
#pragma unroll
      for (int i = 0; i < PAIRS / 2; i++) {
        product(sum[set], low.pair[2 * i], high.pair[2 * i], low.pair[2 * i + 1], high.pair[2 * i + 1], of_set(s, 2 * i, set), of_set(s, 2 * i + 1, set));
      }
    }
  }
};
