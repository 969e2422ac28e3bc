// Linear layers for Hopper (sm_90a): o = residual + scale * act(x W^T + bias), for many rows of x. Design and figures:
// README-hopper.md.
//
// A persistent block has one producer warpgroup, of which one thread issues all copies, and two consumer warpgroups with 64
// rows of x each. Tiles of 128 rows of x and BLOCK_N rows of W pass 64 channels at a time through a ring of STAGES stages.
// The producer is ahead by as many, so that the next tile's first stages load while this one is finished. A finished
// tile goes through shared memory and is stored by TMA.
//   PAIR: the two blocks of a cluster have vertically adjacent tiles. Each loads half of the weights, multicast to both.
//   SPLIT: split-K in a cluster: its blocks divide the channels of one tile. Each sends the others its partial sums of the columns that
//   they finish, over distributed shared memory, and finishes its own columns. The order of sums is the same in every run.
//   SWIGLU: of the BLOCK_N rows of W, half are gates and half the corresponding ups, so that a thread has both.
//
// Source: include/hopper.cuh, include/storage.cuh, then linear/hopper_tile.cuh, work.cuh, hopper_finish.cuh and hopper.cu.
//
// Macros
//   DTYPE      bf16 or f16, of x and w
//   BLOCK_N    rows of W in a tile, a multiple of 16 up to 256; SLICE_COLUMNS of hopper_tile.cuh must be whole boxes
//   STAGES     of the ring
//   SLOTS      boxes of results that a consumer can have in flight
//   PAIR       1: clusters of two, see above
//   SPLIT      1, or the number of blocks of a cluster that divide the channels
//   SWIGLU     1: silu(gate) * up; o has half as many columns as W has rows
//   FLOAT_OUT  1: o is f32
//   BIAS       1: there is a bias
//
// Arguments, in this order
//   map_x   CUtensorMap by value, dimensions from the innermost: channel, row, 1, 1; box {64, 128, 1, 1}, 128-byte
//       swizzle, zeros outside, as all maps. x [rows, channels]
//   map_w   the same of W [N, channels]; box {64, BLOCK_N / 2, 1, 1}
//   map_residual   f32 [rows, columns]; box {32, 128, 1, 1}; any map if there is no residual or SPLIT is above 1
//   map_o0 .. map_o5   the outputs [rows, their columns]; box {64, 64, 1, 1}, or {32, 64, 1, 1} of f32. Any map if
//       there are fewer. o may be the residual
//   residual   f32 [rows, columns] or null
//   bias       f32 or storage [N], read where BIAS is 1
//   bias_f32   i32, whether it is f32
//   first1 .. first5   i32, columns at which the outputs begin; `columns` where there are fewer
//   rows, columns, channels   i32; columns of all outputs together. channels is a multiple of 8, and at least SPLIT blocks
//       of 64
//   group      i32, at least 1: vertically adjacent tiles that are worked on together; their x should fit L2
//   scale      f32
//
// Launch: block 384; dynamic shared memory SHARED_BYTES of hopper_tile.cuh; grid in whole clusters (their shape is in the
// kernel), at most as many as there are tiles, and exactly as many where SPLIT is above 1. May overlap the preceding kernel (PDL).

#if PAIR || SPLIT > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

// Programmatic dependent launch (PDL): lets the next kernel start as SMs become free; waits until the preceding one has ended.
DEVICE void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEVICE void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The blocks of BLOCK_K channels that block `rank` of a cluster multiplies.
struct Range {
  int begin, end;
};

DEVICE Range blocks_of(const Work& work, int rank) {
  const int blocks = (work.channels + BLOCK_K - 1) / BLOCK_K;
  return SPLIT == 1 ? Range{0, blocks} : Range{blocks * rank / SPLIT, blocks * (rank + 1) / SPLIT};
}

// The tile of block `rank` of a cluster.
DEVICE Tile own_tile(const Work& work, int index, int rank) {
  Tile tile = tile_at(work, index);
  if (PAIR) tile.row += rank * BLOCK_M;
  return tile;
}

// Loads a stage's weights; with PAIR half of them, multicast to both blocks.
DEVICE void load_weights(u32 base, const TensorMap* map, const Work& work, Tile tile, int rank, u32 stage, int block) {
  const u32 full = base + AT_FULL + 8 * stage, to = base + stage * STAGE_BYTES + A_BYTES;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    if (PAIR && half != rank) continue;
    const int row = tile.first + tile.column + half * (SWIGLU ? work.columns : BLOCK_N / 2);
    if constexpr (PAIR) {
      tma_load_4d_multicast(to + half * HALF_BYTES, map, full, 3, block * BLOCK_K, row, 0, 0);
    } else {
      tma_load_4d(to + half * HALF_BYTES, map, full, block * BLOCK_K, row, 0, 0);
    }
  }
}

