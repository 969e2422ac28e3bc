// Shared memory layout, the ring of boxes, the rows and keys of a block of hopper_latent.cu (with its macros), and the
// warp that copies keys.

constexpr int BLOCK_KEYS = 64;
constexpr int KEY_BOXES = D / 64, VALUE_BOXES = DV / 64;
constexpr int GROUP_BOXES = VALUE_BOXES / 2;  // of a warpgroup of values
constexpr int BOX_BYTES = BLOCK_KEYS * 128;
constexpr int COLUMNS = ROWS / 4;  // rows of queries of a thread: they are columns of the transposed scores
// At 64 rows the output needs more registers than an equal share per thread: a whole warpgroup copies and gives up registers.
constexpr bool BY_ROLE = ROWS == 64;
constexpr int CONSUMERS = 384, THREADS = CONSUMERS + (BY_ROLE ? 128 : 32);
constexpr int UNLIMITED = 1 << 30;
#define INFINITE __int_as_float(0x7f800000)

constexpr int QUERIES_AT = 0;                                     // [KEY_BOXES][ROWS][64], swizzled
constexpr int WEIGHTS_AT = QUERIES_AT + KEY_BOXES * ROWS * 128;   // [2][ROWS][64 keys], swizzled
constexpr int RING_AT = WEIGHTS_AT + 2 * ROWS * 128;              // [BOXES][64 keys][64], swizzled
constexpr int FACTORS_AT = RING_AT + BOXES * BOX_BYTES;           // f32 [2][ROWS]: of the output so far; at the end 1 / sum
constexpr int MAXIMA_AT = FACTORS_AT + 2 * ROWS * 4;              // f32 [2][4 warps][ROWS]
constexpr int SUMS_AT = MAXIMA_AT + 8 * ROWS * 4;                 // f32 [4 warps][ROWS]
constexpr int QUERY_ROWS_AT = SUMS_AT + 4 * ROWS * 4;             // i32 [ROWS]: row index in q and o, or -1
constexpr int BARRIERS_AT = QUERY_ROWS_AT + 2 * ROWS * 4;
constexpr int FULL_AT = BARRIERS_AT, EMPTY_AT = FULL_AT + 8 * BOXES;
constexpr int WEIGHTS_FULL_AT = EMPTY_AT + 8 * BOXES, WEIGHTS_EMPTY_AT = WEIGHTS_FULL_AT + 16;
constexpr int SHARED_BYTES = 1024 + WEIGHTS_EMPTY_AT + 16;
static_assert(D % 64 == 0 && DV % 128 == 0 && DV <= D && BOXES > KEY_BOXES, "widths");
static_assert(ROWS == 16 || ROWS == 32 || ROWS == 64, "rows");
static_assert(BOXES <= 32 && (BOXES - 1) / KEY_BOXES < 4, "a lane each");
static_assert(SHARED_BYTES <= 227 * 1024, "more shared memory than a block can have");
// Named barriers.
constexpr int SCORES = 1, QUERIES = 2, FINISH = 3;

