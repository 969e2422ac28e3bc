// The state recurrence over the chunks of a sequence, for Hopper: with the packages of prepare.cu,
//
//   X = V - kd S;  U = m X;  O = qd S + aq U;  S <- Diag(e^{G_end}) S + ke^T U
//
// or, with one decay per head, of prepare_head.cu: there kd, qd and ke are k, q and k with a scale per token, which is
// applied to sums: to k S and to q S, and to U for the state.
//
// Reads of shared memory wait until earlier wgmmas have left the queue, and wgmmas execute in order: with one
// decay per head and one warpgroup per block (EARLY), scales and values are read one product ahead, and qd S is halved, to run while A
// operands are computed. Two warpgroups fill each other's gaps, and a decay per channel leaves no registers for it.
//
// A warpgroup has 64 value columns of a head and keeps S^T [64, KP] in f32 registers. All products are transposed
// (S^T kd^T and so on), so that every A operand is a register fragment which the warpgroup has just computed and every B
// operand is in shared memory as prepare.cu stored it: only values and outputs pass between threads.
//
// Operands are f16. Columns of S and V are independent, so each has a power of two as factor that keeps the larger of both
// between 2^-6 and 2^4, inside f16's range; f16 has three bits more than bf16, which the error needs (README.md).
//
// One more warpgroup loads packages and values, STAGES chunks ahead. Two compute warpgroups need its registers (setmaxnreg), which
// only whole warpgroups can release.
//
// Launch: grid (ceil(VD / (64 WARPGROUPS)), HV, sequences), 128 (WARPGROUPS + 1) threads, SHARED_BYTES of dynamic
// shared memory. Macros: KD (up to 128), VD, STORAGE (0 or 1), PER_HEAD, WARPGROUPS, STAGES, DTYPE=f16. Arguments as in recurrent.cu.
//
// With marks (one decay per head and one warpgroup per block) the preceding launch is prepare_rest.cu, which still runs: the chunks of
// each sequence from `first_marked` on, in `groups` groups of MARK_CHUNKS, are complete when their marks have reached their count.

constexpr bool EARLY = PER_HEAD && WARPGROUPS == 1;
constexpr int VALUE_BYTES = BOX_BYTES;                  // 64 tokens of 64 columns
constexpr int SMALL_BYTES = NUMBER_BYTES + WARPGROUPS * VALUE_BYTES;  // a package's f32 vectors, then values
constexpr int SHARED_BYTES = STAGES * (MATRIX_BYTES + SMALL_BYTES) + WARPGROUPS * BOX_BYTES + 1024;  // outputs; to align

// Named barriers, each of a compute warpgroup and the copy warpgroup: a group's outputs are in shared memory, and have
// been read.
enum { OUTPUTS_PUT = 1, OUTPUTS_READ = 3, BARRIER_THREADS = 256 };

DEVICE float over_quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// The larger magnitudes of two pairs, here in the storage type, below (larger_half) in f16.
DEVICE u32 larger_stored(u32 a, u32 b) {
  u32 larger;
#if STORAGE == 1
  asm("{\n.reg .b32 x;\nabs.f16x2 x, %2;\nmax.f16x2 %0, %1, x;\n}\n" : "=r"(larger) : "r"(a), "r"(b));
#else
  asm("{\n.reg .b32 x;\nabs.bf16x2 x, %2;\nmax.bf16x2 %0, %1, x;\n}\n" : "=r"(larger) : "r"(a), "r"(b));
#endif
  return larger;
}

// 1 / x of a power of two.
DEVICE float inverse_of_power(float x) { return __uint_as_float(0x7f000000 - __float_as_uint(x)); }

