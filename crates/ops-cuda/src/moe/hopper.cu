// Many tokens on Hopper (sm_90a): grouped GEMM, for each expert a matrix product of the tokens that chose it.
//
//   UP 1:  made[pair] = silu(gate) * up, [gate | up] = W_gate_up[expert] from[pair]
//   UP 2:  made[pair] = max(0, W_gate_up[expert] from[pair])^2, which has no gates
//   UP 0:  made[pair] = W_down[expert] from[pair]
//
// Weights are the A operand and tokens the B operand, whose width N need only be a multiple of 32: an expert has as many
// tokens as chose it, and padding rows cost time. A persistent block has one producer warpgroup, of which one thread
// issues all copies, and two consumer warpgroups with 2 times 64 rows of weights each: with UP 1 gates and the corresponding
// ups, so that a thread has both. 64 channels of 256 rows of weights and of up to TILE pairs are loaded at a time through a ring of
// STAGES stages; the next tile's first stages load while this one is finished. Results are transposed through shared memory.
//
// Source: include/hopper.cuh, moe/hopper_work.cuh, then this file.
//
// map_from   CUtensorMap by value, dimensions from the innermost: channel, pair as listed, 1; box {64, 32, 1}, 128-byte swizzle
// map_w      the same of channel, row, expert; box {64, 128, 1}. Rows: UP 1: `columns` gates and as many ups; otherwise `columns`
// tiles      as in list.cuh, of up to TILE pairs
// made       [pairs as listed, columns] storage; columns is a multiple of 8
//
// Launch: grid (SMs); block (384); dynamic shared memory SHARED_BYTES. May overlap the preceding kernel (PDL).
//
// Macros: DTYPE, UP, TILE (a multiple of 32 up to 192), STAGES.

constexpr int HALF_BYTES = HALF_ROWS * BLOCK_K * 2, STAGE_BYTES = 2 * HALF_BYTES + TILE * BLOCK_K * 2;
constexpr int AT_TURN = STAGES * STAGE_BYTES;
constexpr int AT_FULL = AT_TURN + 2 * TURN_BYTES, AT_EMPTY = AT_FULL + 8 * STAGES;
constexpr int SHARED_BYTES = AT_EMPTY + 8 * STAGES + 1024;  // the start is aligned to 1024 bytes
static_assert(SHARED_BYTES <= 232448, "more shared memory than a block can have");

DEVICE void produce(u32 base, const TensorMap* map_from, const TensorMap* map_w, const Work& work, int columns,
                    int blocks) {
  Ring ring = {0, 0};
  for (int index = blockIdx.x; index < work.count; index += gridDim.x) {
    const int4 tile = work.tile(index);
    const int column = work.column(index), boxes = (tile.z - tile.y + 31) / 32;
#pragma unroll 1
    for (int block = 0; block < blocks; block++) {
      const u32 full = base + AT_FULL + 8 * ring.stage, to = base + ring.stage * STAGE_BYTES;
      mbarrier_wait(base + AT_EMPTY + 8 * ring.stage, ring.parity ^ 1);
      mbarrier_expect(full, 2 * HALF_BYTES + boxes * BOX_BYTES);
      const int channel = block * BLOCK_K;
      tma_load_3d(to, map_w, full, channel, column, tile.x);
      tma_load_3d(to + HALF_BYTES, map_w, full, channel, UP == 1 ? columns + column : column + HALF_ROWS, tile.x);
      for (int box = 0; box < boxes; box++) {
        tma_load_3d(to + 2 * HALF_BYTES + box * BOX_BYTES, map_from, full, channel, tile.y + 32 * box, 0);
      }
      ring.advance();
    }
  }
}

DEVICE float relu_squared(float x) { return x * fmaxf(x, 0.0f); }

