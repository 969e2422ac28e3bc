// Shapes of mma.cu.

constexpr int THREADS = 256, WARPS_ACROSS = 4;
constexpr int BLOCK_K = 64;  // channels of a stage
constexpr int WARP_M = BLOCK_M / 2, WARP_N = BLOCK_N / WARPS_ACROSS;
constexpr int WARP_COLUMNS = SWIGLU ? WARP_N / 2 : WARP_N;  // of o
constexpr int TILE_M = BLOCK_M, TILE_COLUMNS = SWIGLU ? BLOCK_N / 2 : BLOCK_N;

using Tiles = Rows<BLOCK_K>;
constexpr int STAGE_BYTES = (BLOCK_M + BLOCK_N) * Tiles::stride;
static_assert(STAGES * STAGE_BYTES <= 99 * 1024, "more shared memory than a block of the smaller GPUs can have");
