// The blocks that each query of nsa reads: the n most important ones with the forced ones, or given ones.
//
// A warp takes one query against one key head. Importance of block j: the sum over compressed tokens i, in rising order,
// of |[i d, i d + l) intersect [j l', (j + 1) l')| / d * p[i], p[i] being p_sum of compressed.cu added up over the slabs. Forced blocks
// are taken first, then the largest one by one, the lower of equals first.
//
// indices [.., Hkv, n] gets the blocks, ascending, then -1. reads [.., Hkv, 3] gets a 0 for each branch whose bit is
// set in zero_reads, as no other kernel will count there.
//
// bits [B, Hkv, most_blocks, chunk_tokens / 32], or null: bit i of a block's row is set where query i of the chunk reads it and
// it is not forced (finish.cu reads those); all were 0 (each bit is set once, so no order shows).
//
// mode 0: nothing is selected, all -1. 1: by importance. 2: as given [.., Hkv, n]: a set, in which -1 and blocks
// after the query are ignored.
//
// Launch: grid (ceil(chunk_tokens * Hkv / WARPS), 1, B), block 32 * WARPS, dynamic shared memory
// WARPS * most_blocks * 4 bytes, most_blocks = blocks of the longest sequence, at least 1. Macros: D (unused), DTYPE, WARPS.
//
// Source: ampere.cuh, call.cuh, importance.cuh and this.

constexpr int MOST_CANDIDATES = 32;  // a lane each
constexpr int AHEAD = 8;             // blocks of a lane whose weights are in flight

