// Shared by hopper.cu and mma.cu: the tile of o that a block computes, and the epilogue.
//
// Requires storage.cuh and the kernel's constants: TILE_M (rows of a tile), TILE_COLUMNS (columns of o in a tile), SWIGLU,
// BIAS (whether there is one).

constexpr int OUTPUTS = 6;

// The problem of a launch.
struct Work {
  int rows, columns, channels;  // of x, of o, and K
  int group;                    // vertically adjacent tiles that are worked on together
  int first[OUTPUTS];           // columns of o at which the outputs begin; `columns` where there are fewer
  DEVICE int width(int output) const {
    return (output + 1 < OUTPUTS ? first[output + 1 < OUTPUTS ? output + 1 : 0] : columns) - first[output];
  }
  DEVICE int tiles_down() const { return (rows + TILE_M - 1) / TILE_M; }
  // Tiles are counted per output: none crosses two outputs.
  DEVICE int tiles_across() const {
    int tiles = 0;
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++) tiles += (width(i) + TILE_COLUMNS - 1) / TILE_COLUMNS;
    return tiles;
  }
  DEVICE int tiles() const { return tiles_down() * tiles_across(); }
};

struct Tile {
  int row, column;   // of one output
  int output, width; // the output's index and number of columns
  int first;         // its first column in o
};

// `group` tiles down, then one to the right: the rows of x of a group stay in L2 while the weights are read once.
DEVICE Tile tile_at(const Work& work, int index) {
  const int in_group = work.group * work.tiles_across();
  const int above = index / in_group * work.group, rest = index % in_group;
  const int high = min(work.group, work.tiles_down() - above);
  int across = rest / high;
  Tile tile = {(above + rest % high) * TILE_M, 0, 0, 0, 0};
  bool found = false;
#pragma unroll
  for (int i = 0; i < OUTPUTS; i++) {
    const int tiles = (work.width(i) + TILE_COLUMNS - 1) / TILE_COLUMNS;
    if (!found && across < tiles) {
      found = true;
      tile.column = across * TILE_COLUMNS;
      tile.output = i;
      tile.width = work.width(i);
      tile.first = work.first[i];
    }
    across -= tiles;
  }
  return tile;
}

// Bias of the rows of W.
struct Bias {
  const void* numbers;
  int is_f32;
  // That of a column of a tile's output and of the next; with `ups` in the second half of W.
  DEVICE float2 pair(const Work& work, const Tile& tile, int column, bool ups) const {
    if constexpr (!BIAS) return {0.0f, 0.0f};
    const int from = tile.first + (ups ? work.columns : 0);
    return {column < tile.width ? number(numbers, from + column, is_f32) : 0.0f,
            column + 1 < tile.width ? number(numbers, from + column + 1, is_f32) : 0.0f};
  }
};

DEVICE float2 added(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }

#ifndef SQUARED
#define SQUARED 0
#endif
// max(0, x)^2; NaN stays NaN.
DEVICE float relu_squared(float x) { return x * fmaxf(x, 0.0f); }

// scale * act of the sums of two adjacent columns of o, each with its bias; `ups` are read where SWIGLU is 1.
DEVICE float2 activated(float2 sums, float2 bias, float2 ups, float2 bias_of_ups, float scale) {
  if constexpr (BIAS) sums = added(sums, bias), ups = added(ups, bias_of_ups);
  if constexpr (SWIGLU) sums = {silu(sums.x) * ups.x, silu(sums.y) * ups.y};
  if constexpr (SQUARED) sums = {relu_squared(sums.x), relu_squared(sums.y)};
  return {sums.x * scale, sums.y * scale};
}
