// A linear layer for one row of x over all blocks: o = residual + scale act(rms(x) W^T), and some columns convolved. Requires input.cuh.
//
// A row of K columns is SEGMENTS rows of the MMA, one after the other, each a chunk of CHUNK columns; the B operand has x's segments
// as its columns. A stage is 16 such chunks, so ROWS rows of w. Each warp takes OF_WARP columns of every chunk.

// State shared by a block's phases.
struct Block {
  Ring ring;
  Factors factors;
  u32 x;
  float* sums;     // [SUM_STAGES][WARPS][16]
  float* squares;  // [WARPS], of x
  u32 number;      // of the packets that the preceding phase wrote
  // Of a norm that every block computes: the inverse power of two of each warp's columns, and the inverse RMS.
  float* backs;  // [WARPS]
  float* root;
  float* dots;  // [2][2][WARPS]
#if CHOSEN
  const Choice* chosen;  // [CHOSEN]
  u32 chosen_full;
  int choices;  // so far
#endif
};

// The inverse RMS of x.
DEVICE float root_of(const float* squares, int inputs, float eps) {
  const float4 a = *(const float4*)squares, b = *(const float4*)(squares + 4);
  return rsqrtf(((a.x + a.y) + (a.z + a.w) + ((b.x + b.y) + (b.z + b.w))) * (1.0f / inputs) + eps);
}

// The sum of a thread's half of a row's partial sums and its neighbour's half.
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

// A convolution's step over a column, whose state belongs to its thread. During the products it is in shared memory: no registers are left.
struct Convolution {
  static constexpr int BYTES = 48;
  float past[TAPS - 1], offset, tap[TAPS];
  float* state;  // null: no channel

  // Loads a column's operands and stores them at `to`.
  static DEVICE void prepare(const Linear& of, int column, u32 to) {
    Convolution it = {};
    const int channel = column - of.conv_first;
    if (channel >= 0 && channel < of.conv_channels) {
      const int slot = of.state_indices != nullptr ? __ldg(of.state_indices) : 0;
      const float4 taps = __ldg((const float4*)of.conv_weight + channel);
      it.tap[0] = taps.x, it.tap[1] = taps.y, it.tap[2] = taps.z, it.tap[3] = taps.w;
      it.offset = of.conv_bias != nullptr ? __ldg(of.conv_bias + channel) : 0.0f;
      const i64 at = ((i64)max(slot, 0) * of.conv_channels + channel) * (TAPS - 1);
      // Padding has no state and is zero.
      it.state = slot < 0 ? (float*)1 : of.final_state + at;
#pragma unroll
      for (int t = 0; t < TAPS - 1; t++) it.past[t] = __ldcg(of.initial_state + at + t);
    }
    const auto lay = [&](u32 at, float a, float b, float c, float d) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
    };
    lay(to, it.past[0], it.past[1], it.past[2], it.offset), lay(to + 16, it.tap[0], it.tap[1], it.tap[2], it.tap[3]);
    asm volatile("st.shared.u64 [%0], %1;" ::"r"(to + 32), "l"(it.state) : "memory");
  }
  static DEVICE float step(u32 from, float value, bool use_silu) {
    float* state;
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(state) : "r"(from + 32) : "memory");
    if (state == nullptr) return value;
    if (state == (float*)1) return 0.0f;
    const uint4 a = load_shared(from), b = load_shared(from + 16);
    const float past[3] = {__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z)};
    float sum = fmaf(__uint_as_float(b.w), value, __uint_as_float(a.w));
    sum = fmaf(__uint_as_float(b.x), past[0], sum), sum = fmaf(__uint_as_float(b.y), past[1], sum), sum = fmaf(__uint_as_float(b.z), past[2], sum);
    state[0] = past[1], state[1] = past[2], state[2] = value;
    return use_silu ? silu(sum) : sum;
  }
};

// Stores a column for later kernels.
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

// A lane's part of a stage's sums: of one row of the MMA and of the one eight further.
template <int SEGMENTS>
struct Kept {
  using Of = Products<SEGMENTS>;
  // Shared memory address of the lane's first row and first block, and bytes to the next block.
  struct Beside {
    u32 from;
    int stride;
  };
  float low = 0.0f, high = 0.0f;

