// Which rows and keys a tile of the Hopper attention kernel has, and the order in which blocks take the tiles.

#define BLOCK_Q (64 * CONSUMERS)
#define UNLIMITED (-1)

// The run-time arguments that shape the work; see hopper.cu.
struct Shape {
  const int* cu_queries;  // i32 [B + 1], or null when dense
  const int* cu_keys;     // i32 [B + 1], or null when dense
  const int* key_counts;  // i32 [B], or null when every sequence uses all its key rows
  int batch, heads, group, queries, keys, total;
  int window_left, window_right;
  int section;
};

// BLOCK_Q query rows of one head, as the producer tells it to the consumers.
struct Tile {
  int head;         // query head; negative when there is no further tile
  int row;          // first query row of the tile within its sequence
  int rows;         // query rows of the sequence
  int keys;         // keys of the sequence
  int block_begin;  // blocks of BLOCK_K keys that some row of the tile sees; they are taken from the last to the first
  int block_end;
  int token;      // row of q and o at which the sequence starts, counted over the whole batch
  int lse_start;  // where the head's row 0 of this sequence stands in lse
};

// Tiles are taken in this order: sections of `section` (sequence, head) pairs whose keys and values fit the L2 cache
// together; in a section the rows from the last to the first, because under a causal mask the last rows cost most
// and should start first; in a row of tiles the pairs. Gives false where the sequence has no such rows.
DEVICE bool tile_at(const Shape& shape, int index, int tiles_of_pair, Tile& tile, int& sequence) {
  const int pairs = shape.batch * shape.heads;
  const int section = index / (shape.section * tiles_of_pair);
  const int first_pair = section * shape.section;
  const int width = min(shape.section, pairs - first_pair);
  const int within = index - first_pair * tiles_of_pair;
  const int row_of_tiles = within / width;
  const int pair = first_pair + within - row_of_tiles * width;
  sequence = pair / shape.heads;
  tile.head = pair - sequence * shape.heads;
  tile.row = (tiles_of_pair - 1 - row_of_tiles) * BLOCK_Q;
  if (shape.cu_queries) {
    tile.token = shape.cu_queries[sequence];
    tile.rows = shape.cu_queries[sequence + 1] - tile.token;
    tile.lse_start = tile.head * shape.total + tile.token;
  } else {
    tile.token = sequence * shape.queries;
    tile.rows = shape.queries;
    tile.lse_start = pair * shape.queries;
  }
  if (shape.key_counts) {
    tile.keys = shape.key_counts[sequence];
  } else if (shape.cu_keys) {
    tile.keys = shape.cu_keys[sequence + 1] - shape.cu_keys[sequence];
  } else {
    tile.keys = shape.keys;
  }
  int first = 0, end = tile.keys;
#if MASK
  const int position = tile.row + tile.keys - tile.rows;  // of the tile's first row among the keys
  const int count = min(BLOCK_Q, tile.rows - tile.row);
  if (shape.window_right != UNLIMITED) end = min(end, position + count + shape.window_right);
  if (shape.window_left != UNLIMITED) first = max(first, position - shape.window_left);
#endif
  tile.block_begin = first / BLOCK_K;
  tile.block_end = end > first ? (end + BLOCK_K - 1) / BLOCK_K : tile.block_begin;
  return tile.row < tile.rows;
}

// The keys [first, last] that one query row sees.
struct Visible {
  int first, last;
};

DEVICE Visible visible_keys(const Shape& shape, const Tile& tile, int row) {
  Visible visible = {0, tile.keys - 1};
#if MASK
  const int position = row + tile.keys - tile.rows;
  if (shape.window_right != UNLIMITED) visible.last = min(visible.last, position + shape.window_right);
  if (shape.window_left != UNLIMITED) visible.first = max(0, position - shape.window_left);
#endif
  return visible;
}

// A tile put aside in shared memory, and passed on from there without the compiler keeping it in registers.
DEVICE void own_store(volatile int4* own, const Tile& tile) {
  own[0].x = tile.head, own[0].y = tile.row, own[0].z = tile.rows, own[0].w = tile.keys;
  own[1].x = tile.block_begin, own[1].y = tile.block_end, own[1].z = tile.token, own[1].w = tile.lse_start;
}

// Gives the head.
DEVICE int own_pass(const volatile int4* own, Tile* to) {
  const volatile int* from = reinterpret_cast<const volatile int*>(own);
  volatile int* words = reinterpret_cast<volatile int*>(to);
#pragma unroll
  for (int i = 0; i < 8; i++) words[i] = from[i];
  return from[0];
}
