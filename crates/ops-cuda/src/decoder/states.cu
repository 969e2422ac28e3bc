// Copies the recurrent states of one slot, in the pools of all layers, to another slot, or clears them:
// pools[p].base[to] = pools[p].base[from], or 0 where from < 0. A row of a pool is one slot's state, row_bytes long, a multiple of 2;
// rows whose size is a multiple of 16 are copied in pieces of 16 bytes. from != to.
// Launch: grid (any, pools), 256 threads. Macros: none.

struct Pool {
  char* base;
  long long row_bytes;
};

template <class Unit>
__device__ __forceinline__ void move_row(const Unit* __restrict__ from, Unit* __restrict__ to, long long count) {
  constexpr int LOADS = 4;
  const long long threads = (long long)gridDim.x * blockDim.x;
  for (long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x; first < count; first += LOADS * threads) {
    Unit values[LOADS] = {};
#pragma unroll
    for (int load = 0; load < LOADS; load++)
      if (from && first + load * threads < count) values[load] = from[first + load * threads];
#pragma unroll
    for (int load = 0; load < LOADS; load++)
      if (first + load * threads < count) to[first + load * threads] = values[load];
  }
}

extern "C" __global__ void __launch_bounds__(256)
    decoder_copy_states(const Pool* __restrict__ pools, int from, int to) {
  const Pool pool = pools[blockIdx.y];
  const char* const source = from < 0 ? nullptr : pool.base + from * pool.row_bytes;
  char* const target = pool.base + to * pool.row_bytes;
  if (pool.row_bytes % 16 == 0)
    move_row((const uint4*)source, (uint4*)target, pool.row_bytes / 16);
  else
    move_row((const unsigned short*)source, (unsigned short*)target, pool.row_bytes / 2);
}
