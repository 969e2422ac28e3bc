// Products of few tokens with rows of weights that are read once. Stands behind choose.cuh.
//
// A warp multiplies up to 16 tokens (the left operand) with 8 rows of weights (the right one), DEPTH channels at a time. Both
// operands are read as 16 bytes a lane: lane l has channels 8 (l % 4) to 8 (l % 4) + 7 of token or row l / 4. Of the four
// words of a lane the first two are its part of one product of depth 16, the others of the next; the channels that a place of
// an operand stands for are others than the instruction numbers them by, but they are the same in both operands.
//
// What a lane needs it copies itself into shared memory, several depths ahead, and reads back: its bytes are then under way
// without registers for them, which the compiler would have few of in use, and no lane waits for another.

constexpr int WARPS = 8, THREADS = 32 * WARPS, DEPTH = 32;

// A warp's ring of AHEAD stages, each of `pieces` times 16 bytes a lane; one lane's part of it.
template <int pieces>
struct Ring {
  static constexpr int BYTES = AHEAD * pieces * 512;
  u32 base;
  int turn;

  DEVICE Ring(const void* shared) : base(shared_address(shared) + threadIdx.x % 32 * 16), turn(0) {}

  DEVICE u32 at(int piece) const { return base + (turn * pieces + piece) * 512; }
  DEVICE void advance() { turn = turn + 1 == AHEAD ? 0 : turn + 1; }
};

// A whole line is fetched into the second cache: the next depth of the row is the rest of it.
DEVICE void copy_weights(u32 to, const u16* from, bool there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}

DEVICE void load_piece(u32 (&to)[4], u32 address) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// d[0], d[1]: token l / 4, rows l % 4 * 2 and the next; d[2], d[3]: token l / 4 + 8.
DEVICE void multiply_depth(float (&d)[4], const u32 (&low)[4], const u32 (&high)[4], const u32 (&weights)[4]) {
  const u32 first[4] = {low[0], high[0], low[1], high[1]}, second[4] = {low[2], high[2], low[3], high[3]};
  multiply(d, first, weights[0], weights[1]);
  multiply(d, second, weights[2], weights[3]);
}

// Copies channels [first, last) of one token, 16 bytes at a time, zeros from `size` on; all are multiples of 8.
DEVICE void copy_token(u32 to, const u16* token, int first, int last, int size) {
  for (int at = first + threadIdx.x % 32 * 8; at < last; at += 256) {
    copy_async<16>(to + 2 * at, token + (at < size ? at : 0), at < size);
  }
  copy_commit();
}
