// Instructions of the MMA gradient kernels that ampere.cuh does not have. Requires ampere.cuh and gradient.cuh.

// Weights of a chunk, from gradient_steps.cu: for each two adjacent tokens a pair of the storage type and a pair of its remainders,
// [Q / 2][2] words; then exp(a_L) as f32, and 0. Forward weights are exp(a_L - a_t) D_t, reverse ones exp(a_t).
constexpr int WEIGHT_WORDS = Q + 4;
constexpr int WEIGHT_BYTES = WEIGHT_WORDS * 4;

// a b + c for two values of the storage type, rounded once.
DEVICE u32 fma_pair(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn." DTYPE_NAME "x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Named barrier `id` (1 to 15) of `threads` threads, of which some only arrive.
template <int id, int threads>
DEVICE void barrier_arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(id), "n"(threads) : "memory");
}

template <int id, int threads>
DEVICE void barrier_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(id), "n"(threads) : "memory");
}

// Parts of the sums over tokens of a chunk and head, f32 [slots, H, PART_FLOATS], from gradient_chunk.cu to gradient_sums.cu.
enum Part {
  // W_ts = dy_t . x_s, S = C B^T; the sums skip the diagonal.
  ROW_SUMS = 0,           // [3 pieces of a row tile][Q]: over s of S_ts exp(a_t - a_s) D_s W_ts
  COLUMN_SUMS = 3 * Q,    // [4 row tiles][Q]: over t of S_ts exp(a_t - a_s) W_ts
  FROM_ENTERING = 7 * Q,  // [4 column parts][Q]: exp(a_t) dy_t . h C_t
  TO_LEAVING = 11 * Q,    // [2 column halves][Q]: exp(a_L - a_s) x_s . g B_s
  DIAGONAL = 13 * Q,      // [Q]: W_tt
  DIAGONAL_TERMS = 14 * Q,  // [Q]: S_tt W_tt
  TRACE = 15 * Q,         // [8 warps]: <h, g>
  D_SUMS = 15 * Q + 8,    // [4 row tiles][64]: dy x per channel, if D is per channel
  PART_FLOATS = 19 * Q + 8,
};