DEVICE u32 larger_half(u32 a, u32 b) {
  u32 larger;
  asm("{\n.reg .b32 x;\nabs.f16x2 x, %2;\nmax.f16x2 %0, %1, x;\n}\n" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

DEVICE float half_low(u32 word) {
  float x;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}\n" : "=f"(x) : "r"(word));
  return x;
}

DEVICE float half_high(u32 word) { return half_low(word >> 16); }

// With one decay per head, the scales of the tokens of a lane's accumulators; otherwise empty.
struct OfTokens {
  float2 at[8];
  DEVICE void take(u32 numbers, int quad) {
    if constexpr (PER_HEAD) {
#pragma unroll
      for (int i = 0; i < 8; i++) {
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(at[i].x), "=f"(at[i].y) : "r"(numbers + (8 * i + 2 * quad) * 4) : "memory");
      }
    }
  }
  // Element `i` of sums in accumulator layout, times its token's scale.
  DEVICE float times(const float (&sums)[32], int i) const {
    if constexpr (PER_HEAD) return sums[i] * (i % 2 == 0 ? at[i / 4].x : at[i / 4].y);
    return sums[i];
  }
};

extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS + 128, 1)
    kda_walk(const unsigned char* packages, const u16* v, const void* initial, u16* o, float* final_state,
             const int* offsets, const int* slots, int tokens, int heads, int value_heads, int types, const u32* marks, int first_marked,
             int groups) {
  extern __shared__ unsigned char dynamic[];
  __shared__ u64 barriers[2 * STAGES];
  const u32 stages = (shared_address(dynamic) + 1023) & ~1023u;
  const u32 smalls = stages + STAGES * MATRIX_BYTES, tiles = smalls + STAGES * SMALL_BYTES;
  const u32 full = shared_address(barriers), empty = full + STAGES * 8;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int value_head = blockIdx.y, slot = slots ? slots[blockIdx.z] : blockIdx.z;
  const Sequence sequence = find_sequence(offsets, blockIdx.z, tokens);
  const i64 token_stride = (i64)value_heads * VD;
  const i64 values_at = sequence.first * token_stride + (i64)value_head * VD;
  const int block_column = blockIdx.x * WARPGROUPS * 64;

  if (slot < 0) {  // Padding: its rows of o are 0.
    wait_for_previous();
    for (int i = thread; i < sequence.count * WARPGROUPS * 64; i += blockDim.x) {
      const int column = block_column + i % (WARPGROUPS * 64);
      if (column < VD) o[values_at + i / (WARPGROUPS * 64) * token_stride + column] = 0;
    }
    return;
  }
  if (thread == 0) {
    for (int s = 0; s < STAGES; s++) {
      mbarrier_init(full + s * 8, 1 + 128);
      mbarrier_init(empty + s * 8, WARPGROUPS * 128);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int chunks = (sequence.count + CHUNK - 1) / CHUNK;

  if (warp >= WARPGROUPS * 4) {
    if constexpr (WARPGROUPS == 2) registers_decrease<56>();
    const unsigned char* of_chunk = packages + sequence.chunk_slot * chunk_bytes(heads, value_heads);
    const i64 own = (i64)heads * OF_KEYS + (i64)value_head * PACKAGE_BYTES, of_key_head = (i64)(value_head / (value_heads / heads)) * OF_KEYS;
    const u16* values = v + values_at;
    const bool marked = EARLY && marks, copies = thread == WARPGROUPS * 128;
    // The preceding launch writes only packages: everything else can be read and written before it has ended.
    if (!marked) wait_for_previous();
    if (marked && copies) await_mark(marks, 1);
    const u32* mark = marks + MARKS_AT + (i64)blockIdx.z * groups * heads + value_head / (value_heads / heads);
    const u32 pairs = (value_heads / heads + 1) / 2;
    int unknown = first_marked;  // the first chunk whose mark has not been read
    for (int c = 0; c < chunks + STAGES; c++) {
      const int s = c % STAGES;
      const u32 stage = stages + s * MATRIX_BYTES, small = smalls + s * SMALL_BYTES, barrier = full + s * 8;
      if (c < chunks) {
        // Before a stage is free for it: polling takes as long as a load.
        if (marked && copies && c == unknown) {
          await_mark(mark, pairs * min(MARK_CHUNKS, chunks - c));
          mark += heads, unknown += MARK_CHUNKS;
        }
        if (c >= STAGES) mbarrier_wait(empty + s * 8, (c / STAGES - 1) % 2);
        if (copies) {
          mbarrier_expect(barrier, OF_KEYS + PACKAGE_BYTES);
          if constexpr (PER_HEAD) bulk_load(stage, of_chunk + of_key_head, OF_KEYS, barrier);
          bulk_load(stage + OF_KEYS, of_chunk + own, NUMBERS_AT, barrier);
          bulk_load(small, of_chunk + own + NUMBERS_AT, NUMBER_BYTES, barrier);
        }
        for (int group = 0; group < WARPGROUPS; group++) {
          load_values(small + NUMBER_BYTES + group * VALUE_BYTES, values, token_stride, sequence.count - c * CHUNK,
                      block_column + group * 64, thread % 128);
        }
        arrive_with_copies(barrier);
        of_chunk += chunk_bytes(heads, value_heads);
        values += CHUNK * token_stride;
      }
      // The chunk whose stage has just been reused has its outputs ready.
      const int done = c - STAGES;
      if (done >= 0) {
        for (int group = 0; group < WARPGROUPS; group++) {
          named_barrier_sync(OUTPUTS_PUT + group, BARRIER_THREADS);
          write_outputs(tiles + group * BOX_BYTES, o + values_at + done * CHUNK * token_stride, token_stride,
                        sequence.count - done * CHUNK, block_column + group * 64, thread % 128, [&] {
                          if (done + 1 < chunks) named_barrier_arrive(OUTPUTS_READ + group, BARRIER_THREADS);
                        });
        }
      }
    }
    // Launches after this one wait for its end only, so it ends after the preceding one.
    if (marked) wait_for_previous();
  } else {
    if constexpr (WARPGROUPS == 2) registers_increase<224>();
    const int group = warp / 4, row = lane / 4, quad = lane % 4;
    const int column = block_column + warp * 16;  // of the warp
    const i64 state_at = ((i64)slot * value_heads + value_head) * KD * VD;
    float state[KP / 2];  // [4 i + 2 r + c]: column `row` + 8 r of the warp, channel 8 i + 2 `quad` + c
    float factor[2] = {1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < KP / 2; i++) {
      const int channel = i / 4 * 8 + quad * 2 + i % 2, r = i / 2 % 2, at = column + row + r * 8;
      const bool inside = initial != nullptr && at < VD && (KD % 64 == 0 || channel < KD);
      const i64 from = state_at + (i64)channel * VD + at;
      state[i] = !inside ? 0.0f : types & NARROW_STATE ? bf16_element(initial, from) : ((const float*)initial)[from];
    }
    const int matrix = lane / 8, in_matrix = lane % 8;
    const u32 value_lane = (matrix / 2 * 8 + in_matrix) * 128 + (((warp % 4 * 2 + matrix % 2) ^ in_matrix) << 4);

    u32 packed[KP / 4];  // the state as A fragments
    u32 values[16];      // [4 b + 2 n + r]: column `row` + 8 r, tokens 16 b + 8 n + 2 `quad` and the next
    float x[32], out[32];
    // Waits for a chunk, and takes its values.
    u32 large_values[2];
    auto take_values = [&](u32 (&values)[16], u32 small, u32 barrier, u32 parity, bool there) {
      if (there) mbarrier_wait(barrier, parity);
      large_values[0] = large_values[1] = 0;
#pragma unroll
      for (int b = 0; b < 4; b++) {
        u32 words[4];
        load_matrices_transposed(words, small + NUMBER_BYTES + group * VALUE_BYTES + b * 2048 + value_lane);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          values[b * 4 + i] = words[i];
          large_values[i % 2] = larger_stored(large_values[i % 2], words[i]);
        }
      }
    };

    // Starts kd S. After the last chunk it multiplies stale shared memory, and the product is not read: a branch around it would make
    // the compiler wait after every product.
    OfTokens from_start;
    float decay_of_head;
    auto begin = [&](u32 stage, u32 small, bool there) {
      u32 large_state[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < KP / 4; i++) {
        packed[i] = pack(state[2 * i], state[2 * i + 1]);
        large_state[i % 2] = larger_half(large_state[i % 2], packed[i]);
      }
      // A row is in a quad of lanes: it is out of range if any of its lanes is above the range or all are below.
      bool rescale = false;
      float top[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float of_values = there ? fmaxf(widen_low(large_values[r]), widen_high(large_values[r])) * factor[r] : 0.0f;
        top[r] = fmaxf(fmaxf(half_low(large_state[r]), half_high(large_state[r])), of_values);
        u32 small_lanes = __ballot_sync(~0u, top[r] < 0.015625f);
        small_lanes &= small_lanes >> 1;
        rescale |= top[r] > 16.0f || (small_lanes & small_lanes >> 2 & 0x11111111) != 0;
      }
      if (__any_sync(~0u, rescale)) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float largest = there ? fmaxf(widen_low(large_values[r]), widen_high(large_values[r])) * factor[r] : 0.0f;
#pragma unroll
          for (int i = 0; i < KP / 8; i++) largest = fmaxf(largest, fmaxf(fabsf(state[4 * i + 2 * r]), fabsf(state[4 * i + 2 * r + 1])));
          largest = over_quad_max(largest);
          // 2^-e for 2^e to 2^{e + 1}; the factor stays between 2^-60 and 2^60.
          const u32 exponent = min(max(__float_as_uint(largest) >> 23, 67u), 187u);
          const float by = largest > 0.0f ? __uint_as_float((254 - exponent) << 23) : 1.0f;
          const float limited = fminf(fmaxf(factor[r] * by, 8.6736174e-19f), 1.1529215e18f);
          const float change = limited * inverse_of_power(factor[r]);
          factor[r] = limited;
#pragma unroll
          for (int i = 0; i < KP / 8; i++) state[4 * i + 2 * r] *= change, state[4 * i + 2 * r + 1] *= change;
        }
#pragma unroll
        for (int i = 0; i < KP / 4; i++) packed[i] = pack(state[2 * i], state[2 * i + 1]);
      }
      if constexpr (PER_HEAD) {
        if (EARLY) from_start.take(small, quad);
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(decay_of_head) : "r"(small + DECAY_AT) : "memory");
      }
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < KP / 16; step++) {
        const u64 kd = descriptor_k_major<128>(stage + step / 4 * BOX_BYTES) + step % 4 * 2;
        const u32* a = packed + step * 4;
        wgmma_rs<0>(x, a[0], a[1], a[2], a[3], kd, step > 0);
      }
      wgmma_commit();
    };

    // Some K steps of qd S.
    auto ask = [&](u32 stage, int first_step, int end) {
#pragma unroll
      for (int step = first_step; step < end; step++) {
        const u64 qd = descriptor_k_major<128>(stage + QD_AT + step / 4 * BOX_BYTES) + step % 4 * 2;
        const u32* a = packed + step * 4;
        wgmma_rs<0>(out, a[0], a[1], a[2], a[3], qd, step > 0);
      }
      wgmma_commit();
    };

    // Decays the state, which is packed already, while its products run.
    auto decay = [&](u32 numbers) {
#pragma unroll
      for (int i = 0; i < KP / 8; i++) {
        float decay_0 = decay_of_head, decay_1 = decay_of_head;
        if constexpr (!PER_HEAD) {
          asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                       : "=f"(decay_0), "=f"(decay_1)
                       : "r"(numbers + (8 * i + 2 * quad) * 4)
                       : "memory");
        }
        state[4 * i] *= decay_0, state[4 * i + 1] *= decay_1;
        state[4 * i + 2] *= decay_0, state[4 * i + 3] *= decay_1;
      }
    };

    take_values(values, smalls, full, 0, chunks > 0);
    begin(stages, smalls, chunks > 0);
    if (chunks > 0) decay(smalls);
    // Stages are unrolled so that descriptors are constants relative to the block's base: computed from a variable stage they pass
    // through vector registers, and every wgmma waits until the preceding one has read its descriptor.
    for (int round = 0; round * STAGES < chunks; round++) {
#pragma unroll
      for (int s = 0; s < STAGES; s++) {
        const int c = round * STAGES + s;
        if (c >= chunks) break;
        const u32 stage = stages + s * MATRIX_BYTES, small = smalls + s * SMALL_BYTES;
        const int n = (s + 1) % STAGES;
        const u32 next = stages + n * MATRIX_BYTES, next_small = smalls + n * SMALL_BYTES;
        auto take_next = [&](u32 (&to)[16]) {
          take_values(to, next_small, full + n * 8, (s + 1 == STAGES ? round + 1 : round) % 2, c + 1 < chunks);
        };
        u32 coming[16];
        if (EARLY) take_next(coming);
        if (!EARLY) from_start.take(small, quad);
        wgmma_wait<0>();
        keep(x);
        if constexpr (EARLY) {
          wgmma_fence();
          ask(stage, 0, KP / 32);
        }
        u32 left[16];
#pragma unroll
        for (int i = 0; i < 16; i++) {
          const float f = factor[i % 2];
          left[i] = pack(widen_low(values[i]) * f - from_start.times(x, 2 * i), widen_high(values[i]) * f - from_start.times(x, 2 * i + 1));
        }
        if constexpr (EARLY) {
#pragma unroll
          for (int i = 0; i < 16; i++) values[i] = coming[i];
        }
        OfTokens to_end;
        to_end.take(small + TO_END_AT, quad);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++) {
          const u64 m = descriptor_k_major<128>(stage + M_AT) + step * 2;
          wgmma_rs<0>(x, left[step * 4], left[step * 4 + 1], left[step * 4 + 2], left[step * 4 + 3], m, step > 0);
        }
        wgmma_commit();
        ask(stage, EARLY ? KP / 32 : 0, KP / 16);
        wgmma_wait<1>();
        keep(x);
#pragma unroll
        for (int i = 0; i < 16; i++) left[i] = pack(to_end.times(x, 2 * i), to_end.times(x, 2 * i + 1));
        from_start.take(small, quad);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++) {
          const u64 ke = descriptor_mn_major<128>(stage + KE_AT, BOX_BYTES) + step * 128;
          wgmma_rs<1>(state, left[step * 4], left[step * 4 + 1], left[step * 4 + 2], left[step * 4 + 3], ke, 1);
        }
        wgmma_commit();
        u32 whole[16];  // U without the scales of the state update
        if constexpr (PER_HEAD) {
#pragma unroll
          for (int i = 0; i < 16; i++) whole[i] = pack(x[2 * i], x[2 * i + 1]);
          wgmma_wait<1>();
          keep(out);
#pragma unroll
          for (int i = 0; i < 32; i++) out[i] = from_start.times(out, i);
          wgmma_fence();
        }
