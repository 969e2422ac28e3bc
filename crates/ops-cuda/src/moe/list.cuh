// The list of (token, expert) pairs by expert, of the experts whose weights are on this GPU, with local indices from 0 on.
// Requires choose.cuh.
//
// A chunk of CHUNK tokens is processed by one block of LIST_THREADS threads, one expert per thread. A token chooses an
// expert at most once, so a chunk's choices are CHUNK bits for each expert, and the rank of a token among those of its expert
// is the number of bits below its own: the result does not depend on the order of threads.
//
// The list of a call:
//   tiles  i32 [4 + 4 n]: the number of tiles, that of pairs, two words unused, and for each tile an expert and its first and
//          last + 1 place in `pairs`: TILE of them at most, all of one expert; experts ascend
//   pairs  i32 [up to T * top_k]: token * top_k + its place among the token's experts; ascending for each expert

constexpr int CHUNK = 64, LIST_THREADS = MOST_EXPERTS;

struct List {
  u32 tokens[MOST_EXPERTS][CHUNK / 32];  // bits
  int begin[MOST_EXPERTS];               // an expert's first place
  u32 sums[2][LIST_THREADS / 32];

  DEVICE void clear() {
#pragma unroll
    for (int w = 0; w < CHUNK / 32; w++) tokens[threadIdx.x][w] = 0;
  }

  DEVICE void add(int token, int expert) { atomicOr(&tokens[expert][token / 32], 1u << token % 32); }

  // Tokens of this thread's expert.
  DEVICE int count() const {
    int count = 0;
#pragma unroll
    for (int w = 0; w < CHUNK / 32; w++) count += __popc(tokens[threadIdx.x][w]);
    return count;
  }

  // Tokens of an expert before this one.
  DEVICE int rank(int token, int expert) const {
    int rank = __popc(tokens[expert][token / 32] & ((1u << token % 32) - 1));
#pragma unroll
    for (int w = 0; w + 1 < CHUNK / 32; w++) {
      if (w < token / 32) rank += __popc(tokens[expert][w]);
    }
    return rank;
  }

  // The sum of `value` over the threads before this one. All call it, with another `of` for another sum.
  DEVICE u32 before(u32 value, int of) {
    const int lane = threadIdx.x % 32;
    u32 sum = value;
#pragma unroll
    for (int far = 1; far < 32; far *= 2) {
      const u32 other = __shfl_up_sync(0xffffffff, sum, far);
      if (lane >= far) sum += other;
    }
    if (lane == 31) sums[of][threadIdx.x / 32] = sum;
    __syncthreads();
    u32 warps = lane < threadIdx.x / 32 ? sums[of][lane] : 0;
    return __reduce_add_sync(0xffffffff, warps) + sum - value;
  }

  // Sets `begin` from the number of pairs of this thread's expert in the whole call, and writes the tiles if `writes`.
  DEVICE void place(int total, int* tiles, bool writes) {
    const int expert = threadIdx.x, count = ceil_div(total, TILE);
    // Tiles of an expert are of equal size, rounded up to a multiple of the MMA's width.
    const int size = count == 0 ? TILE : round_up(ceil_div(total, count), min(TILE, 16));
    const int first = before(total, 0), tile = before(count, 1);
    begin[expert] = first;
    if (!writes) return;
    for (int i = 0; i < count; i++) {
      const int from = first + i * size;
      *reinterpret_cast<int4*>(tiles + 4 + 4 * (tile + i)) = make_int4(expert, from, min(from + size, first + total), 0);
    }
    if (expert == LIST_THREADS - 1) tiles[0] = tile + count, tiles[1] = first + total;
  }
};
