// What ranks have added, summed and onto the residual stream in one kernel, without a library between: each block sends its part to
// all other ranks' GPUs, waits for theirs, and adds them in the order of ranks, so that all have the same bits.
//
//   x[t] += factor * sum of added[t] over ranks, divided by sqrt(sum of squares[t] * inverse_width + eps) where squares are given
//
// x and added [T, hidden] f32, squares [T] f32 or null; hidden % 4 == 0, rows 16-byte aligned. An inbox of each rank's, zeroed once:
// values [2][ranks][BLOCKS][SLOT] f32, then marks [ranks][BLOCKS] u32; inbox0 to inbox7 those of the ranks from 0 on, null from `ranks`
// on. turns [BLOCKS] u32 is this rank's own, zeroed once: how often a block has met the others'.
//
// A block's values lie in one half of the inbox and, the next time, in the other: it writes a half again only when the others have
// marked the turn between, which they do when they have read it.
//
// Launch: grid (T, ceil(hidden / 1024)), at most BLOCKS blocks in all, which stand at the same time; 256 threads. All ranks launch the
// same, in the same order. Source: cuda/order.cuh, then this.

constexpr int BLOCKS = 64, VALUES = 1024, SLOT = VALUES + 4;
typedef unsigned int u32;

extern "C" __global__ void __launch_bounds__(256)
    decoder_join_peers(const float* added, const float* squares, float* x, u32* turns, char* inbox0, char* inbox1,
                       char* inbox2, char* inbox3, char* inbox4, char* inbox5, char* inbox6, char* inbox7, int rank,
                       int ranks, int hidden, float inverse_width, float eps, float factor) {
  // An array of them would lie in local memory.
  const auto inbox_of = [&](int of) {
    return of == 0 ? inbox0 : of == 1 ? inbox1 : of == 2 ? inbox2 : of == 3 ? inbox3 : of == 4 ? inbox4 : of == 5 ? inbox5 : of == 6 ? inbox6 : inbox7;
  };
  const int thread = threadIdx.x, block = blockIdx.x * gridDim.y + blockIdx.y;
  u32 turn = 0;
  const auto slot = [&](char* inbox, int of) { return (float*)inbox + (((turn & 1) * ranks + of) * BLOCKS + block) * SLOT; };
  const auto mark = [&](char* inbox, int of) { return (u32*)((float*)inbox + 2 * ranks * BLOCKS * SLOT) + of * BLOCKS + block; };
  char* const own = inbox_of(rank);
  const int i = (blockIdx.y * 256 + thread) * 4;
  const bool inside = i < hidden;
  const long long at = (long long)blockIdx.x * hidden + i;
  let_next_start();
  wait_for_previous();
  turn = turns[block] + 1;
  const float4 part = inside ? *reinterpret_cast<const float4*>(added + at) : make_float4(0, 0, 0, 0);
  const float square = squares != nullptr ? squares[blockIdx.x] : 0.0f;
  for (int r = 0; r < ranks; r++) {
    if (r == rank) continue;
    float* const to = slot(inbox_of(r), rank);
    *reinterpret_cast<float4*>(to + thread * 4) = part;
    if (thread == 0) to[VALUES] = square;
  }
  __syncthreads();
  if (thread < ranks && thread != rank) {
    // What the block wrote comes first, for the other GPU too.
    asm volatile("fence.acq_rel.sys;\nst.relaxed.sys.global.u32 [%0], %1;" ::"l"(mark(inbox_of(thread), rank)), "r"(turn) : "memory");
    u32 met;
    do {
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(met) : "l"(mark(own, thread)) : "memory");
    } while ((int)(met - turn) < 0);
  }
  __syncthreads();
  float4 sum = make_float4(0, 0, 0, 0);
  float size = 0.0f;
  for (int r = 0; r < ranks; r++) {
    float4 more = part;
    float more_square = square;
    if (r != rank) {
      const float* const from = slot(own, r);
      more = __ldcv(reinterpret_cast<const float4*>(from + thread * 4));
      more_square = __ldcv(from + VALUES);
    }
    sum.x += more.x;
    sum.y += more.y;
    sum.z += more.z;
    sum.w += more.w;
    size += more_square;
  }
  if (thread == 0) turns[block] = turn;
  if (!inside) return;
  if (squares != nullptr) factor /= sqrtf(size * inverse_width + eps);
  float4 onto = *reinterpret_cast<float4*>(x + at);
  onto.x += factor * sum.x;
  onto.y += factor * sum.y;
  onto.z += factor * sum.z;
  onto.w += factor * sum.w;
  *reinterpret_cast<float4*>(x + at) = onto;
}