#pragma unroll
        for (int step = 0; step < 4; step++) {
          const u64 aq = descriptor_k_major<128>(stage + AQ_AT) + step * 2;
          const u32* a = (PER_HEAD ? whole : left) + step * 4;
          wgmma_rs<0>(out, a[0], a[1], a[2], a[3], aq, 1);
        }
        wgmma_commit();
        wgmma_wait<1>();
        keep(state);
        const float back[2] = {inverse_of_power(factor[0]), inverse_of_power(factor[1])};
        if (!EARLY) take_next(values);
        // The next chunk's first product runs while this one's outputs are stored.
        begin(next, next_small, c + 1 < chunks);
        if (EARLY && c + 1 < chunks) decay(next_small);
        wgmma_wait<1>();
        keep(out);
        mbarrier_arrive(empty + s * 8);
        if (c > 0) named_barrier_sync(OUTPUTS_READ + group, BARRIER_THREADS);
        put_outputs(tiles + group * BOX_BYTES, out, back, warp, lane);
        named_barrier_arrive(OUTPUTS_PUT + group, BARRIER_THREADS);
        if (!EARLY && c + 1 < chunks) decay(next_small);
      }
    }
    wgmma_wait<0>();
    const float back[2] = {inverse_of_power(factor[0]), inverse_of_power(factor[1])};
#pragma unroll
    for (int i = 0; i < KP / 2; i++) {
      const int channel = i / 4 * 8 + quad * 2 + i % 2, r = i / 2 % 2, at = column + row + r * 8;
      if (at < VD && (KD % 64 == 0 || channel < KD)) final_state[state_at + (i64)channel * VD + at] = state[i] * back[r];
    }
  }
}
