// Weights on their way: a ring of stages in shared memory that one warp fills, phase behind phase and without waiting for any
// meeting, for no kernel writes weights. Weights are e4m3.
//
// A stage is 16 rows of a matrix product, at most 128 WARPS columns wide: a row of w is so many of them one behind the other as it has
// segments, and multiplies as many columns of the other matrix, each a segment of x.

constexpr int WARP_COLUMNS = 128;  // of a stage's
constexpr int STAGE_BYTES = 16 * WARPS * WARP_COLUMNS * WEIGHT_BITS / 8;
constexpr int STAGES = RING_BYTES / STAGE_BYTES;

// Stages under way while products are taken, and otherwise. What a multiprocessor asks of memory comes behind what it has asked for,
// so weights that are not needed yet keep a meeting, and x, waiting.
constexpr int BUSY_AHEAD = 2, IDLE_AHEAD = 1;

struct Ring {
  u32 stages, full, empty;  // of each stage a barrier that says so

  DEVICE u32 stage(int at) const { return stages + at % STAGES * STAGE_BYTES; }
  DEVICE u32 full_at(int at) const { return full + 8 * (at % STAGES); }
  DEVICE u32 empty_at(int at) const { return empty + 8 * (at % STAGES); }
  DEVICE void wait_full(int at) const { barrier_wait(full_at(at), at / STAGES & 1); }

  DEVICE void begin() const {
    for (int s = 0; s < STAGES; s++) barrier_init(full + 8 * s, 1), barrier_init(empty + 8 * s, WARPS);
  }

  // Brings this block's weights of a phase, from stage `at` on; one thread does.
  DEVICE void bring(const Source& of, int& at, const volatile int& busy) const {
    const u32 row_bytes = (u32)of.inputs * WEIGHT_BITS / 8;
    const Columns own = Columns::of(of.columns);
    const int rows = 16 / of.segments;
    for (int half = 0; half <= of.swiglu; half++) {
      const char* from = of.w + (i64)(own.first + half * of.columns) * row_bytes;
      for (int left = own.count; left > 0; left -= rows, at++) {
        if (at >= STAGES) barrier_wait(empty_at(at), (at / STAGES - 1) & 1);
        const int ahead = busy ? BUSY_AHEAD : IDLE_AHEAD;
        if (at >= ahead) wait_full(at - ahead);
        const u32 bytes = min(rows, left) * row_bytes;
        barrier_expect(full_at(at), bytes);
        bulk_copy(stage(at), from, bytes, full_at(at));
        from += bytes;
      }
    }
  }
};

// 16 weights of a row as pairs of f16, which hold every number of e4m3.
struct Pairs {
  u32 pair[8];

  DEVICE explicit Pairs(const uint4& bits) {
    const u32 word[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}"
          : "=r"(pair[2 * i]), "=r"(pair[2 * i + 1])
          : "r"(word[i]));
    }
  }
};

DEVICE u32 pair_f16(float low, float high) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// d (16 x 8) += a (16 x 16) b (16 x 8), a and b in f16.
DEVICE void multiply_f16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
