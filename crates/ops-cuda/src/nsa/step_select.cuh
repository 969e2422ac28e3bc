// A block of threads selects the blocks of one query of nsa. Requires step.cuh and importance.cuh.

// A block's key and index as one integer, larger for blocks that are selected first; 0 for none.
DEVICE u64 order_of(u32 key, int j) { return key == TAKEN ? 0 : (u64)key << 32 | (u32)~j; }

// The lane's rank among 32, larger integers first.
DEVICE int place_among(u64 number) {
  int ahead = 0;
#pragma unroll 8
  for (int other = 0; other < 32; other++) ahead += __shfl_sync(0xffffffff, number, other) > number;
  return ahead;
}

// Overwrites `keys` [blocks] with the selected blocks in ascending order; `weights` of compressed tokens and `list` [count]
// are in shared memory. All threads call it; it ends with a barrier.
DEVICE void select_blocks(const Selecting& here, const float* weights, u32* keys, int* list) {
  __shared__ u64 groups[32];
  __shared__ int candidates[32], found;
  __shared__ u32 rounds[2][WARPS][2];
  const int thread = threadIdx.x, warp = warp_number(), lane = thread % 32;
  if (here.blocks <= here.count) {
#pragma unroll 1
    for (int s = thread; s < here.blocks; s += THREADS) keys[s] = s;
    __syncthreads();
    return;
  }
  u64 best = 0;
#pragma unroll 1
  for (int j = thread; j < here.blocks; j += THREADS) {
    keys[j] = here.key(j, here.importance(j, [&](int i) { return weights[i]; }));
    best = max(best, order_of(keys[j], j));
  }
  const int wanted = here.wanted();
  if (wanted <= 32) {
    // Threads form 32 groups. The wanted-th largest of the groups' maxima is a lower bound of the selected keys, and few
    // other keys reach it.
    u64 largest = best;
#pragma unroll
    for (int step = 1; step < WARPS; step *= 2) largest = max(largest, __shfl_xor_sync(0xffffffff, largest, step));
    if (lane % WARPS == 0) groups[thread / WARPS] = largest;
    if (thread == 0) found = 0;
    __syncthreads();
    largest = groups[lane];
    const u32 at_edge = __ballot_sync(0xffffffff, place_among(largest) == wanted - 1);
    const u64 edge = at_edge == 0 ? 0 : __shfl_sync(0xffffffff, largest, __ffs(at_edge) - 1);
    if (edge != 0) {
#pragma unroll 1
      for (int j = thread; j < here.blocks; j += THREADS) {
        if (order_of(keys[j], j) < edge) continue;
        const int at = atomicAdd(&found, 1);
        if (at < 32) candidates[at] = j;
      }
      __syncthreads();
      if (found <= 32) {
        if (warp == 0) {
          const int j = lane < found ? candidates[lane] : 0;
          const u64 mine = lane < found ? order_of(keys[j], j) : 0;
          const u32 taken = __ballot_sync(0xffffffff, place_among(mine) < wanted && mine != 0);
          int before = 0;
#pragma unroll 8
          for (int other = 0; other < 32; other++) before += __shfl_sync(0xffffffff, j, other) < j && (taken >> other & 1);
          __syncwarp();  // every lane has read its key: the blocks overwrite the keys
          if (taken >> lane & 1) keys[here.front + before] = j;
#pragma unroll 1
          for (int f = lane; f < here.forced(); f += 32) keys[here.forced_slot(f)] = here.forced_block(f);
        }
        __syncthreads();
        return;
      }
    }
  }
  // Many ties or many blocks: selected one by one. The thread that had the maximum searches for its next largest key.
#pragma unroll 1
  for (int f = thread; f < here.forced(); f += THREADS) list[f] = here.forced_block(f);
#pragma unroll 1
  for (int taken = here.forced(); taken < here.count; taken++) {
    const u32 key = (u32)(best >> 32), at = ~(u32)best;
    const u32 largest = warp_max(key), largest_at = warp_min(key == largest ? at : NONE);
    u32(&round)[WARPS][2] = rounds[taken % 2];
    if (lane == 0) {
      round[warp][0] = largest;
      round[warp][1] = largest_at;
    }
    __syncthreads();
    u64 top = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) top = max(top, order_of(round[w][0], (int)round[w][1]));
    const int j = (int)~(u32)top;
    if (thread == 0) list[taken] = j;
    if (best == top) {
      keys[j] = TAKEN;
      best = 0;
#pragma unroll 1
      for (int i = thread; i < here.blocks; i += THREADS) best = max(best, order_of(keys[i], i));
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int s = thread; s < here.count; s += THREADS) {
    int before = 0;
#pragma unroll 1
    for (int other = 0; other < here.count; other++) before += list[other] < list[s];
    keys[before] = list[s];
  }
  __syncthreads();
}
