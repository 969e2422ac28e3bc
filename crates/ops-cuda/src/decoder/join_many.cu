// All-reduce of the ranks' outputs for many tokens, fused with the addition to the residual stream; join_peers.cu does it for few. Half
// as many bytes go between GPUs: each rank's part is rounded to bf16 once, its own part too, so that all ranks have the same bits.
//
//   x[t] += factor * sum of bf16(added[t]) over ranks, divided by sqrt(sum of squares[t] * inverse_width + eps) where squares are given
//
// x [T, hidden] f32, added [T, hidden] f32 (ADDED_F32) or bf16, squares [T] f32 or null; hidden % 8 == 0, rows 16-byte aligned. Each
// rank has an inbox, zeroed once: values [2][ranks][BLOCKS][SLOT] words, then marks [ranks][BLOCKS] u32; inbox0 to inbox7 are those of
// the ranks from 0 on, null from `ranks` on. turns [BLOCKS] u32 is this rank's, zeroed once: rounds that a block has synchronized.
//
// A block iterates over pieces of `rows` rows (rows * hidden <= VALUES, rows <= ROWS) and synchronizes with its peers at each,
// as in join_peers.cu. Blocks are at different pieces: while some send, others add.
//
// Launch: grid (up to BLOCKS, at most one for each piece), 256 threads. Blocks may become resident one after another, in order: each
// waits only for the peers of its index. All ranks launch the same, in the same order. Source: include/order.cuh, include/storage.cuh,
// then this. Macros: DTYPE (bf16), ADDED_F32.

constexpr int BLOCKS = 256, VALUES = 8192, ROWS = 32, SLOT = VALUES / 2 + ROWS, OF_THREAD = VALUES / 8 / 256;

extern "C" __global__ void __launch_bounds__(256)
    decoder_join_many(const void* added, const float* squares, float* x, u32* turns, char* inbox0, char* inbox1,
                      char* inbox2, char* inbox3, char* inbox4, char* inbox5, char* inbox6, char* inbox7, int rank,
                      int ranks, int count, int rows, int hidden, float inverse_width, float eps, float factor) {
  __shared__ float factors[ROWS];
  // An array of the pointers would be in local memory.
  const auto inbox_of = [&](int of) {
    return of == 0 ? inbox0 : of == 1 ? inbox1 : of == 2 ? inbox2 : of == 3 ? inbox3 : of == 4 ? inbox4 : of == 5 ? inbox5 : of == 6 ? inbox6 : inbox7;
  };
  const int thread = threadIdx.x, block = blockIdx.x, of_row = hidden / 8;
  u32 turn = 0;
  const auto slot = [&](char* inbox, int of) { return (u32*)inbox + (((turn & 1) * ranks + of) * BLOCKS + block) * SLOT; };
  const auto mark = [&](char* inbox, int of) { return (u32*)inbox + 2 * ranks * BLOCKS * SLOT + of * BLOCKS + block; };
  char* const own_inbox = inbox_of(rank);
  let_next_start();
  wait_for_previous();
  turn = turns[block];
  for (int first = block * rows; first < count; first += gridDim.x * rows) {
    turn++;
    const int here = min(rows, count - first), vectors = here * of_row;
    const i64 begin = (i64)first * of_row;
    uint4 own[OF_THREAD];
#pragma unroll
    for (int k = 0; k < OF_THREAD; k++) {
      const int at = k * 256 + thread;
      if (at >= vectors) continue;
#if ADDED_F32
      const float4* const from = (const float4*)added + 2 * (begin + at);
      const float4 low = from[0], high = from[1];
      own[k] = make_uint4(narrow_pair(low.x, low.y), narrow_pair(low.z, low.w), narrow_pair(high.x, high.y), narrow_pair(high.z, high.w));
#else
      own[k] = ((const uint4*)added)[begin + at];
#endif
    }
    const float square = squares != nullptr && thread < here ? squares[first + thread] : 0.0f;
    for (int r = 0; r < ranks; r++) {
      if (r == rank) continue;
      u32* const to = slot(inbox_of(r), rank);
#pragma unroll
      for (int k = 0; k < OF_THREAD; k++) {
        if (k * 256 + thread < vectors) ((uint4*)to)[k * 256 + thread] = own[k];
      }
      if (thread < here) to[VALUES / 2 + thread] = __float_as_uint(square);
    }
    __syncthreads();
    if (thread < ranks && thread != rank) {
      // Makes the block's writes visible to the other GPU before the mark.
      asm volatile("fence.acq_rel.sys;\nst.relaxed.sys.global.u32 [%0], %1;" ::"l"(mark(inbox_of(thread), rank)), "r"(turn) : "memory");
      u32 met;
      do {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(met) : "l"(mark(own_inbox, thread)) : "memory");
      } while ((int)(met - turn) < 0);
    }
    __syncthreads();
    if (thread < here) {
      float size = 0.0f;
      for (int r = 0; r < ranks; r++) {
        size += r == rank ? square : __uint_as_float(__ldcv(slot(own_inbox, r) + VALUES / 2 + thread));
      }
      factors[thread] = squares != nullptr ? factor / sqrtf(size * inverse_width + eps) : factor;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < OF_THREAD; k++) {
      const int at = k * 256 + thread;
      if (at >= vectors) continue;
      float sums[8] = {};
      for (int r = 0; r < ranks; r++) {
        const uint4 part = r == rank ? own[k] : __ldcv((const uint4*)slot(own_inbox, r) + at);
        const u32 words[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
        for (int w = 0; w < 4; w++) {
          sums[2 * w] += widen_half(words[w] & 0xffff);
          sums[2 * w + 1] += widen_half(words[w] >> 16);
        }
      }
      const float times = factors[at / of_row];
      float4* const onto = (float4*)x + 2 * (begin + at);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float4 sum = onto[half];
        sum.x += times * sums[4 * half];
        sum.y += times * sums[4 * half + 1];
        sum.z += times * sums[4 * half + 2];
        sum.w += times * sums[4 * half + 3];
        onto[half] = sum;
      }
    }
  }
  if (thread == 0) turns[block] = turn;
}
