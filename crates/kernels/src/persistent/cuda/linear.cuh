// A product of one row of x over all blocks: o = residual + scale act(rms(x) W^T), and some columns convolved. Stands behind input.cuh.
//
// A row of K columns is SEGMENTS rows of a matrix product, one behind the other, each a chunk of CHUNK columns; the other matrix has x's segments
// as its columns. A stage is 16 such chunks, so ROWS rows of w. Each warp takes OF_WARP columns of every chunk.

// What a block's phases share.
struct Block {
  Ring ring;
  Factors factors;
  u32 x;
  float* sums;     // [SUM_STAGES][WARPS][16]
  float* squares;  // [WARPS], of x
  u32 number;      // of the packets that the phase ahead made
};

// A thread's half of a row's sums, and its neighbour's.
template <int SEGMENTS>
DEVICE float total(const float* from) {
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS / SHARERS; w++) {
    const float* const of = from + 16 * w;
    if constexpr (SEGMENTS == 1) {
      sum += *of;
    } else if constexpr (SEGMENTS == 2) {
      const float2 two = *(const float2*)of;
      sum += two.x + two.y;
    } else {
#pragma unroll
      for (int i = 0; i < SEGMENTS; i += 4) {
        const float4 four = *(const float4*)(of + i);
        sum += (four.x + four.y) + (four.z + four.w);
      }
    }
  }
  return sum + __shfl_xor_sync(0xffffffff, sum, 1);
}

// A convolution's step over a column, whose state is its thread's own.
struct Convolution {
  float past[TAPS - 1], tap[TAPS], offset;
  float* state;  // null: padding
  bool there;

  DEVICE void prepare(const Linear& of, int column) {
    const int channel = column - of.conv_first;
    there = channel >= 0 && channel < of.conv_channels;
    if (!there) return;
    const int slot = of.state_indices != nullptr ? __ldg(of.state_indices) : 0;
    state = nullptr;
    if (slot < 0) return;
    const float4 taps = __ldg((const float4*)of.conv_weight + channel);
    tap[0] = taps.x, tap[1] = taps.y, tap[2] = taps.z, tap[3] = taps.w;
    offset = of.conv_bias != nullptr ? __ldg(of.conv_bias + channel) : 0.0f;
    const i64 at = ((i64)slot * of.conv_channels + channel) * (TAPS - 1);
    state = of.final_state + at;
#pragma unroll
    for (int t = 0; t < TAPS - 1; t++) past[t] = __ldcg(of.initial_state + at + t);
  }
  DEVICE float step(float value, bool use_silu) const {
    if (!there) return value;
    if (state == nullptr) return 0.0f;
    float sum = fmaf(tap[TAPS - 1], value, offset);
#pragma unroll
    for (int t = 0; t < TAPS - 1; t++) {
      sum = fmaf(tap[t], past[t], sum);
      state[t] = t + 2 < TAPS ? past[t + 1] : value;
    }
    return use_silu ? silu(sum) : sum;
  }
};

// Where kernels behind this one read a column.
DEVICE void store(const Linear& of, int column, float value) {
  char* to = of.o0;
  int begin = 0;
  if (column >= of.start1) to = of.o1, begin = of.start1;
  if (column >= of.start2) to = of.o2, begin = of.start2;
  if (column >= of.start3) to = of.o3, begin = of.start3;
  if (column >= of.start4) to = of.o4, begin = of.start4;
  if (column >= of.start5) to = of.o5, begin = of.start5;
  if (of.out_f32) {
    ((float*)to)[column - begin] = value;
  } else {
    ((u16*)to)[column - begin] = narrow_half(value);
  }
}

// What a lane has of a stage's sums: of one row of the product and of the one eight further.
template <int SEGMENTS>
struct Kept {
  float low, high;

  // In shared memory: what the lane's first row has for its first block, and bytes to the next.
  struct Beside {
    u32 from;
    int stride;
  };
  DEVICE Kept(const Products<SEGMENTS>& of, const float (&sum)[SUBS][Products<SEGMENTS>::SETS][4], Beside factor, Beside offset) {
    using Of = Products<SEGMENTS>;
    low = high = 0.0f;
#pragma unroll
    for (int s = 0; s < SUBS; s++) {
#pragma unroll
      for (int set = 0; set < Of::SETS; set++) {
#pragma unroll
        for (int kept = 0; kept < Of::KEPT; kept++) {
          float a = of.low(sum[s][set], kept), b = of.high(sum[s][set], kept);
#if BLOCKS
          const int block = (s ^ of.odd) * SUB / BLOCKS + set * Of::AT_ONCE + kept;
          const u32 from = factor.from + block * factor.stride;
          a *= loaded(from, FACTOR_BITS), b *= loaded(from + 8 / SEGMENTS * FACTOR_SIZE, FACTOR_BITS);
#if OFFSET
          const u32 below = offset.from + block * offset.stride;
          const float x = of.low(of.all[s][set], kept);
          a = fmaf(-x, loaded(below, 32), a), b = fmaf(-x, loaded(below + 8 / SEGMENTS * 4, 32), b);
#endif
#endif
          low += a, high += b;
        }
      }
    }
  }
  static DEVICE float loaded(u32 from, int bits) {
    u32 word;
    u16 half = 0;
    if (bits == 32) {
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    } else {
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(from) : "memory");
      word = half;
    }
    return factor_of(word, bits);
  }
};

