// The queries that selected a block, for blocks.cu and blocks_hopper.cu. Requires call.cuh.

// Lists, in rising order, the set bits of `words` words at `row`, and returns how many there are. All `threads` threads call it; a
// barrier has followed the last entry.
template <int threads>
DEVICE int list_queries(u16* list, const u32* row, int words) {
  __shared__ int warp_counts[threads / 32];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  int total = 0;
  for (int first = 0; first < words; first += threads) {
    u32 word = first + thread < words ? row[first + thread] : 0;
    const int mine = __popc(word);
    int before = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffff, before, step);
      if (lane >= step) before += other;
    }
    if (lane == 31) warp_counts[warp] = before;
    __syncthreads();
    int at = total + before - mine;
#pragma unroll
    for (int w = 0; w < threads / 32; w++) {
      if (w < warp) at += warp_counts[w];
      total += warp_counts[w];
    }
    for (; word != 0; word &= word - 1) list[at++] = (u16)((first + thread) * 32 + __ffs(word) - 1);
    __syncthreads();
  }
  return total;
}

// Slot of block j among a query's blocks.
DEVICE int slot_of(const int* blocks, int count, int j, int lane) {
  int slot = 0;
  for (int first = 0; first < count; first += 32) {
    const u32 found = __ballot_sync(0xffffffff, first + lane < count && blocks[first + lane] == j);
    if (found != 0) slot = first + __ffs(found) - 1;
  }
  return slot;
}