extern "C" __global__ void __launch_bounds__(WARPS * 32, 8)
    nsa_select(const float* __restrict__ p_sum, const int* __restrict__ given, int* __restrict__ indices,
               int* __restrict__ reads, const int* __restrict__ cu_q, const int* __restrict__ cu_k, int tq, int tk,
               int kv_heads, int slabs, int mode, int zero_reads, int block, int stride, int select_block,
               int select_count, int initial_blocks, int local_blocks, int chunk_first, int chunk_tokens, int p_stride,
               int most_blocks, u32* __restrict__ bits) {
  extern __shared__ u32 shared_keys[];
  __shared__ int candidates[WARPS][MOST_CANDIDATES];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int item = blockIdx.x * WARPS + warp;
  const int in_chunk = item / kv_heads, kv_head = item % kv_heads;
  const Sequence here = sequence_at(blockIdx.z, cu_q, cu_k, tq, tk);
  const int token = chunk_first + in_chunk;
  if (in_chunk >= chunk_tokens || token >= here.queries) return;
  const int position = token + here.keys - here.queries;
  const i64 row = (i64)(here.q_start + token) * kv_heads + kv_head;
  if (lane < 3 && (zero_reads >> lane & 1)) reads[row * 3 + lane] = 0;
  int* to = indices + row * select_count;
  u32* keys = shared_keys + (i64)warp * most_blocks;
  const Selecting query = selecting_at(position, block, stride, select_block, select_count, initial_blocks, local_blocks);
  const int blocks = mode == 0 ? 0 : query.blocks;
  const u32 below = (1u << lane) - 1;
  auto take = [&](int slot, int j) {
    to[slot] = j;
    if (bits != nullptr && j >= initial_blocks && j + local_blocks < blocks) {
      atomicOr(bits + (((i64)blockIdx.z * kv_heads + kv_head) * most_blocks + j) * (chunk_tokens / 32) + in_chunk / 32,
               1u << (in_chunk % 32));
    }
  };

  if (mode == 1 && blocks > select_count) {
    const float* p = p_sum + (((i64)blockIdx.z * chunk_tokens + in_chunk) * kv_heads + kv_head) * slabs * p_stride;
    u32 best = TAKEN, best_at = NONE;
    auto weight_of = [&](int i) {
      float weight = p[i];
      for (int slab = 1; slab < slabs; slab++) weight += p[(i64)slab * p_stride + i];
      return weight;
    };
    for (int first = lane; first < blocks; first += 32 * AHEAD) {
      float importance[AHEAD];
      if (query.own_tokens()) {
        // All loads are issued before one is used.
#pragma unroll
        for (int i = 0; i < AHEAD; i++) importance[i] = first + 32 * i < query.seen ? p[first + 32 * i] : 0.0f;
        for (int slab = 1; slab < slabs; slab++) {
#pragma unroll
          for (int i = 0; i < AHEAD; i++) {
            importance[i] += first + 32 * i < query.seen ? p[(i64)slab * p_stride + first + 32 * i] : 0.0f;
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) importance[i] = first + 32 * i < blocks ? query.importance(first + 32 * i, weight_of) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        const int j = first + 32 * i;
        if (j >= blocks) break;
        const u32 key = query.key(j, importance[i]);
        keys[j] = key;
        if (key > best) {
          best = key;
          best_at = j;
        }
      }
    }
    // The wanted-th largest of the lanes' largest keys is a lower bound of the selected keys: few more blocks reach it.
    const int wanted = query.wanted();
    u32 edge = TAKEN, edge_at = NONE, rest = best;
    for (int taken = 0; taken < min(wanted, 32); taken++) {
      edge = warp_max(rest);
      edge_at = warp_min(rest == edge ? best_at : NONE);
      if (best_at == edge_at) rest = TAKEN;
    }
    __syncwarp();
    int found = edge == TAKEN || wanted > 32 ? MOST_CANDIDATES + 1 : 0;
    for (int first = query.front; first < query.back && found <= MOST_CANDIDATES; first += 32) {
      const int j = first + lane;
      const u32 key = j < query.back ? keys[j] : TAKEN;
      const bool reaches = key > edge || (key == edge && j <= (int)edge_at);
      const u32 mask = __ballot_sync(0xffffffff, reaches);
      const int at = found + __popc(mask & below);
      if (reaches && at < MOST_CANDIDATES) candidates[warp][at] = j;
      found += __popc(mask);
    }
    __syncwarp();
    if (found <= MOST_CANDIDATES) {
      // A lane has one of them, in order; the least important are dropped, of equals the higher first.
      const int j = lane < found ? candidates[warp][lane] : 0;
      u32 key = lane < found ? keys[j] : NONE;
      for (; found > wanted; found--) {
        const u32 least = __ballot_sync(0xffffffff, key == warp_min(key));
        if (lane == 31 - __clz(least)) key = NONE;
      }
      const u32 kept = __ballot_sync(0xffffffff, key != NONE);
      if (key != NONE) take(query.front + __popc(kept & below), j);
      for (int f = lane; f < query.forced(); f += 32) take(query.forced_slot(f), query.forced_block(f));
      return;
    }
    // Many ties or many wanted: the lane that had the largest searches for its next; the others keep theirs.
    for (int taken = 0; taken < wanted; taken++) {
      const u32 largest = warp_max(best);
      const u32 at = warp_min(best == largest ? best_at : NONE);
      if (best_at == at) {
        keys[at] = TAKEN;
        best = TAKEN;
        best_at = NONE;
        for (int j = lane; j < blocks; j += 32) {
          const u32 key = keys[j];
          if (key > best) {
            best = key;
            best_at = j;
          }
        }
      }
      __syncwarp();
    }
  } else {
    for (int j = lane; j < blocks; j += 32) keys[j] = mode == 1 ? TAKEN : LEAST;
    __syncwarp();
    if (mode == 2) {
      for (int s = lane; s < select_count; s += 32) {
        const int j = given[row * select_count + s];
        if (j >= 0 && j < blocks) keys[j] = TAKEN;
      }
    }
  }
  __syncwarp();
  int count = 0;
  for (int first = 0; first < blocks; first += 32) {
    const int j = first + lane;
    const bool taken = j < blocks && keys[j] == TAKEN;
    const u32 mask = __ballot_sync(0xffffffff, taken);
    if (taken) take(count + __popc(mask & below), j);
    count += __popc(mask);
  }
  for (int s = count + lane; s < select_count; s += 32) to[s] = -1;
}