  // Adds the sums of the columns that are loaded first or second.
  DEVICE void add(const Of& of, const float (&sum)[Of::SETS][4], int s, Beside factor, Beside offset) {
#pragma unroll
    for (int set = 0; set < Of::SETS; set++) {
#pragma unroll
      for (int kept = 0; kept < Of::KEPT; kept++) {
        float a = of.kept(sum[set][0], sum[set][1], kept), b = of.kept(sum[set][2], sum[set][3], kept);
#if BLOCKS
        const int block = (s ^ of.odd) * SUB / BLOCKS + set * Of::AT_ONCE + kept;
        const u32 from = factor.from + block * factor.stride;
        a *= loaded(from, FACTOR_BITS), b *= loaded(from + 8 / SEGMENTS * FACTOR_SIZE, FACTOR_BITS);
#if OFFSET
        const u32 below = offset.from + block * offset.stride;
        const float x = of.kept(of.all[s][set][0], of.all[s][set][1], kept);
        a = fmaf(-x, loaded(below, 32), a), b = fmaf(-x, loaded(below + 8 / SEGMENTS * 4, 32), b);
#endif
#endif
        low += a, high += b;
      }
    }
  }
  static DEVICE float loaded(u32 from, int bits) {
    u32 word;
    if (bits == 32) {
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    } else {
      u16 half;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(from) : "memory");
      word = half;
    }
    return factor_of(word, bits);
  }
};

// The stages of a phase, in up to two parts.
struct Parts {
  int count, first, second;
  DEVICE int of(int part) const { return part == 0 ? first : second; }
};

