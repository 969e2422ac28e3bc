// Linear layers for every GPU from sm_80 on: o = residual + scale * act(x W^T + bias), for many rows of x, by mma.sync and
// cp.async. Design and figures: README-mma.md.
//
// A block of eight warps, two down and four across, computes a tile of BLOCK_M rows of x and BLOCK_N
// rows of W. 64 channels of both are loaded at a time, through STAGES stages of shared memory. Sums stay in registers and are
// stored from there. With SWIGLU half of a warp's rows of W are gates and half the corresponding ups.
//
// x [rows, channels], w [N, channels] in storage, 2 VECTOR bytes aligned; outputs [rows, their columns] in storage, or f32
// with FLOAT_OUT, each 4 bytes aligned (f32: 8); residual [rows, columns] f32, 8 bytes aligned, or null; bias [N] f32 or
// storage, read where BIAS is 1. The columns of o, which are N, or N / 2 with SWIGLU, belong to output 0 up to first1, then to output 1
// up to first2, and so on; firsts are `columns` where there are fewer outputs. With a residual there is one output. o may be the
// residual: a thread reads each element before it writes it.
//
// Launch: grid ceil(rows / BLOCK_M) * the sum over outputs of ceil(their columns / columns of a tile); block 256; dynamic shared memory
// STAGES * (BLOCK_M + BLOCK_N) * 128. `group` as in work.cuh.
//
// Source: include/ampere.cuh, include/storage.cuh, then linear/mma_tile.cuh, work.cuh and mma.cu.
//
// Macros: DTYPE (bf16, f16), BLOCK_M (64, 128), BLOCK_N (64, 128), STAGES (2 ..), VECTOR (elements of a copy, divides the
// channels: 8, 4, 2), SWIGLU, FLOAT_OUT, BIAS.

// Starts copying the 64 channels from `channel` on of `count` rows; row r of the tile is row row_of(r) of `from`, and
// zeros where that is negative. Channels past the last are zeros too.
template <int count, class RowOf>
DEVICE void load_rows(u32 to, const u16* from, int channel, int channels, int thread, RowOf row_of) {
  constexpr int pieces = BLOCK_K / VECTOR, at_once = THREADS / pieces;
  const int column = thread % pieces * VECTOR;
  const bool inside = channel + column < channels;
#pragma unroll
  for (int first = 0; first < count; first += at_once) {
    const int row = first + thread / pieces, source = row_of(row);
    const bool there = inside && source >= 0;
    copy_async<2 * VECTOR>(to + Tiles::offset(row, column / 8) + column % 8 * 2,
                           from + (there ? (i64)source * channels + channel + column : 0), there);
  }
}

DEVICE void store_one(void* to, i64 at, float value) {
  if constexpr (FLOAT_OUT) {
    ((float*)to)[at] = value;
  } else {
    ((u16*)to)[at] = narrow_half(value);
  }
}

