// The key blocks of the Hopper attention backward kernel, the queries that see them, and the order in which thread blocks
// take them.

// The run-time arguments that shape the work; see hopper.cu.
struct Shape {
  const int* cu_queries;  // i32 [B + 1], or null when dense
  const int* cu_keys;     // i32 [B + 1], or null when dense
  const int* key_counts;  // i32 [B], or null when every sequence uses all its key rows
  int batch, heads, kv_heads, queries, keys;
  int window_left, window_right;
  int section;
};

// A block of BLOCK_K keys of one key head.
struct alignas(16) Plan {
  int kv_head;      // negative when there is no further block
  int first_key;    // within its sequence
  int keys;         // keys of the sequence that are in use
  int key_rows;     // key rows of the sequence
  int queries;      // query rows of the sequence
  int low, high;    // tiles of BLOCK_Q queries that see some key of the block, from `high` down to `low`; none: high < low
  int shift;        // query i has key position i + shift
  int q_row, q_batch, k_row, k_batch;  // of the sequence's first rows, in the coordinates of the tensor maps
  int padded_row;   // of the sequence's first query in the row statistics
  int k_token;      // of the sequence's first key, counted over the whole batch
  int uncut_low, uncut_high;  // tiles below or above these are cut by a mask or by the end of the keys
  int tail_tile;    // the last tile of packed queries, if it is cut by the end of the sequence; else -1
  int cut_keys;     // keys of the block, if memory past them belongs to others; else BLOCK_K
  int start;        // the tile to start at: from there down to `low`, then from `high` down
  int group;        // blocks of this head that start at the same time
};
static_assert(sizeof(Plan) == PLAN_BYTES, "plans have a place in shared memory");

// Offsets in a plan: NVRTC has no offsetof in all its versions.
enum PlanOffset {
  PLAN_kv_head = 0,
  PLAN_first_key = 4,
  PLAN_keys = 8,
  PLAN_key_rows = 12,
  PLAN_queries = 16,
  PLAN_low = 20,
  PLAN_high = 24,
  PLAN_shift = 28,
  PLAN_q_row = 32,
  PLAN_q_batch = 36,
  PLAN_k_row = 40,
  PLAN_k_batch = 44,
  PLAN_padded_row = 48,
  PLAN_k_token = 52,
  PLAN_uncut_low = 56,
  PLAN_uncut_high = 60,
  PLAN_tail_tile = 64,
  PLAN_cut_keys = 68,
  PLAN_start = 72,
  PLAN_group = 76,
};

// Blocks are taken in this order: sections of `section` (sequence, key head) pairs; in a section the blocks from the
// first keys to the last, which sees fewest queries under a causal mask; in a row of blocks the pairs. A block waits
// for blocks of the same head only: with a mask for those of smaller key numbers, which come earlier in this order; without one also for
// those of its group, which all thread blocks together hold at the same time. So all thread blocks must be resident.
DEVICE Plan plan_at(const Shape& shape, int index, bool& exists) {
  const int blocks = (shape.keys + BLOCK_K - 1) / BLOCK_K, pairs = shape.batch * shape.kv_heads;
  Plan plan;
  plan.kv_head = -1;
  exists = true;
  if (index >= pairs * blocks) return plan;
  const int skipped = index / (shape.section * blocks) * shape.section;
  const int width = min(shape.section, pairs - skipped);
  const int within = index - skipped * blocks, block = within / width;
  const int pair = skipped + within - block * width, sequence = pair / shape.kv_heads;
  const int q_start = first_row_of(sequence, shape.cu_queries, shape.queries);
  const int k_start = first_row_of(sequence, shape.cu_keys, shape.keys);
  plan.kv_head = pair - sequence * shape.kv_heads;
  plan.first_key = block * BLOCK_K;
  plan.key_rows = first_row_of(sequence + 1, shape.cu_keys, shape.keys) - k_start;
  plan.keys = shape.key_counts ? shape.key_counts[sequence] : plan.key_rows;
  plan.queries = first_row_of(sequence + 1, shape.cu_queries, shape.queries) - q_start;
  plan.shift = plan.keys - plan.queries;
  plan.q_row = shape.cu_queries ? q_start : 0;
  plan.q_batch = shape.cu_queries ? 0 : sequence;
  plan.k_row = shape.cu_keys ? k_start : 0;
  plan.k_batch = shape.cu_keys ? 0 : sequence;
  plan.padded_row = padded_start(sequence, q_start);
  plan.k_token = k_start;
  exists = plan.first_key < plan.key_rows;
  // Query i sees keys i + shift - left to i + shift + right.
  const int last_key = min(plan.first_key + BLOCK_K, plan.keys) - 1;
  const int first_query = max(0, plan.first_key - shape.window_right - plan.shift);
  const int end_query = min(plan.queries, last_key + shape.window_left - plan.shift + 1);
  // The first query that sees the last key, and the last query that sees the first one.
  plan.uncut_low = (max(0, plan.first_key + BLOCK_K - 1 - shape.window_right - plan.shift) + BLOCK_Q - 1) / BLOCK_Q;
  if (plan.first_key + BLOCK_K > plan.keys) plan.uncut_low = 1 << 30;
  const int last_query = plan.first_key + shape.window_left - plan.shift;
  plan.uncut_high = last_query >= plan.queries - 1 ? 1 << 30 : (last_query + 1) / BLOCK_Q - 1;
  plan.tail_tile = shape.cu_queries && plan.queries % BLOCK_Q != 0 ? plan.queries / BLOCK_Q : -1;
  plan.cut_keys = shape.cu_keys || shape.key_counts ? min(BLOCK_K, plan.keys - plan.first_key) : BLOCK_K;
  plan.low = 0;
  plan.high = -1;
  if (last_key >= plan.first_key && first_query < end_query) {
    plan.low = first_query / BLOCK_Q;
    plan.high = (end_query - 1) / BLOCK_Q;
  }
  // Without a mask, the blocks of a head that are processed at the same time start SKEW tiles apart: at the same tile each would
  // wait for the preceding one. All of them must have been taken by thread blocks, since they wait for each other.
  plan.start = plan.high;
  plan.group = 1;
  if (!MASK && plan.high >= plan.low) {
    plan.group = max(1, min((int)gridDim.x / width, (plan.high + 1) / SKEW));
    plan.start = plan.high - block % plan.group * SKEW;
  }
  return plan;
}

// The first block of keys that adds to the gradient of a tile of queries: the tiles that a block sees start and end no
// later than those of the next block, so all blocks from this one on to any that sees the tile see it too.
DEVICE int first_block_of(int tile, int shift, int window_left) {
  return max(0, tile * BLOCK_Q + shift - window_left) / BLOCK_K;
}
