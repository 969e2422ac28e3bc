// Many tokens: grouped GEMM, for each expert a matrix product of the tokens that chose it, by mma.sync and cp.async.
//
//   UP 1:  made[pair] = silu(gate) * up, [gate | up] = W_gate_up[expert] x[token]
//   UP 2:  made[pair] = max(0, W_gate_up[expert] x[token])^2, which has no gates
//   UP 0:  made[pair] = W_down[expert] from[pair]
//
// A block of eight warps, two down and four across, computes a tile of up to TILE pairs of one expert
// (list.cuh) and 128 rows of its weights. 64 channels of both are loaded at a time, through STAGES stages of shared memory. A
// warp's 32 rows of W_gate_up are 16 gates and the 16 corresponding ups, so that a thread has both.
//
// Source: include/ampere.cuh, include/storage.cuh, then this file. sm_80 and later.
//
// from: UP [tokens, channels], otherwise [pairs as listed, channels]; w [experts, UP 1 ? 2 columns : columns, channels]; made
// [pairs as listed, columns]; all storage. columns and channels are multiples of 8. tiles and pairs as in list.cuh.
//
// Launch: grid (ceil(columns / (UP 1 ? 64 : 128)), tiles at most); block (256); dynamic shared memory
//   STAGES * (TILE + 128) * 128 bytes. May overlap the preceding kernel (PDL).
//
// Macros: DTYPE, UP, TILE (64 or 128), STAGES.

constexpr int THREADS = 256, WARPS_ACROSS = 4, BLOCK_N = 128, BLOCK_K = 64;
constexpr int WARP_M = TILE / 2, WARP_N = BLOCK_N / WARPS_ACROSS;
constexpr bool GATED = UP == 1;
constexpr int WARP_COLUMNS = GATED ? WARP_N / 2 : WARP_N;

using Tiles = Rows<BLOCK_K>;
constexpr int STAGE_BYTES = (TILE + BLOCK_N) * Tiles::stride;

// Copies: 16-byte pieces of a row, and rows per pass; this thread copies one row every AT_ONCE.
constexpr int PIECES = BLOCK_K / 8, AT_ONCE = THREADS / PIECES;

extern "C" __global__ void __launch_bounds__(THREADS)
    moe_grouped(const u16* from, const u16* __restrict__ w, const int* tiles, const int* pairs, u16* made, int columns,
                int channels, int top_k) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int warp_row = warp / WARPS_ACROSS * WARP_M, warp_column = warp % WARPS_ACROSS * WARP_N;
  wait_for_previous();
  let_next_start();
  if (blockIdx.y >= tiles[0]) return;
  const int4 tile = *reinterpret_cast<const int4*>(tiles + 4 + 4 * blockIdx.y);
  const int count = tile.z - tile.y, column = blockIdx.x * (GATED ? BLOCK_N / 2 : BLOCK_N);
  const u16* const expert = w + (i64)tile.x * (GATED ? 2 : 1) * columns * channels;

  const int own_row = thread / PIECES, own_channel = thread % PIECES * 8;
  int rows_of_from[TILE / AT_ONCE], rows_of_w[BLOCK_N / AT_ONCE];  // -1: zeros
#pragma unroll
  for (int i = 0; i < TILE / AT_ONCE; i++) {
    const int row = own_row + i * AT_ONCE;
    rows_of_from[i] = row >= count ? -1 : UP ? pairs[tile.y + row] / top_k : tile.y + row;
  }
#pragma unroll
  for (int i = 0; i < BLOCK_N / AT_ONCE; i++) {
    const int row = own_row + i * AT_ONCE;
    const int of = column + (GATED ? row / WARP_N * WARP_COLUMNS + row % WARP_COLUMNS : row);
    rows_of_w[i] = of >= columns ? -1 : GATED && row / WARP_COLUMNS % 2 == 1 ? columns + of : of;
  }
  int load_stage = 0;
  auto load_stages = [&](int channel) {
    if (channel < channels) {
      const u32 to = base + load_stage * STAGE_BYTES;
      const int at = channel + own_channel;
#pragma unroll
      for (int i = 0; i < TILE / AT_ONCE; i++) {
        const bool there = rows_of_from[i] >= 0 && at < channels;
        copy_async<16>(to + Tiles::offset(own_row + i * AT_ONCE, own_channel / 8),
                       from + (there ? (i64)rows_of_from[i] * channels + at : 0), there);
      }
#pragma unroll
      for (int i = 0; i < BLOCK_N / AT_ONCE; i++) {
        const bool there = rows_of_w[i] >= 0 && at < channels;
        copy_async<16>(to + TILE * Tiles::stride + Tiles::offset(own_row + i * AT_ONCE, own_channel / 8),
                       expert + (there ? (i64)rows_of_w[i] * channels + at : 0), there);
      }
    }
    copy_commit();
    load_stage = load_stage + 1 == STAGES ? 0 : load_stage + 1;
  };
#pragma unroll 1
  for (int ahead = 0; ahead < STAGES - 1; ahead++) load_stages(ahead * BLOCK_K);

  float d[WARP_M / 16][WARP_N / 8][4] = {};
  int stage = 0;
#pragma unroll 1
  for (int channel = 0; channel < channels; channel += BLOCK_K) {
    copy_wait<STAGES - 2>();
    __syncthreads();  // this stage has arrived; no warp reads the preceding one
    load_stages(channel + (STAGES - 1) * BLOCK_K);
    const u32 of_from = base + stage * STAGE_BYTES, of_w = of_from + TILE * Tiles::stride;
    const u32 from_lane = of_from + warp_row * Tiles::stride + Tiles::lane_offset(lane);
    const u32 w_lane = of_w + warp_column * Tiles::stride + Tiles::lane_offset_right(lane);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
    for (int step = 0; step < BLOCK_K / 16; step++) {
      u32 a[WARP_M / 16][4];
#pragma unroll
      for (int m = 0; m < WARP_M / 16; m++) {
        load_matrix_x4(a[m], m * 16 * Tiles::stride + Tiles::advance(from_lane, step));
      }
#pragma unroll
      for (int n = 0; n < WARP_N / 16; n++) {
        u32 b[4];
        load_matrix_x4(b, n * 16 * Tiles::stride + Tiles::advance(w_lane, step));
#pragma unroll
        for (int m = 0; m < WARP_M / 16; m++) {
          multiply(d[m][2 * n], a[m], b[0], b[1]);
          multiply(d[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

#pragma unroll
  for (int n = 0; n < WARP_COLUMNS / 8; n++) {
    const int at = column + warp % WARPS_ACROSS * WARP_COLUMNS + 8 * n + lane % 4 * 2;
    if (at >= columns) continue;
#pragma unroll
    for (int m = 0; m < WARP_M / 16; m++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = warp_row + 16 * m + 8 * half + lane / 4;
        if (row >= count) continue;
        float low = d[m][n][2 * half], high = d[m][n][2 * half + 1];
        if constexpr (UP == 2) {
          low *= fmaxf(low, 0.0f);
          high *= fmaxf(high, 0.0f);
        } else if constexpr (GATED) {
          const float(&up)[4] = d[m][WARP_COLUMNS / 8 + n];
          low = silu(low) * up[2 * half];
          high = silu(high) * up[2 * half + 1];
        }
        *reinterpret_cast<u32*>(made + (i64)(tile.y + row) * columns + at) = pack(low, high);
      }
    }
  }
}
