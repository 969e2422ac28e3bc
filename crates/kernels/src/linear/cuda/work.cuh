// What hopper.cu and mma.cu share: which tile of o a block works on, and what is done to its sums.
//
// Behind storage.cuh and the kernel's constants: TILE_M (rows of a tile), TILE_COLUMNS (columns of o in a tile), SWIGLU,
// BIAS (whether there is one).

// What a launch gives about the work.
struct Work {
  int rows, columns, channels;  // of x, of o, and K
  int group;                    // tiles below each other that are worked on together
  DEVICE int tiles_down() const { return (rows + TILE_M - 1) / TILE_M; }
  DEVICE int tiles_across() const { return (columns + TILE_COLUMNS - 1) / TILE_COLUMNS; }
  DEVICE int tiles() const { return tiles_down() * tiles_across(); }
};

struct Tile {
  int row, column;  // of o
};

// Down `group` tiles, then one to the right: the rows of x of a group stay in the L2 cache while weights pass by once.
DEVICE Tile tile_at(const Work& work, int index) {
  const int in_group = work.group * work.tiles_across();
  const int first = index / in_group * work.group, rest = index % in_group;
  const int high = min(work.group, work.tiles_down() - first);
  return {(first + rest % high) * TILE_M, rest / high * TILE_COLUMNS};
}

// What is added to a row of W's products.
struct Bias {
  const void* numbers;
  int is_f32;
  // Those of a column of o and the next; `ups` gives those of the second half of W.
  DEVICE float2 pair(int column, int columns, bool ups) const {
    if constexpr (!BIAS) return {0.0f, 0.0f};
    const int from = ups ? columns : 0;
    return {column < columns ? number(numbers, from + column, is_f32) : 0.0f,
            column + 1 < columns ? number(numbers, from + column + 1, is_f32) : 0.0f};
  }
};

DEVICE float2 added(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }

// scale * act of the sums of two neighbouring columns of o, each with its bias; `ups` are read where SWIGLU is 1.
DEVICE float2 activated(float2 sums, float2 bias, float2 ups, float2 bias_of_ups, float scale) {
  if constexpr (BIAS) sums = added(sums, bias), ups = added(ups, bias_of_ups);
  if constexpr (SWIGLU) sums = {silu(sums.x) * ups.x, silu(sums.y) * ups.y};
  return {sums.x * scale, sums.y * scale};
}
