// The list of pairs by expert of a call of any number of tokens, from the counts of route.cu.
//
// Source: include/ampere.cuh, moe/choose.cuh, list.cuh, then this file. sm_80 and later.
//
// chosen i32 [tokens, top_k]; counts i32 [chunks, held]; tiles and pairs as in list.cuh; places i32 [tokens, top_k]: index in
// `pairs` of each pair, -1 if its expert is not among the `held` from `first_held` on.
//
// Launch: grid (ceil(tokens / 64)); block (512). May overlap the preceding kernel (PDL).
//
// Macros: TILE (pairs of a tile at most).

extern "C" __global__ void __launch_bounds__(LIST_THREADS)
    moe_sort(const int* chosen, const int* counts, int* tiles, int* pairs, int* places, int tokens, int first_held,
             int held, int top_k) {
  __shared__ List list;
  const int first = blockIdx.x * CHUNK, own = min(CHUNK, tokens - first) * top_k;
  const i64 begin = (i64)first * top_k;
  list.clear();
  __syncthreads();
  wait_for_previous();
  let_next_start();
  for (int pair = threadIdx.x; pair < own; pair += LIST_THREADS) {
    const int expert = place_of(chosen[begin + pair], first_held, held);
    if (expert >= 0) list.add(pair / top_k, expert);
  }
  // This thread's expert: its pairs in all chunks, and in those before this one.
  int total = 0, before = 0;
  if (threadIdx.x < held) {
#pragma unroll 8
    for (int chunk = 0; chunk < gridDim.x; chunk++) {
      const int count = counts[chunk * held + threadIdx.x];
      total += count;
      before += chunk < blockIdx.x ? count : 0;
    }
  }
  list.place(total, tiles, blockIdx.x == 0);
  list.begin[threadIdx.x] += before;
  __syncthreads();
  for (int pair = threadIdx.x; pair < own; pair += LIST_THREADS) {
    const int expert = place_of(chosen[begin + pair], first_held, held);
    const int at = expert < 0 ? -1 : list.begin[expert] + list.rank(pair / top_k, expert);
    if (at >= 0) pairs[at] = (int)begin + pair;
    places[begin + pair] = at;
  }
}
