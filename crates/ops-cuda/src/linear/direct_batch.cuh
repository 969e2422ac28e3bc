// Tiling of direct.cu, and the weights that a lane loads at once. Follows direct_weights.cuh.
//
// Macros: those of direct.cu.

constexpr int WARPS = 8, THREADS = WARPS * 32;
constexpr int ROWS = 16;                 // of w in a tile
constexpr int TILE = SWIGLU ? 8 : ROWS;  // columns of it
// Loads of a row per batch, and batches in flight. With BLOCKS a lane has two blocks' scales per batch; one if FOLDED and two lanes share a block.
constexpr int LOADS = BLOCKS == 32 && WEIGHT_BITS == 8 && !FOLDED ? 4 : 2;
constexpr int RING = LOADS == 4 || WEIGHT_BITS == 4 ? 3 : TOKENS == 8 && !INTEGERS ? 6 : 4;
constexpr int LOADED = 4 * PIECE;        // columns that a warp loads at once
constexpr int BATCHED = LOADS * LOADED;  // and of a batch
constexpr int FACTORS = BATCHED / 128;   // scales of a row of w in a batch
constexpr int PER_BYTE = 8 / WEIGHT_BITS;
constexpr int ROUND = WARPS * BATCHED;   // and of all warps
constexpr int SUM_STRIDE = 20;           // floats from token to token: no bank conflicts
constexpr int COLUMNS = ceil_div(TOKENS, 8);  // MMA columns (N), eight rows of x each
constexpr int CHAINS = COLUMNS == 1 ? 2 : 1;  // independent accumulator chains of a column
constexpr int AT_LAST = 4;  // outputs whose partial sums a thread reads at once
constexpr int PIECES_AT_ONCE = X_F32 ? 1 : NORMED || GROUPED ? 2 : 4;  // of x, loaded by a warp: as registers permit
constexpr int OF_SEGMENT = 4 + (WEIGHT_BITS == 4 ? 32 / SUM_LANES * 8 : 0);  // additional bytes per segment of a row of x
// With BLOCKS: columns of a quantization block; blocks that four lanes load at once, and blocks of a batch; lanes that share a block.
constexpr int BLOCK = BLOCKS ? BLOCKS : 32, LOADED_BLOCKS = LOADED / BLOCK, BATCHED_BLOCKS = BATCHED / BLOCK;
constexpr int LANES_OF_BLOCK = LOADED_BLOCKS ? 4 / LOADED_BLOCKS : 4, OF_LANE = FOLDED && LANES_OF_BLOCK == 2 ? 1 : 2;
constexpr float X_FACTOR = HALVED || INTEGERS ? 1.0f : 0x1p64f, SUM_FACTOR = HALVED || INTEGERS ? 1.0f : 0x1p56f;
static_assert(LOADS % FACTORS == 0 && SEGMENT % BATCHED == 0, "a piece has one factor of each row of w, a batch one of each row of x");
static_assert(!BLOCKS || INTEGERS && !GROUPED && (HALVED && COLUMNS == 1 || FOLDED), "blocks are of integers");
static_assert(!OFFSET || BLOCKS == 32 && WEIGHT_BITS == 4 && (TOKENS == 1 || FOLDED), "offsets are of blocks of four bits; up to eight rows ask for them");
static_assert(!BLOCKS || BLOCK == 32 || BLOCK == 16 && WEIGHT_BITS == 8 || TOKENS == 1 && WEIGHT_BITS == 4, "other blocks are of one row");
static_assert(PARTS == 1 || TOKENS > 1 && !THROUGH && !SWIGLU && TAPS == 0, "parts of the depth are of rows that are ready");
static_assert(!(HALVED && THROUGH), "x that is read where it is multiplied is in bf16");

// A scale in f32 (bits 32), f16 (16) or bf16 (17).
DEVICE u32 load_factor(const void* from, i64 index, int bits) {
  return bits == 32 ? __ldg((const u32*)from + index) : __ldg((const u16*)from + index);
}
DEVICE float factor_of(u32 stored, int bits) {
  float value;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}" : "=f"(value) : "r"(stored));
  return bits == 32 ? __uint_as_float(stored) : bits == 17 ? __uint_as_float(stored << 16) : value;
}
DEVICE float factor_at(const void* from, i64 index, int bits) { return factor_of(load_factor(from, index, bits), bits); }

// A zero point (one byte) or an offset (four).
DEVICE u32 load_below(const unsigned char* from, i64 index, bool offset) {
  from += index * (offset ? 4 : 1);
  return offset ? __ldg((const u32*)from) : __ldg(from);
}
DEVICE float below_of(u32 stored, bool offset, float factor) { return offset ? __uint_as_float(stored) : (float)stored * factor; }

// Epilogue operands of a column, and the scale of its row of w.
struct Around {
  Outputs::Around of;
  float factor, factor_of_up;
#if TAPS > 0
  Convolution::Held state;
#endif
};

struct Batch {
  uint4 low[LOADS], high[LOADS];
#if BLOCKS
  u32 factor[4];  // scales as stored, of two blocks of each of the two rows
#if WEIGHT_BITS == 4 && (!FOLDED || OFFSET)
  u32 below[4];  // zero points, or the bits of offsets
#endif
#elif WEIGHT_BITS == 4
  u32 low_zero[FACTORS], high_zero[FACTORS];
#endif
};

// 16 bytes of w, or zeros for missing rows and columns.
DEVICE uint4 load_weights(const Weight* from, bool there) {
  uint4 value;
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.b32 there, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@there ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
      : "l"(from), "r"((int)there));
  return value;
}
