// Shared by finish.cu and finish_hopper.cu: the forced keys, the other blocks, which blocks.cu has processed, and the merge of their
// results. Requires softmax.cuh.

// Tiles of TILE forced keys of adjacent queries: those of the first blocks, then those from the first query's local blocks on.
struct Forced {
  int initial_keys, initial_tiles, local_first, tiles, end;
  int select_block, local_blocks;

  DEVICE int first_of(int tile) const { return tile < initial_tiles ? tile * TILE : local_first + (tile - initial_tiles) * TILE; }
  // Number of keys from the first one of the tile on.
  DEVICE int valid_of(int tile) const { return (tile < initial_tiles ? initial_keys : end) - first_of(tile); }

  // Masks all of a tile's scores except those of forced keys of the query at `position`.
  template <int PAIRS>
  DEVICE void mask(float (&s)[PAIRS * 2][4], int tile, int position, int lane) const {
    const int local_low = (max(position, 0) / select_block - local_blocks + 1) * select_block, first = first_of(tile);
    const bool initial = tile < initial_tiles;
    mask_outside<PAIRS>(s, initial ? 0 : local_low - first, (initial ? min(initial_keys, position + 1) : position + 1) - first, lane);
  }
};

DEVICE Forced forced_keys(int first_position, int last_position, int select_block, int initial_blocks, int local_blocks) {
  Forced f;
  f.select_block = select_block;
  f.local_blocks = local_blocks;
  f.end = last_position + 1;
  f.initial_keys = max(0, min(initial_blocks * select_block, f.end));
  f.initial_tiles = (f.initial_keys + TILE - 1) / TILE;
  f.local_first = max(f.initial_keys, (max(first_position, 0) / select_block - local_blocks + 1) * select_block);
  f.tiles = f.initial_tiles + (local_blocks > 0 ? max(0, (f.end - f.local_first + TILE - 1) / TILE) : 0);
  return f;
}

// A query's other blocks: slots begin .. end, as indices ascend; and the number of tokens of all of its blocks.
struct Others {
  int begin, end, tokens;
};

DEVICE Others other_blocks(const int* blocks, int count, int position, int select_block, int initial_blocks, int local_blocks) {
  const int lane = threadIdx.x % 32, own_block = max(position, 0) / select_block;
  Others others = {};
  for (int first = 0; first < count; first += 32) {
    const int block = first + lane < count ? blocks[first + lane] : -1;
    others.begin += __popc(__ballot_sync(0xffffffff, block >= 0 && block < initial_blocks));
    others.end += __popc(__ballot_sync(0xffffffff, block >= 0 && block + local_blocks <= own_block));
    others.tokens += block >= 0 ? min(select_block, position + 1 - block * select_block) : 0;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) others.tokens += __shfl_xor_sync(0xffffffff, others.tokens, step);
  return others;
}

// Every thread of the launch clears its share of the bits.
DEVICE void clear_bits(u32* bits, int words) {
  const i64 threads = (i64)gridDim.x * gridDim.y * gridDim.z * blockDim.x;
  const i64 block = ((i64)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  for (i64 w = block * blockDim.x + threadIdx.x; w < words; w += threads) bits[w] = 0;
}

// Log-sum-exps of a query's slots [n][16] in shared memory, and the resulting weights in rows lane / 4 and that + 8.
struct Merge {
  const float* sums;  // base 2
  int lane;

  // Raises the rows' maximum to that of the other blocks, and rescales output and sum.
  template <int floats>
  DEVICE void widen(float (&output)[floats], float (&maximum)[2], float (&sum)[2], const Others& others) const {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float largest = maximum[half];
      for (int s = others.begin; s < others.end; s++) largest = fmaxf(largest, sums[s * 16 + lane / 4 + half * 8]);
      const float center = largest == -INFINITE ? 0.0f : largest;
      const float fade = exp2_approximate(maximum[half] - center);
      maximum[half] = center;
      sum[half] = row_sum(sum[half]) * fade;
#pragma unroll
      for (int i = half * 2; i < floats; i += 4) {
        output[i] *= fade;
        output[i + 1] *= fade;
      }
    }
  }

  // The weights of slot s in the rows, which are added to their sums.
  DEVICE void weigh(float (&weight)[2], const float (&maximum)[2], float (&sum)[2], int s) const {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      weight[half] = exp2_approximate(sums[s * 16 + lane / 4 + half * 8] - maximum[half]);
      sum[half] += weight[half];
    }
  }
};

// Adds piece p, 16 columns, of one block's result.
template <int floats>
DEVICE void add_piece(float (&output)[floats], int p, const u32 (&piece)[4], const float (&weight)[2]) {
#pragma unroll
  for (int e = 0; e < 4; e++) {
    output[p * 8 + e * 2] += weight[e % 2] * to_float((u16)piece[e]);
    output[p * 8 + e * 2 + 1] += weight[e % 2] * to_float((u16)(piece[e] >> 16));
  }
}
