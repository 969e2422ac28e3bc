// Many tokens on Hopper (sm_90a) with weights of 8 or 4 bits: for each expert a matrix product of the tokens that chose it.
//
//   UP 1:  made[pair] = silu(gate) * up, [gate | up] = W_gate_up[expert] from[pair]
//   UP 0:  made[pair] = W_down[expert] from[pair]
//
// As hopper.cu, but weights are dequantized to bf16 on the way from shared memory to registers; wgmma reads A from registers.
// A lane reads 16 adjacent channels of a row, its share of four wgmma steps of K = 16: channels are permuted relative to
// wgmma's K index, and tokens are stored in the same permutation (ordered_channel): gather_narrow.cu writes `from` in it,
// and UP writes `made` in it. One half of a consumer's rows is converted while the wgmma of the other half run.
//
// Source: include/hopper.cuh, include/narrow.cuh, moe/hopper_work.cuh, moe/order.cuh, then this file.
//
// map_from   as in hopper.cu; values are multiplied by 2^64 if SCALED_UP
// map_w      CUtensorMap by value of bytes, dimensions from the innermost: byte of a row, row, expert; box {ROW_BYTES, 128, 1}
// tiles      as in list.cuh, of up to TILE pairs
// w_scale    f32 [experts, groups, rows]; w_offset f32 the same, with OFFSET (4 bits; without it 8 times the scale). With GROUPED a group
//            is 2^group_shift times 64 channels
// made       [pairs as listed, columns] storage; columns is a multiple of 8, with UP of 64. channels is a multiple of 64
//
// Launch: grid (SMs); block (384); dynamic shared memory SHARED_BYTES. May overlap the preceding kernel (PDL).
//
// Macros: DTYPE (bf16), UP, TILE (a multiple of 32 up to 128), STAGES, WEIGHT_BITS, INTEGERS, OFFSET, GROUPED.

constexpr int ROW_BYTES = BLOCK_K * WEIGHT_BITS / 8, HALF_BYTES = HALF_ROWS * ROW_BYTES;
constexpr int TOKENS_AT = 2 * HALF_BYTES, STAGE_BYTES = TOKENS_AT + TILE * BLOCK_K * 2;
constexpr int AT_TURN = STAGES * STAGE_BYTES;
constexpr int AT_FULL = AT_TURN + 2 * TURN_BYTES, AT_EMPTY = AT_FULL + 8 * STAGES;
constexpr int SHARED_BYTES = AT_EMPTY + 8 * STAGES + 1024;  // the start is aligned to 1024 bytes
static_assert(SHARED_BYTES <= 232448, "more shared memory than a block can have");
static_assert(STAGE_BYTES % 1024 == 0 && TOKENS_AT % 1024 == 0, "tokens are swizzled by 1024 bytes");

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
      tma_load_3d(to, map_w, full, block * ROW_BYTES, column, tile.x);
      tma_load_3d(to + HALF_BYTES, map_w, full, block * ROW_BYTES, UP ? columns + column : column + HALF_ROWS, tile.x);
      for (int box = 0; box < boxes; box++) {
        tma_load_3d(to + TOKENS_AT + box * BOX_BYTES, map_from, full, block * BLOCK_K, tile.y + 32 * box, 0);
      }
      ring.advance();
    }
  }
}

// The scale of a row, and the offset that is subtracted from its scaled weights.
struct Factor {
  float scale, less;
};

struct Factors {
  const float *scale, *offset;
  int groups, rows, shift;

  // Scale and offset of a row of an expert for a block of channels; results of rows past the end are not stored.
  DEVICE Factor at(int expert, int block, int row) const {
    const i64 at = (i64)(expert * groups + (GROUPED ? block >> shift : 0)) * rows + min(row, rows - 1);
    const float factor = __ldg(scale + at);
    // 4-bit values are 128 too large.
    const float less = WEIGHT_BITS != 4 ? 0.0f : OFFSET ? fmaf(128.0f, factor, __ldg(offset + at)) : 136.0f * factor;
    return {factor, less};
  }
};

