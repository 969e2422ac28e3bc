// Products of few tokens with rows of weights that are read once. Stands behind choose.cuh.
//
// A warp multiplies up to 8 tokens (the left operand; its other 8 rows are zeros) with 8 rows of weights (the right one), DEPTH
// channels at a time. Both operands are read as 16 bytes a lane: lane l has channels 8 (l % 4) to 8 (l % 4) + 7 of token or row
// l / 4. Of the four words of a lane the first two are its part of one product of depth 16, the others of the next; the channels
// that a place of an operand stands for are others than the instruction numbers them by, but they are the same in both.
//
// What a lane needs it copies itself into shared memory, AHEAD depths before its turn, and reads back: its bytes are then under
// way without registers for them, which the compiler would have few of in use, and no lane waits for another.

constexpr int WARPS = 8, THREADS = 32 * WARPS, DEPTH = 32;
constexpr int TOKEN_BYTES = ONE ? 64 : 512;  // of a stage: a single token is that of lanes 0 to 3

// A warp's ring of AHEAD stages: `rows` times 8 rows of weights, then `groups` times tokens.
template <int rows, int groups>
struct Ring {
  static constexpr int STAGE_BYTES = rows * 512 + groups * TOKEN_BYTES, BYTES = AHEAD * STAGE_BYTES;
  u32 base;  // this lane's part of the first stage
  int turn;

  DEVICE Ring(const void* shared) : base(shared_address(shared) + threadIdx.x % 32 * 16), turn(0) {}

  DEVICE u32 weights(int row) const { return base + turn * STAGE_BYTES + row * 512; }
  DEVICE u32 tokens(int group = 0) const { return weights(rows) + group * TOKEN_BYTES; }
  DEVICE void advance() { turn = turn + 1 == AHEAD ? 0 : turn + 1; }
};

// A whole line is fetched into the second cache: the next depth of the row is the rest of it.
DEVICE void copy_weights(u32 to, const u16* from, bool there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}

// Lanes without a token copy zeros; of a single token only lanes 0 to 3 copy, and only they load it.
DEVICE void copy_tokens(u32 to, const u16* from, bool there) {
  if (!ONE || threadIdx.x % 32 < 4) copy_async<16>(to, from, there);
}

DEVICE void load_piece(u32 (&to)[4], u32 address) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

DEVICE void load_tokens(u32 (&to)[4], u32 address) {
#pragma unroll
  for (int w = 0; w < 4; w++) to[w] = 0;
  if (!ONE || threadIdx.x % 32 < 4) load_piece(to, address);
}

// d[0], d[1]: token l / 4, rows l % 4 * 2 and the next; d[2] and d[3] stay 0.
DEVICE void multiply_depth(float (&d)[4], const u32 (&tokens)[4], const u32 (&weights)[4]) {
  const u32 first[4] = {tokens[0], 0, tokens[1], 0}, second[4] = {tokens[2], 0, tokens[3], 0};
  multiply(d, first, weights[0], weights[1]);
  multiply(d, second, weights[2], weights[3]);
}

// The list of tiles (list.cuh), or the places of a single token's choice.
struct Tiles {
  const int* list;
  int count;

  // Expert, first pair, last pair + 1; no pairs past the end.
  DEVICE int4 at(int index) const {
    if (index >= count) return make_int4(0, 0, 0, 0);
#if ONE
    return make_int4(list[index], index, index + 1, 0);
#else
    return *reinterpret_cast<const int4*>(list + 4 + 4 * index);
#endif
  }
};