// Multiplies all stages by the x that the warp has stored. `before` is called before each part.
template <class In, class Before>
DEVICE void multiply(float back, const Columns own, const Parts parts, Block& block, Before before) {
  constexpr int SEGMENTS = In::SEGMENTS, ROWS = In::ROWS;
  using Of = Products<SEGMENTS>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4;
  Of products;
  products.prepare(In::place(block.x));
  const u32 row_at = (row * CHUNK + warp * OF_WARP + lane % 4 * COLS) * WEIGHT_BITS / 8;
  float* to = block.sums + warp * 16 + row;
  u32 factor_from = 0, offset_from = 0;
  const int stride = Factors::stride(own, FACTOR_SIZE), stride_of_offsets = Factors::stride(own, 4);
  const auto use = [&](const Raw& raw, int slot) {
    Kept<SEGMENTS> kept;
#pragma unroll
    for (int s = 0; s < SUBS; s++) {
      float sum[Of::SETS][4];
      products.of(sum, raw, s);
      kept.add(products, sum, s, {factor_from, stride}, {offset_from, stride_of_offsets});
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(block.ring.empty + 8 * slot);
    if constexpr (Of::AT_ONCE == 4) {
      kept.low += __shfl_xor_sync(0xffffffff, kept.low, 1), kept.high += __shfl_xor_sync(0xffffffff, kept.high, 1);
    }
    if (products.keeps) to[0] = kept.low * back, to[8] = kept.high * back;
    to += WARPS * 16, factor_from += ROWS * FACTOR_SIZE, offset_from += ROWS * 4;
  };
  const auto take = [&](Raw& raw) {
    const int slot = block.ring.slot;
    barrier_wait(block.ring.full + 8 * slot, block.ring.turn);
    raw.take(block.ring.at + slot * STAGE + row_at, products.odd);
    block.ring.advance();
    return slot;
  };
  // Multiplies `count` stages; while one is multiplied the next is loaded, if there are registers for that.
  const auto some = [&](int count) {
    // A part may be empty, without shared experts: there is no stage of it to wait for.
    if (count == 0) return;
    Raw even, other;
    if constexpr (Of::OF_SUB == 4) {
      for (int left = count; left > 0; left--) {
        const int slot = take(even);
        use(even, slot);
      }
      return;
    }
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
#endif
  for (int part = 0; part < parts.count; part++) {
    before(part);
#if BLOCKS
    barrier_wait(factors.barrier(factors.full), factors.halves / 2 % 2);
    const auto first = [&](int size) { return factors.half() + group * Factors::stride(own, size) + (Factors::before(own, size) + row / SEGMENTS) * size; };
    factor_from = first(FACTOR_SIZE), offset_from = first(4) + FACTOR_BYTES;
#endif
    some(parts.of(part));
#if BLOCKS
    factors.leave();
#endif
  }
}

// A warp without columns of w releases all stages as they arrive.
template <class Before>
DEVICE void leave(const Parts parts, Block& block, Before before) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* to = block.sums + warp * 16 + lane;
  for (int part = 0; part < parts.count; part++) {
    before(part);
    for (int left = parts.of(part); left > 0; left--, to += WARPS * 16) {
      barrier_wait(block.ring.full + 8 * block.ring.slot, block.ring.turn);
      if (lane < 16) *to = 0.0f;
      if (lane == 0) barrier_arrive(block.ring.empty + 8 * block.ring.slot);
      block.ring.advance();
    }
#if BLOCKS
    barrier_wait(block.factors.barrier(block.factors.full), block.factors.halves / 2 % 2);
    block.factors.leave();
#endif
  }
}

template <class In>
DEVICE void linear_phase(const Linear& of, const Columns own, Block& block) {
  constexpr int SEGMENTS = In::SEGMENTS, ROWS = In::ROWS;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, stages = ceil_div(own.count, ROWS);
  // A block without columns waits for no block, and no block for it.
  if (own.count == 0) return;
  // ---- Operands that no other block writes.
  const int column = thread / SHARERS, sharer = thread % SHARERS;
  const bool finishes = sharer == 0 && column < own.count;
  float factor = 1.0f, factor_of_up = 1.0f, last = 0.0f;
  if (finishes) {
    if constexpr (BLOCKS == 0) {
      factor = factor_at(of.w_scale, own.first + column, of.factor_bits);
      if (of.swiglu) factor_of_up = factor_at(of.w_scale, of.columns + own.first + column, of.factor_bits);
    }
    // A column of a residual belongs to the same thread in all phases with the same number of columns.
    if (of.residual != nullptr) last = __ldcg(of.residual + own.first + column);
  }
  const u32 parked = block.x + In::INPUTS * 2 + column * Convolution::BYTES;
  if constexpr (In::CONVOLVES) {
    if (finishes && of.conv_channels != 0) Convolution::prepare(of, own.first + column, parked);
  }
  // ---- Products.
  float squares = 0.0f;
  const Parts parts = BLOCKS ? Parts{1 + of.swiglu, stages, stages} : Parts{1, stages << of.swiglu, 0};
  const auto nothing = [](int) {};
  if (WORKING == WARPS || warp < WORKING) {
    In in;
    in.prepare(of.norm);
    in.take(of.x_packets, of.x, block.number);
    if constexpr (In::IS_NORMED) in.weigh();
    in.lay(In::place(block.x));
    squares = in.squares;
    multiply<In>(in.back, own, parts, block, nothing);
  } else {
    leave(parts, block, nothing);
  }
  if constexpr (In::IS_NORMED) {
#pragma unroll
    for (int far = 16; far > 0; far /= 2) squares += __shfl_xor_sync(0xffffffff, squares, far);
    if (lane == 0) block.squares[warp] = squares;
  }
  meet_inside();
  // ---- Epilogue.
  const int safe = min(column, own.count - 1);
  const float* const from = block.sums + (safe / ROWS * WARPS + sharer * (WARPS / SHARERS)) * 16 + safe % ROWS * SEGMENTS;
  float value = total<SEGMENTS>(from);
  const float up = of.swiglu ? total<SEGMENTS>(from + stages * WARPS * 16) : 0.0f;
  const float root = In::IS_NORMED ? root_of(block.squares, In::INPUTS, of.eps) : 1.0f;
  value *= factor * root;
  if (of.swiglu) value = silu(value) * (up * factor_of_up * root);
  value = fmaf(value, of.scale, last);
  if constexpr (In::CONVOLVES) {
    if (of.conv_channels != 0 && finishes) value = Convolution::step(parked, value, of.conv_silu);
  }
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
