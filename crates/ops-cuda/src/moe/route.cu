// The router: the experts of each token and their weights; and, if one block has all tokens, the list of pairs by expert.
//
// Source: include/ampere.cuh, moe/choose.cuh, list.cuh, then this file. sm_80 and later.
//
// logits f32 [tokens, experts], correction f32 [experts] or null; chosen i32 and weights f32 [tokens, top_k]. tiles and
// pairs as in list.cuh, written where counts is null and there is one chunk; otherwise counts i32 [chunks, held] gets the number of
// pairs of each expert in each chunk, and sort.cu writes the list. Only the `held` experts from `first_held` on are listed. top_k and
// always as in choose.cuh.
//
// Launch: grid (ceil(tokens / 64)); block (512). May overlap the preceding kernel (PDL).
//
// Macros: TILE (pairs of a tile at most).

extern "C" __global__ void __launch_bounds__(LIST_THREADS)
    moe_route(const float* logits, const float* __restrict__ correction, int* chosen, float* weights, int* tiles,
              int* pairs, int* counts, int tokens, int experts, int first_held, int held, int top_k,
              int always, int sigmoid, int renormalise, float sum_eps, float weight_scale) {
  __shared__ List list;
  __shared__ int places[LIST_THREADS / 32][MOST_CHOSEN];
  __shared__ int experts_of[CHUNK * MOST_CHOSEN];
  const Router router = {correction, experts, first_held, held, top_k, always, sigmoid, renormalise, sum_eps, weight_scale};
  const int lane = threadIdx.x % 32, first = blockIdx.x * CHUNK, here = min(CHUNK, tokens - first);
  list.clear();
  __syncthreads();
  wait_for_previous();
  let_next_start();
#pragma unroll 1
  for (int token = threadIdx.x / 32; token < here; token += LIST_THREADS / 32) {
    __syncwarp();  // all lanes have read the places of the preceding token
    const Choice choice = choose(logits + (i64)(first + token) * experts, router, places[threadIdx.x / 32]);
    if (lane >= top_k) continue;
    const int at = token * top_k + lane;
    chosen[(i64)first * top_k + at] = choice.expert;
    weights[(i64)first * top_k + at] = choice.weight;
    const int expert = place_of(choice.expert, first_held, held);
    experts_of[at] = expert;
    if (expert >= 0) list.add(token, expert);
  }
  __syncthreads();
  const int expert = threadIdx.x;
  if (counts != nullptr) {
    if (expert < held) counts[blockIdx.x * held + expert] = list.count();
    return;
  }
  list.place(list.count(), tiles, true);
  __syncthreads();
  for (int pair = threadIdx.x; pair < here * top_k; pair += LIST_THREADS) {
    const int of = experts_of[pair];
    if (of >= 0) pairs[list.begin[of] + list.rank(pair / top_k, of)] = pair;
  }
}