// Dequantized pair i of a word.
DEVICE u32 weighted(u32 bits, u32 pair, int i, const Factor& factor) {
  float low, high;
  if constexpr (WEIGHT_BITS == 4) {
    // 0x430, a nibble and zeros are the float32 128 plus the nibble.
    low = __uint_as_float(masked<0x000f0000, 0x43000000>(bits << (16 - 4 * i)));
    high = __uint_as_float(masked<0x000f0000, 0x43000000>(bits >> 4 * i));
    return pack(fmaf(low, factor.scale, -factor.less), fmaf(high, factor.scale, -factor.less));
  }
  low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000);
  return pack(low * (factor.scale * OF_SUMS), high * (factor.scale * OF_SUMS));
}

// Dequantizes a word of a row to pairs of bf16.
DEVICE void take(u32 bits, const Factor& factor, u32 (&to)[PAIRS]) {
  if (!GROUPED || WEIGHT_BITS != 4) take_apart(bits, to);
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    if constexpr (GROUPED) {
      to[i] = weighted(bits, to[i], i, factor);
    } else if constexpr (WEIGHT_BITS == 4 && OFFSET) {
      // An offset is not an integer: computed in float32.
      to[i] = weighted(bits, to[i], i, factor);
    } else if constexpr (WEIGHT_BITS == 4) {
      to[i] = fma_pair(to[i], ONES, 0xc308c308);
    }
  }
}

// Whether the scales are applied to the accumulators.
constexpr bool LATE = !GROUPED && !(WEIGHT_BITS == 4 && OFFSET);

// Converts 64 rows: a[4 s] to a[4 s + 3] are the A fragment of product s. `from`: this lane's channels of its first row; the second is 8 rows on.
DEVICE void take_half(u32 (&a)[16], u32 from, const Factor& first, const Factor& second) {
  constexpr int WORDS = WEIGHT_BITS / 2;  // 16 channels
  u32 low[4], high[4];
  if constexpr (WORDS == 4) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(low[0]), "=r"(low[1]), "=r"(low[2]), "=r"(low[3]) : "r"(from) : "memory");
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(high[0]), "=r"(high[1]), "=r"(high[2]), "=r"(high[3]) : "r"(from + 8 * ROW_BYTES) : "memory");
  } else {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(low[0]), "=r"(low[1]) : "r"(from) : "memory");
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(high[0]), "=r"(high[1]) : "r"(from + 8 * ROW_BYTES) : "memory");
  }
#pragma unroll
  for (int w = 0; w < WORDS; w++) {
    u32 of_low[PAIRS], of_high[PAIRS];
    take(low[w], first, of_low);
    take(high[w], second, of_high);
#pragma unroll
    for (int i = 0; i < PAIRS; i += 2) {
      u32* const to = a + 4 * (w * PAIRS / 2 + i / 2);
      to[0] = of_low[i], to[1] = of_high[i], to[2] = of_low[i + 1], to[3] = of_high[i + 1];
    }
  }
}

// The wgmma of a half with `pairs` pairs; only the first `pairs` of TILE's accumulator columns are used.
template <int pairs>
DEVICE void multiply_half(float (&sums)[TILE / 2], const u32 (&a)[16], u64 b, int more) {
  if constexpr (pairs <= TILE) {
    float(&part)[pairs / 2] = reinterpret_cast<float(&)[pairs / 2]>(sums);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < BLOCK_K / 16; step++) {
      wgmma_rs<0>(part, a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3], b + 2 * step, step > 0 || more);
    }
    wgmma_commit();
  }
}

// Computes a tile of pairs.
DEVICE void consume(u32 base, int consumer, const Target& target, int4 tile, int column, int blocks, Ring& ring,
                    const Factors& factors) {
  const int width = (tile.z - tile.y + 31) / 32;
  const int lane = target.thread % 32, warp = target.thread / 32, row = 64 * consumer + 16 * warp + lane / 4;
  // With fewer pairs, the accumulators of the last tokens are not initialized and not stored.
  float sums[2][TILE / 2];
  u32 a[2][16];
  Factor factor[2][2];
  const auto look_up = [&](int block) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int start = half == 0 ? column : UP ? target.columns + column : column + HALF_ROWS;
        // Results of gate and up rows past the end are not stored.
        factor[half][i] = factors.at(tile.x, block, start + row + 8 * i);
      }
    }
  };
  look_up(0);
  const u64 b = descriptor_k_major<128>(base + TOKENS_AT);
  const u32 from = base + row * ROW_BYTES + lane % 4 * (ROW_BYTES / 4);
  u32 previous = 0;