// An element and the next, aligned as a pair.
DEVICE void store_two(void* to, i64 at, float2 values) {
  if constexpr (FLOAT_OUT) {
    *(float2*)((float*)to + at) = values;
  } else {
    *(u32*)((u16*)to + at) = pack(values.x, values.y);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    linear_mma(const u16* __restrict__ x, const u16* __restrict__ w, void* o0, void* o1, void* o2, void* o3, void* o4,
               void* o5, const float* residual, const void* __restrict__ bias, int bias_f32, int first1, int first2,
               int first3, int first4, int first5, int rows, int columns, int channels, int group, float scale) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  const Work work = {rows, columns, channels, group, {0, first1, first2, first3, first4, first5}};
  const Tile tile = tile_at(work, blockIdx.x);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int warp_row = warp / WARPS_ACROSS * WARP_M, warp_column = warp % WARPS_ACROSS * WARP_N;

  auto row_of_x = [&](int row) { return tile.row + row < rows ? tile.row + row : -1; };
  // With SWIGLU the first half of a warp's columns are gates, the second the corresponding ups.
  auto row_of_w = [&](int row) {
    const int column = tile.column + (SWIGLU ? row / WARP_N * WARP_COLUMNS + row % WARP_COLUMNS : row);
    return column >= tile.width ? -1 : tile.first + column + (SWIGLU && row / WARP_COLUMNS % 2 == 1 ? columns : 0);
  };
  int load_stage = 0;
  auto load_stages = [&](int channel) {
    if (channel < channels) {
      const u32 stage = base + load_stage * STAGE_BYTES;
      load_rows<BLOCK_M>(stage, x, channel, channels, thread, row_of_x);
      load_rows<BLOCK_N>(stage + BLOCK_M * Tiles::stride, w, channel, channels, thread, row_of_w);
    }
    copy_commit();
    load_stage = load_stage + 1 == STAGES ? 0 : load_stage + 1;
  };

  wait_for_previous();
#pragma unroll 1
  for (int ahead = 0; ahead < STAGES - 1; ahead++) load_stages(ahead * BLOCK_K);

  float d[WARP_M / 16][WARP_N / 8][4] = {};
  int stage = 0;
#pragma unroll 1
  for (int channel = 0; channel < channels; channel += BLOCK_K) {
    copy_wait<STAGES - 2>();
    __syncthreads();  // this stage has arrived; no warp reads the preceding one
    load_stages(channel + (STAGES - 1) * BLOCK_K);
    const u32 of_x = base + stage * STAGE_BYTES, of_w = of_x + BLOCK_M * Tiles::stride;
    const u32 x_lane = of_x + warp_row * Tiles::stride + Tiles::lane_offset(lane);
    const u32 w_lane = of_w + warp_column * Tiles::stride + Tiles::lane_offset_right(lane);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
    for (int step = 0; step < BLOCK_K / 16; step++) {
      u32 a[WARP_M / 16][4];
#pragma unroll
      for (int m = 0; m < WARP_M / 16; m++) {
        load_matrix_x4(a[m], m * 16 * Tiles::stride + Tiles::advance(x_lane, step));
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
  copy_wait<0>();
  let_next_start();

  void* const outputs[OUTPUTS] = {o0, o1, o2, o3, o4, o5};
  void* to = o0;
#pragma unroll
  for (int i = 1; i < OUTPUTS; i++) {
    if (tile.output == i) to = outputs[i];
  }
  const bool paired = tile.width % 2 == 0;  // pairs of columns are aligned then
  const Bias biases = {bias, bias_f32};
#pragma unroll
  for (int n = 0; n < WARP_COLUMNS / 8; n++) {
    const int column = tile.column + warp % WARPS_ACROSS * WARP_COLUMNS + 8 * n + lane % 4 * 2;
    if (column >= tile.width) continue;
    const bool second = column + 1 < tile.width;
    const float2 bias_here = biases.pair(work, tile, column, false);
    const float2 bias_up = SWIGLU ? biases.pair(work, tile, column, true) : float2{0.0f, 0.0f};
#pragma unroll
    for (int m = 0; m < WARP_M / 16; m++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = tile.row + warp_row + 16 * m + 8 * half + lane / 4;
        if (row >= rows) continue;
        const float(&gate)[4] = d[m][n], (&up)[4] = d[m][SWIGLU ? WARP_COLUMNS / 8 + n : n];
        float2 values = activated({gate[2 * half], gate[2 * half + 1]}, bias_here, {up[2 * half], up[2 * half + 1]}, bias_up,
                                  scale);
        const i64 at = (i64)row * tile.width + column;  // of the residual too: with a residual there is one output
        if (paired) {
          if (residual != nullptr) values = added(values, *(const float2*)(residual + at));
          store_two(to, at, values);
        } else {
          if (residual != nullptr) values = added(values, {residual[at], second ? residual[at + 1] : 0.0f});
          store_one(to, at, values.x);
          if (second) store_one(to, at + 1, values.y);
        }
      }
    }
  }
}