template <class In>
DEVICE void linear_phase(const Linear& of, const Columns own, Block& block) {
  constexpr int SEGMENTS = In::SEGMENTS, ROWS = In::ROWS;
  using Of = Products<SEGMENTS>;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, stages = ceil_div(own.count, ROWS);
  // A block without columns waits for nobody, and nobody for it.
  if (own.count == 0) return;
  // ---- What no other block writes.
  In in;
  in.prepare(of);
  const int column = thread / SHARERS, sharer = thread % SHARERS;
  const bool finishes = sharer == 0 && column < own.count;
  float factor = 1.0f, factor_of_up = 1.0f, last = 0.0f;
  Convolution convolution;
  convolution.there = false;
  if (finishes) {
    if constexpr (BLOCKS == 0) {
      factor = factor_at(of.w_scale, own.first + column, of.factor_bits);
      if (of.swiglu) factor_of_up = factor_at(of.w_scale, of.columns + own.first + column, of.factor_bits);
    }
    // Each column of a residual is the same thread's in all phases that have as many of them.
    if (of.residual != nullptr) last = __ldcg(of.residual + own.first + column);
    if (of.conv_channels != 0) convolution.prepare(of, own.first + column);
  }
  // ---- x.
  const u32 own_x = in.place(block.x);
  in.lay(of, block.number, own_x);
  Of products;
  products.prepare(own_x);
  // ---- Products.
  const int row = lane / 4;
  const u32 row_at = (row * CHUNK + warp * OF_WARP + lane % 4 * COLS) * WEIGHT_BITS / 8;
  float* to = block.sums + warp * 16 + row;
  u32 factor_from = 0, offset_from = 0;
  const int stride = Factors::stride(own, FACTOR_SIZE), stride_of_offsets = Factors::stride(own, 4);
  const auto use = [&](const Raw& raw, int slot) {
    float sum[SUBS][Of::SETS][4];
    products.of(sum, raw);
    __syncwarp();
    if (lane == 0) barrier_arrive(block.ring.empty + 8 * slot);
    Kept<SEGMENTS> kept(products, sum, {factor_from, stride}, {offset_from, stride_of_offsets});
    if constexpr (Of::AT_ONCE == 4) {
      kept.low += __shfl_xor_sync(0xffffffff, kept.low, 1), kept.high += __shfl_xor_sync(0xffffffff, kept.high, 1);
    }
    if (products.keeps) to[0] = kept.low * in.back, to[8] = kept.high * in.back;
    to += WARPS * 16, factor_from += ROWS * FACTOR_SIZE, offset_from += ROWS * 4;
  };
  const auto take = [&](Raw& raw) {
    const int slot = block.ring.slot;
    barrier_wait(block.ring.full + 8 * slot, block.ring.turn);
    raw.take(block.ring.at + slot * STAGE + row_at, products.odd);
    block.ring.advance();
    return slot;
  };
  // So many stages; while one is multiplied the next is loaded.
  const auto some = [&](int count) {
    Raw even, other;
    int slot = take(even);
    for (int left = count; left > 0; left -= 2) {
      int next = 0;
      if (left > 1) next = take(other);
      use(even, slot);
      if (left == 1) break;
      if (left > 2) slot = take(even);
      use(other, next);
    }
  };
#if BLOCKS
  Factors& factors = block.factors;
  const int group = ((products.order % SEGMENTS) * CHUNK + warp * OF_WARP) / BLOCKS + products.first_block;
  for (int part = 0; part <= of.swiglu; part++) {
    barrier_wait(factors.barrier(factors.full), factors.halves / 2 % 2);
    const auto first = [&](int size) { return factors.half() + group * Factors::stride(own, size) + (Factors::before(own, size) + row / SEGMENTS) * size; };
    factor_from = first(FACTOR_SIZE), offset_from = first(4) + FACTOR_BYTES;
    some(stages);
    __syncwarp();
    if (lane == 0) barrier_arrive(factors.barrier(factors.empty));
    factors.halves++;
  }
#else
  some(stages << of.swiglu);
#endif
  if constexpr (In::IS_NORMED) {
#pragma unroll
    for (int far = 16; far > 0; far /= 2) in.squares += __shfl_xor_sync(0xffffffff, in.squares, far);
    if (lane == 0) block.squares[warp] = in.squares;
  }
  meet_inside();
  // ---- Columns.
  const int safe = min(column, own.count - 1);
  const float* const from = block.sums + (safe / ROWS * WARPS + sharer * (WARPS / SHARERS)) * 16 + safe % ROWS * SEGMENTS;
  float value = total<SEGMENTS>(from);
  const float up = of.swiglu ? total<SEGMENTS>(from + stages * WARPS * 16) : 0.0f;
  float root = 1.0f;
  if constexpr (In::IS_NORMED) {
    const float4 a = *(const float4*)block.squares, b = *(const float4*)(block.squares + 4);
    root = rsqrtf(((a.x + a.y) + (a.z + a.w) + ((b.x + b.y) + (b.z + b.w))) * (1.0f / In::INPUTS) + of.eps);
  }
  value *= factor * root;
  if (of.swiglu) value = silu(value) * (up * factor_of_up * root);
  value = fmaf(value, of.scale, last);
  if (of.conv_channels != 0 && finishes) value = convolution.step(value, of.conv_silu);
  if (of.packets != nullptr) {
    if (of.out_f32) {
      if (finishes) give(of.packets + own.first + column, __float_as_uint(value), block.number + 1);
    } else {
      const u32 content = narrow_half(value), next = __shfl_down_sync(0xffffffff, content, SHARERS);
      if (finishes && column % 2 == 0) give(of.packets + (own.first + column) / 2, content | next << 16, block.number + 1);
    }
  }
  if (of.stored && finishes) store(of, own.first + column, value);
}