#pragma unroll 1
  for (int block = 0; block < blocks; block++) {
    if (GROUPED && block > 0 && (block & ((1 << factors.shift) - 1)) == 0) look_up(block);
    mbarrier_wait(base + AT_FULL + 8 * ring.stage, ring.parity);
    const u64 at = b + ring.stage * (STAGE_BYTES >> 4);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (block > 0) {
        // This half's wgmma of the previous block are complete; after those of the second half its stage is free.
        wgmma_wait<1>();
        keep(a[half]);
        if (half == 1 && target.thread == 0) mbarrier_arrive(base + AT_EMPTY + 8 * previous);
      }
      take_half(a[half], from + ring.stage * STAGE_BYTES + half * HALF_BYTES, factor[half][0], factor[half][1]);
      switch (width) {
        case 1: multiply_half<32>(sums[half], a[half], at, block > 0); break;
        case 2: multiply_half<64>(sums[half], a[half], at, block > 0); break;
        case 3: multiply_half<96>(sums[half], a[half], at, block > 0); break;
        default: multiply_half<TILE>(sums[half], a[half], at, block > 0);
      }
    }
    previous = ring.stage;
    ring.advance();
  }
  wgmma_wait<0>();
  keep(sums[0]);
  keep(sums[1]);
  if (target.thread == 0) mbarrier_arrive(base + AT_EMPTY + 8 * previous);
  const auto value = [&](int half, int i) {
    return LATE ? sums[half][i] * (factor[half][i / 2 % 2].scale * OF_SUMS) : sums[half][i];
  };
  const int own = column + 64 * consumer;
  if constexpr (UP) {
    // In the channel order and with the scaling that the down projection requires.
    const auto made = [&](int i) { return silu(value(0, i)) * value(1, i) * (SCALED_UP ? 0x1p64f : 1.0f); };
    target.store(tile, own, made, [&](int pair, int chunk) {
      u32 words[4];
#pragma unroll
      for (int w = 0; w < 4; w++) {
        u32 half[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
          const int channel = ordered_channel(8 * chunk + 2 * w + j);
          u16 one;
          asm volatile("ld.shared.u16 %0, [%1];"
                       : "=h"(one)
                       : "r"(target.turn + pair * 128 + ((channel / 8 ^ pair % 8) << 4) + channel % 8 * 2)
                       : "memory");
          half[j] = one;
        }
        words[w] = half[0] | half[1] << 16;
      }
      return make_uint4(words[0], words[1], words[2], words[3]);
    });
  } else {
    target.store(tile, own, [&](int i) { return value(0, i); });
    target.store(tile, own + HALF_ROWS, [&](int i) { return value(1, i); });
  }
}

extern "C" __global__ void __launch_bounds__(384, 1)
    moe_hopper_narrow(const __grid_constant__ TensorMap map_from, const __grid_constant__ TensorMap map_w,
                      const int* tiles, u16* made, int columns, int channels, const float* __restrict__ w_scale,
                      const float* __restrict__ w_offset, int groups, int group_shift) {
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
  const int blocks = channels / BLOCK_K;
  if (warpgroup == 0) {
    registers_decrease<24>();
    if (threadIdx.x == 0) produce(base, &map_from, &map_w, work, columns, blocks);
  } else {
    registers_increase<240>();
    const int consumer = warpgroup - 1;
    const Target target = {made, columns, base + AT_TURN + consumer * TURN_BYTES, 1 + consumer, (int)threadIdx.x % 128};
    const Factors factors = {w_scale, w_offset, groups, UP ? 2 * columns : columns, group_shift};
    Ring ring = {0, 0};
    for (int index = blockIdx.x; index < work.count; index += gridDim.x) {
      consume(base, consumer, target, work.tile(index), work.column(index), blocks, ring, factors);
    }
  }
}