// Loads the weights of the first stages: they are constant, and can load before the preceding kernel has ended.
DEVICE void load_first_weights(u32 base, const TensorMap* map, const Work& work, int rank) {
  const Tile tile = own_tile(work, blockIdx.x / CLUSTER, rank);
  const auto [begin, end] = blocks_of(work, rank);
  for (int stage = 0; stage < min(STAGES, end - begin); stage++) {
    mbarrier_expect(base + AT_FULL + 8 * stage, STAGE_BYTES);
    load_weights(base, map, work, tile, rank, stage, begin + stage);
  }
}

// One thread issues all other copies.
DEVICE void load(u32 base, const TensorMap* map_x, const TensorMap* map_w, const TensorMap* map_residual, const Work& work,
                 bool residual, int rank) {
  const int clusters = gridDim.x / CLUSTER, tiles = work.tiles();
  const auto [begin, end] = blocks_of(work, rank);
  Ring ring = {0, 0};
  bool first = true;
  for (int index = blockIdx.x / CLUSTER; index < tiles; index += clusters) {
    const Tile tile = own_tile(work, index, rank);
#pragma unroll 1
    for (int block = begin; block < end; block++) {
      if (!first || block - begin >= STAGES) {
        mbarrier_wait(base + AT_EMPTY + 8 * ring.stage, ring.parity ^ 1);
        mbarrier_expect(base + AT_FULL + 8 * ring.stage, STAGE_BYTES);
        load_weights(base, map_w, work, tile, rank, ring.stage, block);
      }
      tma_load_4d(base + ring.stage * STAGE_BYTES, map_x, base + AT_FULL + 8 * ring.stage, block * BLOCK_K, tile.row, 0, 0);
      ring.advance();
    }
    first = false;
    if (!FLOAT_OUT || SPLIT > 1 || !residual) continue;
#pragma unroll 1
    for (int box = 0; box < BOXES; box += RESIDUAL_BOXES) {
      const int boxes = min(RESIDUAL_BOXES, BOXES - box);
      mbarrier_wait(base + AT_EMPTY + 8 * ring.stage, ring.parity ^ 1);
      mbarrier_expect(base + AT_FULL + 8 * ring.stage, boxes * RESIDUAL_BOX_BYTES);
      for (int i = 0; i < boxes; i++) {
        tma_load_4d(base + ring.stage * STAGE_BYTES + i * RESIDUAL_BOX_BYTES, map_residual, base + AT_FULL + 8 * ring.stage,
                    tile.column + (box + i) * BOX_COLUMNS, tile.row, 0, 0);
      }
      ring.advance();
    }
  }
}

// Multiplies the blocks of channels of a tile.
DEVICE void multiply(float (&d)[BLOCK_N / 2], u32 base, int consumer, int thread, int blocks, Ring& ring) {
  const u64 a = descriptor_k_major<128>(base + consumer * 64 * 128), b = descriptor_k_major<128>(base + A_BYTES);
  u32 previous = 0;
#pragma unroll 1
  for (int block = 0; block < blocks; block++) {
    mbarrier_wait(base + AT_FULL + 8 * ring.stage, ring.parity);
    const u64 at = ring.stage * (STAGE_BYTES >> 4);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < BLOCK_K / 16; step++) {
      wgmma_ss<0>(d, a + at + 2 * step, b + at + 2 * step, step > 0 || block > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();  // the products of the preceding stage
    if (block > 0) release(base + AT_EMPTY + 8 * previous, thread);
    previous = ring.stage;
    ring.advance();
  }
  wgmma_wait<0>();
  keep(d);
  release(base + AT_EMPTY + 8 * previous, thread);
}

// Layout of the accumulators of a part: [SLICE / 4][threads of all consumers][4 floats].
constexpr u32 PART_ROW_BYTES = 16 * 128 * CONSUMERS, PART_BYTES = SLICE / 4 * PART_ROW_BYTES;

// Sends every block of the cluster its slice's partial sums, which are stored by the sender's rank.
DEVICE void send_parts(const float (&d)[BLOCK_N / 2], u32 base, int rank, int thread) {
#pragma unroll
  for (int s = 0; s < SPLIT; s++) {
    const u32 to = cluster_address(base + rank * PART_BYTES + 16 * thread, s);
#pragma unroll
    for (int j = 0; j < SLICE; j += 4) {
      // With SWIGLU a slice is gates and the corresponding ups.
      const int at = !SWIGLU ? s * SLICE + j : (j < SLICE / 2 ? j : BLOCK_N / 4 - SLICE / 2 + j) + s * SLICE / 2;
      asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + j / 4 * PART_ROW_BYTES), "f"(d[at]),
                   "f"(d[at + 1]), "f"(d[at + 2]), "f"(d[at + 3])
                   : "memory");
    }
  }
}