// The products of a stage with `pairs` pairs: only the first of TILE's accumulators are used.
template <int pairs>
DEVICE void multiply_stage(float (&first)[TILE / 2], float (&second)[TILE / 2], u64 a, u64 b, int more) {
  if constexpr (pairs <= TILE) {
    float(&one)[pairs / 2] = reinterpret_cast<float(&)[pairs / 2]>(first);
    float(&other)[pairs / 2] = reinterpret_cast<float(&)[pairs / 2]>(second);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < BLOCK_K / 16; step++) {
      wgmma_ss<0>(one, a + 2 * step, b + 2 * step, step > 0 || more);
      wgmma_ss<0>(other, a + (HALF_BYTES >> 4) + 2 * step, b + 2 * step, step > 0 || more);
    }
  }
}

// Computes a tile of pairs.
DEVICE void consume(u32 base, int consumer, const Target& target, int4 tile, int column, int blocks, Ring& ring) {
  const int width = (tile.z - tile.y + 31) / 32;
  // A tile of fewer pairs leaves the last tokens' sums unset, and does not store them.
  float first[TILE / 2], second[TILE / 2];
  const u64 a = descriptor_k_major<128>(base + consumer * 64 * 128), b = descriptor_k_major<128>(base + 2 * HALF_BYTES);
  u32 previous = 0;
#pragma unroll 1
  for (int block = 0; block < blocks; block++) {
    mbarrier_wait(base + AT_FULL + 8 * ring.stage, ring.parity);
    const u64 at = ring.stage * (STAGE_BYTES >> 4);
    switch (width) {
      case 1: multiply_stage<32>(first, second, a + at, b + at, block > 0); break;
      case 2: multiply_stage<64>(first, second, a + at, b + at, block > 0); break;
      case 3: multiply_stage<96>(first, second, a + at, b + at, block > 0); break;
      case 4: multiply_stage<128>(first, second, a + at, b + at, block > 0); break;
      case 5: multiply_stage<160>(first, second, a + at, b + at, block > 0); break;
      default: multiply_stage<TILE>(first, second, a + at, b + at, block > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();  // the products of the preceding stage
    if (block > 0 && target.thread == 0) mbarrier_arrive(base + AT_EMPTY + 8 * previous);
    previous = ring.stage;
    ring.advance();
  }
  wgmma_wait<0>();
  keep(first);
  keep(second);
  if (target.thread == 0) mbarrier_arrive(base + AT_EMPTY + 8 * previous);
  const int own = column + 64 * consumer;
  if constexpr (UP == 1) {
    target.store(tile, own, [&](int i) { return silu(first[i]) * second[i]; });
  } else if constexpr (UP == 2) {
    target.store(tile, own, [&](int i) { return relu_squared(first[i]); });
    target.store(tile, own + HALF_ROWS, [&](int i) { return relu_squared(second[i]); });
  } else {
    target.store(tile, own, [&](int i) { return first[i]; });
    target.store(tile, own + HALF_ROWS, [&](int i) { return second[i]; });
  }
}

extern "C" __global__ void __launch_bounds__(384, 1)
    moe_hopper(const __grid_constant__ TensorMap map_from, const __grid_constant__ TensorMap map_w,
                       const int* tiles, u16* made, int columns, int channels) {
  extern __shared__ __align__(1024) u8 shared[];
  const u32 base = (shared_address(shared) + 1023) & ~1023u;
  // Broadcast, which makes it warp-uniform for the compiler.
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      mbarrier_init(base + AT_FULL + 8 * i, 1);
      mbarrier_init(base + AT_EMPTY + 8 * i, 2);
    }
    fence_barrier_init();
    tma_prefetch(&map_from);
    tma_prefetch(&map_w);
  }
  __syncthreads();
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const Work work(tiles, columns);
  const int blocks = (channels + BLOCK_K - 1) / BLOCK_K;
  if (warpgroup == 0) {
    registers_decrease<24>();
    if (threadIdx.x == 0) produce(base, &map_from, &map_w, work, columns, blocks);
  } else {
    registers_increase<240>();
    const int consumer = warpgroup - 1;
    const Target target = {made, columns, base + AT_TURN + consumer * TURN_BYTES, 1 + consumer, (int)threadIdx.x % 128};
    Ring ring = {0, 0};
    for (int index = blockIdx.x; index < work.count; index += gridDim.x) {
      consume(base, consumer, target, work.tile(index), work.column(index), blocks, ring);
    }
  }
}