// d (64 x columns) += the transpose of a (16 x 64, descriptor_mn_major) times b (descriptor_k_major).
#define WGMMA_TURNED(columns, n, p1, p2)                                                                              \
  DEVICE void wgmma_turned(float (&d)[n], u64 a, u64 b) {                                                             \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." DTYPE_NAME "." DTYPE_NAME                    \
                 " {" WGMMA_NAMES_##n "}, %" #p1 ", %" #p2 ", 1, 1, 1, 1, 0;\n"                                       \
                 : WGMMA_FLOATS_##n                                                                                   \
                 : "l"(a), "l"(b));                                                                                   \
  }
WGMMA_TURNED(16, 8, 8, 9)
WGMMA_TURNED(32, 16, 16, 17)
WGMMA_TURNED(64, 32, 32, 33)

// tanh to 1e-7.
DEVICE float tanh_exact(float x) {
  return 1.0f - 2.0f * reciprocal_approximate(1.0f + exp2_approximate(x * 2.88539008f));
}

// A slot of the ring of boxes and the phase parity of its round.
struct Ring {
  int slot;
  u32 turn;

  DEVICE void advance(int boxes) {
    slot += boxes;
    if (slot >= BOXES) {
      slot -= BOXES;
      turn ^= 1;
    }
  }
};

// The rows and keys of a block. Tiles of keys start at multiples of 64, so that a box never crosses a page.
struct Work {
  int sequence, kv_head, group, first_row, rows, q_start, k_start, keys, shift, left, right, low, high, start;
  int first_tile, end_tile;

  // Whether every row sees every key of a tile.
  DEVICE bool whole(int first_key) const {
    const int last = min(first_row + ROWS, rows) - 1;
    return first_key >= max(0, last / group + shift - left) &&
           first_key + BLOCK_KEYS <= min(keys, first_row / group + shift + right + 1);
  }
};

// ---- The copy warp: TMA loads of boxes of 64 channels of a tile's keys into consecutive slots of the ring.
DEVICE void copy_keys(const Work& work, u32 base, const TensorMap* map_k, const int* block_table, int block_size,
                      int max_blocks, int box_rows) {
  const int lane = threadIdx.x % 32, parts = BLOCK_KEYS / box_rows;
  // Each lane looks up the first row of one of 32 boxes, starting at `tile`; a box outside the sequence is all zeros.
  const auto look_up = [&](int tile) {
    const int key = work.start + tile * BLOCK_KEYS + lane * box_rows;
    if (key >= work.high || key + box_rows <= work.low) return -BLOCK_KEYS;
    if (block_table == nullptr) return work.k_start + key;
    return block_table[(i64)work.sequence * max_blocks + key / block_size] * block_size + key % block_size;
  };
  const auto copy = [&](int slot, int part, int box, int row) {
    const u32 barrier = base + FULL_AT + 8 * slot;
    if (part == 0) mbarrier_expect(barrier, BOX_BYTES);
    const u32 to = base + RING_AT + slot * BOX_BYTES + part * box_rows * 128;
    tma_load_4d(to, map_k, barrier, box * 64, work.kv_head, row, 0);
  };
  const int boxes = (work.end_tile - work.first_tile) * KEY_BOXES, first = min(BOXES, boxes);
  int rows = look_up(work.first_tile);
  // The ring is empty at first: a lane for each box, so that none waits for the ones before.
  for (int part = 0; part < parts; part++) {
    const int row = __shfl_sync(0xffffffff, rows, lane / KEY_BOXES * parts + part);
    if (lane < first) copy(lane, part, lane % KEY_BOXES, row);
  }
  Ring ring = {0, 1};
#pragma unroll 1
  for (int number = first; number < boxes; number++) {
    const int tile = number / KEY_BOXES, box = number % KEY_BOXES, ahead = tile * parts % 32;
    if (box == 0 && ahead == 0) rows = look_up(work.first_tile + tile);
    mbarrier_wait(base + EMPTY_AT + 8 * ring.slot, ring.turn ^ 1);
    for (int part = 0; part < parts; part++) {
      const int row = __shfl_sync(0xffffffff, rows, ahead + part);
      if (lane == 0) copy(ring.slot, part, box, row);
    }
    ring.advance(1);
  }
}

// Zeroes the rows of a tile's values that are outside the sequence: a weight of 0 times NaN is NaN.
DEVICE void clear_outside(const Work& work, u32 base, Ring ring, int first_key, int thread) {
#pragma unroll 1
  for (int box = 0; box < VALUE_BOXES; box++) {
    for (int at = thread; at < BLOCK_KEYS * 8; at += 128) {
      const int key = first_key + at / 8;
      if (key >= work.low && key < work.high) continue;
      const u32 to = base + RING_AT + ring.slot * BOX_BYTES + at * 16;
      asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
    ring.advance(1);
  }
}