DEVICE void add_parts(float (&slice)[SLICE], u32 base, int thread) {
#pragma unroll
  for (int part = 0; part < SPLIT; part++) {
#pragma unroll
    for (int j = 0; j < SLICE; j += 4) {
      float4 sums;
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(sums.x), "=f"(sums.y), "=f"(sums.z), "=f"(sums.w)
                   : "r"(base + part * PART_BYTES + j / 4 * PART_ROW_BYTES + 16 * thread)
                   : "memory");
      slice[j] = part == 0 ? sums.x : slice[j] + sums.x;
      slice[j + 1] = part == 0 ? sums.y : slice[j + 1] + sums.y;
      slice[j + 2] = part == 0 ? sums.z : slice[j + 2] + sums.z;
      slice[j + 3] = part == 0 ? sums.w : slice[j + 3] + sums.w;
    }
  }
}

DEVICE void consume(u32 base, const Work& work, const Finish& finish, int rank, int consumer) {
  const int clusters = gridDim.x / CLUSTER, tiles = work.tiles();
  const auto [begin, end] = blocks_of(work, rank);
  const int thread = threadIdx.x % 128;
  Ring ring = {0, 0};
  for (int index = blockIdx.x / CLUSTER; index < tiles; index += clusters) {
    Tile tile = own_tile(work, index, rank);
    float d[BLOCK_N / 2], before[BEFORE];
    multiply(d, base, consumer, thread, end - begin, ring);
    if constexpr (SPLIT == 1) {
      finish_tile(d, before, finish, work, tile, base, consumer, thread, ring);
    } else {
      tile.column += rank * SLICE_COLUMNS;
      cluster_arrive();
      cluster_wait();  // no block still reads its stages
      send_parts(d, base, rank, 128 * consumer + thread);
      cluster_arrive();
      if constexpr (FLOAT_OUT) {
        wait_for_previous();
        load_residual(before, finish, work, tile, consumer, thread);
      }
      cluster_wait();
      float slice[SLICE];
      add_parts(slice, base, 128 * consumer + thread);
      finish_tile(slice, before, finish, work, tile, base, consumer, thread, ring);
      break;  // There is one tile for each cluster.
    }
  }
  if (thread == 0) tma_store_wait<0>();
}

extern "C" __global__ void __launch_bounds__(384, 1) CLUSTERED
    linear_hopper(const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_w,
                  const __grid_constant__ TensorMap map_residual, const __grid_constant__ TensorMap map_o0,
                  const __grid_constant__ TensorMap map_o1, const __grid_constant__ TensorMap map_o2,
                  const __grid_constant__ TensorMap map_o3, const __grid_constant__ TensorMap map_o4,
                  const __grid_constant__ TensorMap map_o5, const float* residual, const void* bias, int bias_f32,
                  int first1, int first2, int first3, int first4, int first5, int rows, int columns, int channels,
                  int group, float scale) {
  extern __shared__ __align__(1024) u8 shared[];
  const u32 base = (shared_address(shared) + 1023) & ~1023u;
  const Work work = {rows, columns, channels, group, {0, first1, first2, first3, first4, first5}};
  const int rank = CLUSTER > 1 ? cluster_rank() : 0;
  // Broadcast, which makes it warp-uniform for the compiler.
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      mbarrier_init(base + AT_FULL + 8 * i, 1);
      mbarrier_init(base + AT_EMPTY + 8 * i, PAIR ? 2 * CONSUMERS : CONSUMERS);
    }
    fence_barrier_init();
    tma_prefetch(&map_x);
    tma_prefetch(&map_w);
  }
  __syncthreads();
  if constexpr (CLUSTER > 1) {
    cluster_arrive();
    cluster_wait();
  }
  if (warpgroup == 0) {
    registers_decrease<40>();
    if (threadIdx.x < 32) {
      if (threadIdx.x == 0) load_first_weights(base, &map_w, work, rank);
      __syncwarp();
      wait_for_previous();
      if (threadIdx.x == 0) load(base, &map_x, &map_w, &map_residual, work, residual != nullptr, rank);
      __syncwarp();
    }
    if constexpr (SPLIT > 1) {
      // The consumers of this cluster synchronize twice.
      cluster_arrive();
      cluster_wait();
      cluster_arrive();
      cluster_wait();
    }
  } else {
    registers_increase<232>();
    let_next_start();
    const Finish finish = {{&map_o0, &map_o1, &map_o2, &map_o3, &map_o4, &map_o5},
                           {bias, bias_f32},
                           residual,
                           scale};
    consume(base, work, finish, rank, warpgroup - 1);
  }
  if constexpr (PAIR) {
    // The other block may still arrive at barriers of this one.
    cluster_arrive();
    cluster_wait();
  }
}
