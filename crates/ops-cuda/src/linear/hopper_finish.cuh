// The epilogue of hopper.cu: bias, activation, scale, residual, and the stores of a tile's sums.

// Operands of the epilogue.
struct Finish {
  const TensorMap* outputs[OUTPUTS];
  Bias bias;
  const float* residual;
  float scale;
};

// Floats of the residual per thread: loaded from global memory if a cluster splits the channels, otherwise read from the stages.
constexpr int BEFORE = FLOAT_OUT && SPLIT > 1 ? SLICE_COLUMNS / 2 : 1;

// Columns 8 i + t % 4 * 2 and the next of the thread's first (low = 0) or second row (2).
template <int count>
DEVICE float2 sums_of(const float (&d)[count], int i, int low) {
  return {d[4 * i + low], d[4 * i + low + 1]};
}

DEVICE void store_matrices(u32 to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}

// One thread stores a box; TMA skips elements outside the tensor.
DEVICE void store_box(const Finish& finish, const Tile& tile, u32 box, int row, int column) {
  const TensorMap* map = finish.outputs[0];
#pragma unroll
  for (int i = 1; i < OUTPUTS; i++) {
    if (tile.output == i) map = finish.outputs[i];
  }
  if (column < tile.width) tma_store_4d(map, box, column, row, 0, 0);
  tma_store_commit();
}

// Releases a stage, in both blocks of a pair if these share it. (Without release.cluster: nothing was written that the producers
// must see, and such an arrival would wait for all memory operations.)
DEVICE void release(u32 empty, int thread) {
  if constexpr (PAIR) {
    if (thread < 2) {
      asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(empty, thread)) : "memory");
    }
  } else {
    if (thread == 0) mbarrier_arrive(empty);
  }
}

// Reads the residual of a slice in accumulator layout, 0 outside.
DEVICE void load_residual(float (&before)[BEFORE], const Finish& finish, const Work& work, Tile tile, int consumer,
                          int thread) {
  const int row = tile.row + 64 * consumer + thread / 32 * 16 + thread % 32 / 4, first = tile.column + thread % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const bool there = finish.residual != nullptr && row + 8 * half < work.rows;
    const float* const from = finish.residual + (there ? (i64)(row + 8 * half) * work.columns + first : 0);
#pragma unroll
    for (int i = 0; i < BEFORE / 4; i++) {
      float2 pair = {0.0f, 0.0f};
      if (there && first + 8 * i < work.columns) pair = *(const float2*)(from + 8 * i);
      before[4 * i + 2 * half] = pair.x;
      before[4 * i + 2 * half + 1] = pair.y;
    }
  }
}

// Finishes and stores the columns that start at `tile.column`: `count` accumulators of each thread, gates first.
template <int count>
DEVICE void finish_tile(const float (&d)[count], const float (&before)[BEFORE], const Finish& finish, const Work& work,
                        Tile tile, u32 base, int consumer, int thread, Ring& ring) {
  const int lane = thread % 32, t = lane % 4;
  const int warp_row = thread / 32 * 16;
  const u32 barrier = 1 + consumer, slots = base + AT_BOXES + consumer * SLOTS * BOX_BYTES;
#pragma unroll
  for (int box = 0; box < BOXES; box++) {
    const u32 slot = slots + box % USED_SLOTS * BOX_BYTES;
    if (thread == 0) tma_store_wait_read<USED_SLOTS - 1>();
    named_barrier_sync(barrier, 128);
    u32 residual = 0;
    if constexpr (FLOAT_OUT && SPLIT == 1) {
      if (finish.residual != nullptr) {
        if (box % RESIDUAL_BOXES == 0) mbarrier_wait(base + AT_FULL + 8 * ring.stage, ring.parity);
        residual = base + ring.stage * STAGE_BYTES + box % RESIDUAL_BOXES * RESIDUAL_BOX_BYTES + consumer * BOX_BYTES;
      }
    }
    u32 words[4];  // of two blocks of 8 columns
#pragma unroll
    for (int b = 0; b < BOX_COLUMNS / 8; b++) {
      const int i = box * (BOX_COLUMNS / 8) + b, column = tile.column + 8 * i + 2 * t;
      const float2 bias = finish.bias.pair(work, tile, column, false);
      const float2 bias_up = SWIGLU ? finish.bias.pair(work, tile, column, true) : float2{0.0f, 0.0f};
      float2 sums[2];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int up = SWIGLU ? count / 8 + i : i;
        sums[half] = activated(sums_of(d, i, 2 * half), bias, sums_of(d, up, 2 * half), bias_up, finish.scale);
      }
      if constexpr (FLOAT_OUT) {
        // 16-byte chunk 2 b + t / 2 of rows lane / 4 and that + 8, swizzled as TMA does.
        const u32 at = (warp_row + lane / 4) * 128 + (((2 * b + t / 2) ^ (lane / 4)) << 4) + t % 2 * 8;
#pragma unroll
        for (int half = 0; half < 2; half++) {
          if constexpr (SPLIT > 1) {
            sums[half] = added(sums[half], sums_of(before, i, 2 * half));
          } else if (finish.residual != nullptr) {
            float2 pair;
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(pair.x), "=f"(pair.y)
                         : "r"(residual + at + half * 1024)
                         : "memory");
            sums[half] = added(sums[half], pair);
          }
          asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(slot + at + half * 1024), "f"(sums[half].x),
                       "f"(sums[half].y)
                       : "memory");
        }
      } else {
        words[b % 2 * 2] = pack(sums[0].x, sums[0].y);
        words[b % 2 * 2 + 1] = pack(sums[1].x, sums[1].y);
        if (b % 2 == 1) {
          const int chunk = b - 1 + lane / 16;
          store_matrices(slot + (warp_row + lane % 16) * 128 + ((chunk ^ (lane % 8)) << 4), words[0], words[1], words[2],
                         words[3]);
        }
      }
    }
    fence_async_shared();
    named_barrier_sync(barrier, 128);
    if (thread == 0) store_box(finish, tile, slot, tile.row + 64 * consumer, tile.column + box * BOX_COLUMNS);
    if constexpr (FLOAT_OUT && SPLIT == 1) {
      if (finish.residual != nullptr && (box % RESIDUAL_BOXES == RESIDUAL_BOXES - 1 || box == BOXES - 1)) {
        release(base + AT_EMPTY + 8 * ring.stage, thread);
        ring.advance();
      }
    }
  }
}
