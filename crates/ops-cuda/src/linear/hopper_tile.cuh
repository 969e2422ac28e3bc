// Shapes of hopper.cu, and offsets in its shared memory.

constexpr int BLOCK_M = 128;   // rows of x, 64 of each consumer
constexpr int BLOCK_K = 64;    // 128 bytes, the widest swizzle
constexpr int CONSUMERS = 2;
constexpr int CLUSTER = PAIR ? 2 : SPLIT;
constexpr int TILE_M = PAIR ? 2 * BLOCK_M : BLOCK_M;            // rows of a cluster
constexpr int TILE_COLUMNS = SWIGLU ? BLOCK_N / 2 : BLOCK_N;    // columns of o
constexpr int SLICE_COLUMNS = TILE_COLUMNS / SPLIT;             // columns that a block of the cluster finishes
constexpr int SLICE = BLOCK_N / 2 / SPLIT;                      // accumulators of these columns per thread

constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2;
constexpr int HALF_BYTES = BLOCK_N / 2 * BLOCK_K * 2;  // B is loaded in two halves
constexpr int STAGE_BYTES = A_BYTES + 2 * HALF_BYTES;

// Results are staged in boxes of 64 rows of 128 bytes.
constexpr int BOX_COLUMNS = FLOAT_OUT ? 32 : 64;
constexpr int BOX_BYTES = 64 * 128;
constexpr int BOXES = SLICE_COLUMNS / BOX_COLUMNS;
// Slots in use: a tile starts with slot 0, which the preceding tile must then not have used last.
constexpr int USED_SLOTS = BOXES % SLOTS == 0 ? SLOTS : 1;
// The residual is loaded through the stages, in boxes of all rows.
constexpr int RESIDUAL_BOX_BYTES = BLOCK_M * 128;
constexpr int RESIDUAL_BOXES = STAGE_BYTES / RESIDUAL_BOX_BYTES;  // of a stage

constexpr int AT_BOXES = STAGES * STAGE_BYTES;
constexpr int AT_FULL = AT_BOXES + CONSUMERS * SLOTS * BOX_BYTES;
constexpr int AT_EMPTY = AT_FULL + 8 * STAGES;
constexpr int SHARED_BYTES = AT_EMPTY + 8 * STAGES + 1024;  // the start is aligned to 1024 bytes

static_assert(BLOCK_N % 16 == 0 && BLOCK_N <= 256, "one wgmma has 256 columns at most");
static_assert(SLICE_COLUMNS % BOX_COLUMNS == 0, "a block finishes whole boxes");
static_assert(!PAIR || SPLIT == 1, "a cluster shares weights or deals out the channels");
static_assert(SPLIT == 1 || BLOCK_N / 2 * 4 * 128 * CONSUMERS <= AT_BOXES, "partial sums lie where the stages were");
static_assert(SHARED_BYTES <= 232448, "more shared memory than a block can have");

// A slot of the ring of stages, and the phase parity of the round.
struct Ring {
  u32 stage, parity;
  DEVICE void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};
