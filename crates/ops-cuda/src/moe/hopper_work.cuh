// Shared by the Hopper kernels for many tokens: the work of a persistent block, and the transposition of results. Requires
// include/hopper.cuh.
//
// Macros: DTYPE, UP, TILE, STAGES.

constexpr int BLOCK_K = 64, HALF_ROWS = 128, ACROSS = UP == 1 ? HALF_ROWS : 2 * HALF_ROWS;
constexpr int BOX_BYTES = 32 * BLOCK_K * 2;  // of tokens
constexpr int TURN_BYTES = TILE * 128;       // of a consumer: 64 columns of every pair

struct Ring {
  u32 stage, parity;
  DEVICE void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// All combinations of a tile of pairs and a piece of the columns; the pieces of one tile are adjacent.
struct Work {
  const int* tiles;
  int across, count;

  DEVICE Work(const int* tiles, int columns) : tiles(tiles), across((columns + ACROSS - 1) / ACROSS) {
    count = tiles[0] * across;
  }
  // Expert, first pair, last pair + 1.
  DEVICE int4 tile(int index) const { return *reinterpret_cast<const int4*>(tiles + 4 + 4 * (index / across)); }
  DEVICE int column(int index) const { return index % across * ACROSS; }
};

DEVICE float silu(float x) { return x * reciprocal_approximate(1.0f + exp2_approximate(x * -1.44269504f)); }

// Four 8 x 8 matrices, each stored transposed: lanes 8 i to 8 i + 7 give the addresses of the columns of matrix i.
DEVICE void store_transposed(u32 to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// Output of a consumer.
struct Target {
  u16* made;
  int columns;
  u32 turn;
  int barrier, thread;

  // Stores 64 columns of the tile's pairs: value(i) is accumulator i of rows that are columns of `made`. read(pair, chunk) loads
  // eight of them from the transposed tile in shared memory.
  template <class Value, class Read>
  DEVICE void store(int4 tile, int column, Value value, Read read) const {
    const int count = tile.z - tile.y;
    const int lane = thread % 32, warp = thread / 32;
    named_barrier_sync(barrier, 128);  // the preceding contents have been read
#pragma unroll
    for (int i = 0; i < TILE / 8; i += 2) {
      if (8 * i >= count) continue;
      const int pair = 8 * (i + lane / 16) + lane % 8, chunk = 2 * warp + lane / 8 % 2;
      store_transposed(turn + pair * 128 + ((chunk ^ (lane % 8)) << 4), pack(value(4 * i), value(4 * i + 1)),
                       pack(value(4 * i + 2), value(4 * i + 3)), pack(value(4 * i + 4), value(4 * i + 5)),
                       pack(value(4 * i + 6), value(4 * i + 7)));
    }
    named_barrier_sync(barrier, 128);
    const int chunk = thread % 8, at = column + 8 * chunk;
    if (at >= columns) return;
#pragma unroll 4
    for (int pair = thread / 8; pair < count; pair += 16) {
      const uint4 words = read(pair, chunk);
      *reinterpret_cast<uint4*>(made + (i64)(tile.y + pair) * columns + at) = words;
    }
  }

  // Eight columns of the transposed tile, unchanged.
  DEVICE uint4 chunk_of(int pair, int chunk) const {
    uint4 words;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(turn + pair * 128 + ((chunk ^ (pair % 8)) << 4))
                 : "memory");
    return words;
  }

  template <class Value>
  DEVICE void store(int4 tile, int column, Value value) const {
    store(tile, column, value, [&](int pair, int chunk) { return chunk_of(pair, chunk); });
  }
};
