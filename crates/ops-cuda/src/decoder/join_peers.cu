// All-reduce of the ranks' outputs fused with the residual addition, in one kernel without NCCL: each block sends its part to the
// GPUs of all other ranks, waits for theirs, and adds them in the order of ranks, so that all have the same bits.
//
//   x[t] += factor * sum of part(t) over ranks
//   part(t) = added[t], or where rows are given (added was computed from rows normalized by this rank's part of their width):
//   part(t) = added[t] * sqrt(sum rows[t]^2 / width + eps) / sqrt(sum of rows[t]^2 over ranks * inverse_width + eps)
//
// x and added [T, hidden] f32, rows [T, width] bf16 or null; hidden % 4 == 0, width % 8 == 0, rows 16-byte aligned. Each rank has an inbox,
// zeroed once: words [2][ranks][BLOCKS][SLOT]; inbox0 to inbox7 are those of the ranks from 0 on, null from `ranks` on. turns [BLOCKS]
// u32 is this rank's, zeroed once: the number of rounds that a block has exchanged.
//
// Every data word is stored together with the turn's number, and 8 bytes are written atomically: a reader that sees the turn has the
// data. This needs no fence between data and a separate flag, which would cost a round trip (NCCL's LL protocol). One access has two
// such pairs, 16 bytes.
//
// A block alternates between the two halves of the inbox: a thread writes a half again only after it has read what the same thread of
// another rank wrote in the round between; that rank's kernel of the round before had then ended, its reads included.
//
// Launch: grid (T, ceil(hidden / 1024)), at most BLOCKS blocks, all resident at the same time; 256 threads. All ranks launch the
// same, in the same order. Source: include/order.cuh, then this.

constexpr int BLOCKS = 64, VALUES = 1024, SLOT = 2 * VALUES + 8;
typedef unsigned int u32;

__device__ __forceinline__ void send(u32* to, u32 low, u32 high, u32 turn) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(low), "r"(turn), "r"(high) : "memory");
}

__device__ __forceinline__ uint2 receive(const u32* from, u32 turn) {
  uint4 got;
  do {
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(got.x), "=r"(got.y), "=r"(got.z), "=r"(got.w)
                 : "l"(from)
                 : "memory");
  } while (got.y != turn || got.w != turn);
  return make_uint2(got.x, got.z);
}

__device__ __forceinline__ float squares_of(u32 pair) {
  const float low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000);
  return low * low + high * high;
}

extern "C" __global__ void __launch_bounds__(256)
    decoder_join_peers(const float* added, const void* rows, int width, float* x, u32* turns, char* inbox0, char* inbox1,
                       char* inbox2, char* inbox3, char* inbox4, char* inbox5, char* inbox6, char* inbox7, int rank,
                       int ranks, int hidden, float inverse_width, float eps, float factor) {
  // An array of the pointers would be in local memory.
  const auto inbox_of = [&](int of) {
    return of == 0 ? inbox0 : of == 1 ? inbox1 : of == 2 ? inbox2 : of == 3 ? inbox3 : of == 4 ? inbox4 : of == 5 ? inbox5 : of == 6 ? inbox6 : inbox7;
  };
  const int thread = threadIdx.x, block = blockIdx.x * gridDim.y + blockIdx.y;
  u32 turn = 0;
  const auto slot = [&](char* inbox, int of) { return (u32*)inbox + (((turn & 1) * ranks + of) * BLOCKS + block) * SLOT; };
  const int i = (blockIdx.y * 256 + thread) * 4;
  const bool inside = i < hidden;
  const long long at = (long long)blockIdx.x * hidden + i;
  let_next_start();
  wait_for_previous();
  turn = turns[block] + 1;
  float4 part = inside ? *reinterpret_cast<const float4*>(added + at) : make_float4(0, 0, 0, 0);
  // Loaded here, to overlap with the other ranks' parts in flight.
  float4 onto = inside ? *reinterpret_cast<float4*>(x + at) : make_float4(0, 0, 0, 0);
  float square = 0.0f;
  if (rows != nullptr) {
    // Each block sums the squares of a whole row: a separate kernel would cost more than these bytes.
    __shared__ float sums[8];
    const uint4* const row = (const uint4*)rows + (long long)blockIdx.x * (width / 8);
    for (int k = thread; k < width / 8; k += 256) {
      const uint4 eight = row[k];
      square += squares_of(eight.x) + squares_of(eight.y) + squares_of(eight.z) + squares_of(eight.w);
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) square += __shfl_xor_sync(0xffffffff, square, lanes);
    if (thread % 32 == 0) sums[thread / 32] = square;
    __syncthreads();
    square = 0.0f;
#pragma unroll
    for (int warp = 0; warp < 8; warp++) square += sums[warp];
    const float size = sqrtf(square / width + eps);
    part = make_float4(part.x * size, part.y * size, part.z * size, part.w * size);
  }
  for (int r = 0; r < ranks; r++) {
    if (r == rank) continue;
    u32* const to = slot(inbox_of(r), rank);
    if (inside) {
      send(to + 4 * thread, __float_as_uint(part.x), __float_as_uint(part.y), turn);
      send(to + VALUES + 4 * thread, __float_as_uint(part.z), __float_as_uint(part.w), turn);
    }
    if (thread == 0 && rows != nullptr) send(to + 2 * VALUES, __float_as_uint(square), 0, turn);
  }
  __syncthreads();  // all have read the turn
  if (thread == 0) turns[block] = turn;
  if (!inside) return;
  float4 sum = make_float4(0, 0, 0, 0);
  float size = 0.0f;
  for (int r = 0; r < ranks; r++) {
    float4 more = part;
    float more_square = square;
    if (r != rank) {
      const u32* const from = slot(inbox_of(rank), r);
      const uint2 low = receive(from + 4 * thread, turn), high = receive(from + VALUES + 4 * thread, turn);
      more = make_float4(__uint_as_float(low.x), __uint_as_float(low.y), __uint_as_float(high.x), __uint_as_float(high.y));
      if (rows != nullptr) more_square = __uint_as_float(receive(from + 2 * VALUES, turn).x);
    }
    sum.x += more.x;
    sum.y += more.y;
    sum.z += more.z;
    sum.w += more.w;
    size += more_square;
  }
  if (rows != nullptr) factor /= sqrtf(size * inverse_width + eps);
  onto.x += factor * sum.x;
  onto.y += factor * sum.y;
  onto.z += factor * sum.z;
  onto.w += factor * sum.w;
  *reinterpret_cast<float4*>(x + at) = onto;
}
