// The rows and keys of a tile of the Hopper attention kernel, and the order in which blocks take the tiles.

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

// BLOCK_Q query rows of one head.
struct Tile {
  int head;         // query head; negative when there is no further tile
  int row;          // first query row of the tile within its sequence
  int rows;         // query rows of the sequence
  int keys;         // keys of the sequence
  int block_begin;  // blocks of BLOCK_K keys that some row of the tile sees; they are taken from the last to the first
  int block_end;
  int token;      // row of q and o at which the sequence starts, counted over the whole batch
  int lse_start;  // offset in lse of the head's row 0 of this sequence
};

// A tile and where its copies start, in the coordinates of the tensor maps.
struct alignas(16) Plan {
  Tile tile;
  int q_row, q_batch;
  int kv_head, kv_batch;
  int first_row, last_row;  // of the first and of the last block of keys
};

DEVICE Tile read_tile(const volatile Plan* plan) {
  return {plan->tile.head,        plan->tile.row,       plan->tile.rows,  plan->tile.keys,
          plan->tile.block_begin, plan->tile.block_end, plan->tile.token, plan->tile.lse_start};
}

// A tile of BLOCK_Q rows by its position in the batch; sequence is negative when there is no such tile.
struct Place {
  int sequence, head, row_of_tiles;
};

// Tiles are taken in this order: sections of `section` (sequence, head) pairs whose keys and values fit the L2 cache
// together; in a section the rows from the last to the first, because under a causal mask the last rows cost most
// and should start first; in a row of tiles the pairs.
DEVICE Place place_in(int within, int first_pair, int pairs, int section, int rows_of_tiles) {
  const int skipped = within / (section * rows_of_tiles) * section;
  const int width = min(section, pairs - skipped);
  within -= skipped * rows_of_tiles;
  const int row = within / width;
  return {0, first_pair + skipped + within - row * width, rows_of_tiles - 1 - row};
}

DEVICE Place find_dense(const Shape& shape, int index) {
  const int rows_of_tiles = (shape.queries + BLOCK_Q - 1) / BLOCK_Q, pairs = shape.batch * shape.heads;
  if (index >= pairs * rows_of_tiles) return {-1, 0, 0};
  Place place = place_in(index, 0, pairs, shape.section, rows_of_tiles);
  place.sequence = place.head / shape.heads;
  place.head -= place.sequence * shape.heads;
  return place;
}

// Packed sequences have different numbers of tiles. A block's tile indices only increase, so it keeps a cursor: the first
// of the 32 sequences that it examines next, and the number of tiles before it.
struct Cursor {
  int sequence, tiles;
};

// All lanes of a warp call this together.
DEVICE Place find_packed(const Shape& shape, int index, Cursor& cursor) {
  const int lane = threadIdx.x % 32;
  for (; cursor.sequence < shape.batch; cursor.sequence += 32) {
    const int sequence = cursor.sequence + lane;
    int rows_of_tiles = 0;
    if (sequence < shape.batch) {
      rows_of_tiles = (shape.cu_queries[sequence + 1] - shape.cu_queries[sequence] + BLOCK_Q - 1) / BLOCK_Q;
    }
    int end = rows_of_tiles * shape.heads;  // tiles up to and with this lane's sequence
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(0xffffffff, end, step);
      if (lane >= step) end += before;
    }
    const u32 beyond = __ballot_sync(0xffffffff, index < cursor.tiles + end);
    if (beyond) {
      const int found = __ffs(beyond) - 1;
      rows_of_tiles = __shfl_sync(0xffffffff, rows_of_tiles, found);
      const int start = __shfl_sync(0xffffffff, end, found) - rows_of_tiles * shape.heads;
      const int section = min(shape.section, shape.heads);
      Place place = place_in(index - cursor.tiles - start, 0, shape.heads, section, rows_of_tiles);
      place.sequence = cursor.sequence + found;
      return place;
    }
    cursor.tiles += __shfl_sync(0xffffffff, end, 31);
  }
  return {-1, 0, 0};
}

DEVICE Plan plan_at(const Shape& shape, const Place& place) {
  Plan plan;
  Tile& tile = plan.tile;
  const int sequence = place.sequence;
  tile.head = place.head;
  tile.row = place.row_of_tiles * BLOCK_Q;
  if (shape.cu_queries) {
    tile.token = shape.cu_queries[sequence];
    tile.rows = shape.cu_queries[sequence + 1] - tile.token;
    tile.lse_start = tile.head * shape.total + tile.token;
    plan.q_row = tile.token + tile.row;
    plan.q_batch = 0;
  } else {
    tile.token = sequence * shape.queries;
    tile.rows = shape.queries;
    tile.lse_start = (sequence * shape.heads + tile.head) * shape.queries;
    plan.q_row = tile.row;
    plan.q_batch = sequence;
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
  const int start = shape.cu_keys ? shape.cu_keys[sequence] : 0;
  plan.kv_head = tile.head / shape.group;
  plan.kv_batch = shape.cu_keys ? 0 : sequence;
  plan.first_row = start + tile.block_begin * BLOCK_K;
  plan.last_row = start + (tile.block_end - 1) * BLOCK_K;
  return plan;
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
