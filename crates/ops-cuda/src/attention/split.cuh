// The share of a sequence's tiles of keys of a block in a split-KV call: decode.cu and hopper_latent.cu.

struct Share {
  int first, end;  // tiles
};

// The longest range of keys is divided among all splits, a shorter one among proportionally fewer, for equal work per block;
// the other blocks are empty. `longest` is the planned maximum of visible keys: with counts on the GPU (cache_seqlens) the
// current maximum may be less, and a plan for twice as many keys would leave half of the blocks without work.
// All lanes of a warp call this together.
template <int block_keys>
__device__ __forceinline__ Share share_of(int tiles, int longest, const int* cache_seqlens) {
  const unsigned splits = gridDim.y;
  if (splits == 1) return {0, tiles};
  if (cache_seqlens != nullptr) {
    int now = 0;
    for (int sequence = threadIdx.x % 32; sequence < (int)gridDim.z; sequence += 32) {
      now = max(now, cache_seqlens[sequence]);
    }
    longest = min(longest, __reduce_max_sync(0xffffffff, now));
  }
  // Products of tiles and splits stay below 2^32: positions of keys do below 2^29, and there are 256 splits at most.
  const unsigned most = max(1, (longest + block_keys - 1) / block_keys);
  const unsigned parts = max(1u, min(splits, (tiles * splits + most - 1) / most));
  const unsigned part = min(blockIdx.y, parts);
  return {(int)(tiles * part / parts), (int)(tiles * min(part + 1, parts) / parts)};
}
