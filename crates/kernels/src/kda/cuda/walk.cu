// The state's walk over the chunks of a sequence, for Hopper: with the packages of prepare.cu,
//
//   X = V - kd S;  U = m X;  O = qd S + aq U;  S <- Diag(e^{G_end}) S + ke^T U
//
// A warpgroup has 64 value columns of a head and keeps S^T [64, KP] in f32 registers. All products are taken transposed
// (S^T kd^T and so on), so that every left operand is a register tile which the warpgroup has just computed and every right
// one lies in shared memory as prepare.cu left it: nothing but values and outputs passes between threads.
//
// Operands are f16. Columns of S and V never meet, so each has a power of two as factor that keeps the larger of both
// between 2^-6 and 2^4: f16's range is no limit, and its three bits more than bf16's hold the error (README.md).
//
// One more warpgroup brings packages and values, STAGES chunks ahead; two of them compute only with its registers, and it is
// a whole one because registers change hands by warpgroups.
//
// Launch: grid (ceil(VD / (64 WARPGROUPS)), HV, sequences), 128 (WARPGROUPS + 1) threads, SHARED_BYTES of dynamic
// shared memory. Macros: KD (up to 128), VD, STORAGE (0 or 1), WARPGROUPS, STAGES, DTYPE=f16. Arguments as in recurrent.cu.

constexpr int VALUE_BYTES = BOX_BYTES;                  // 64 tokens of 64 columns
constexpr int MATRIX_BYTES = DECAY_AT;                 // of a package, without its decays
constexpr int SMALL_BYTES = KP * 4 + WARPGROUPS * VALUE_BYTES;  // decays, then values
constexpr int CORNER_BYTES = CHUNK * 32;
constexpr int SHARED_BYTES = STAGES * (MATRIX_BYTES + SMALL_BYTES) + WARPGROUPS * 4 * CORNER_BYTES + 1024;  // to align

DEVICE float over_quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// The larger magnitudes of two pairs of halves, without signs.
DEVICE u32 larger(u32 a, u32 b) { return __vmaxu2(a, b & 0x7fff7fff); }

extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS + 128, 1)
    kda_walk(const unsigned char* packages, const u16* v, const void* initial, u16* o, float* final_state,
             const int* offsets, const int* slots, int tokens, int value_heads, int types) {
  extern __shared__ unsigned char dynamic[];
  __shared__ u64 barriers[2 * STAGES];
  const u32 stages = (shared_address(dynamic) + 1023) & ~1023u;
  const u32 smalls = stages + STAGES * MATRIX_BYTES;
  const u32 full = shared_address(barriers), empty = full + STAGES * 8;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int value_head = blockIdx.y, slot = slots ? slots[blockIdx.z] : blockIdx.z;
  const Sequence sequence = find_sequence(offsets, blockIdx.z, tokens);
  const i64 token_stride = (i64)value_heads * VD;
  const i64 values_at = sequence.first * token_stride + (i64)value_head * VD;
  const int block_column = blockIdx.x * WARPGROUPS * 64;

  if (slot < 0) {  // Padding: its rows of o are 0.
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
    if constexpr (WARPGROUPS == 2) registers_decrease<40>();
    const unsigned char* package = packages + ((i64)sequence.chunk_slot * value_heads + value_head) * PACKAGE_BYTES;
    const u16* values = v + values_at;
    for (int c = 0; c < chunks; c++) {
      const int s = c % STAGES;
      const u32 stage = stages + s * MATRIX_BYTES, small = smalls + s * SMALL_BYTES, barrier = full + s * 8;
      if (c >= STAGES) mbarrier_wait(empty + s * 8, (c / STAGES - 1) % 2);
      if (thread == WARPGROUPS * 128) {
        mbarrier_expect(barrier, PACKAGE_BYTES);
        bulk_load(stage, package, MATRIX_BYTES, barrier);
        bulk_load(small, package + DECAY_AT, KP * 4, barrier);
      }
      for (int group = 0; group < WARPGROUPS; group++) {
        load_values(small + KP * 4 + group * VALUE_BYTES, values, token_stride, sequence.count - c * CHUNK,
                    block_column + group * 64, thread % 128);
      }
      arrive_with_copies(barrier);
      package += (i64)value_heads * PACKAGE_BYTES;
      values += CHUNK * token_stride;
    }
  } else {
  if constexpr (WARPGROUPS == 2) registers_increase<232>();
  const int group = warp / 4, row = lane / 4, quad = lane % 4;
  const int column = block_column + warp * 16;  // of the warp
  const u32 corner = smalls + STAGES * SMALL_BYTES + warp * CORNER_BYTES;
  const i64 state_at = ((i64)slot * value_heads + value_head) * KD * VD;
  float state[KP / 2];  // [4 i + 2 r + c]: column `row` + 8 r of the warp, channel 8 i + 2 `quad` + c
  float factor[2] = {1.0f, 1.0f}, largest[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < KP / 2; i++) {
    const int channel = i / 4 * 8 + quad * 2 + i % 2, r = i / 2 % 2, at = column + row + r * 8;
    const bool inside = initial != nullptr && at < VD && (KD % 64 == 0 || channel < KD);
    const i64 from = state_at + (i64)channel * VD + at;
    state[i] = !inside ? 0.0f : types & NARROW_STATE ? bf16_element(initial, from) : ((const float*)initial)[from];
    largest[r] = fmaxf(largest[r], fabsf(state[i]));
  }
  const int matrix = lane / 8, in_matrix = lane % 8;

  for (int c = 0; c < chunks; c++) {
    const u32 stage = stages + c % STAGES * MATRIX_BYTES, small = smalls + c % STAGES * SMALL_BYTES;
    mbarrier_wait(full + c % STAGES * 8, c / STAGES % 2);
    // Values: words[4 b + 2 n + r] has column `row` + 8 r, tokens 16 b + 8 n + 2 `quad` and the next.
    u32 values[16];
    u32 large[2] = {0, 0};
    const u32 value_tile = small + KP * 4 + group * VALUE_BYTES;
#pragma unroll
    for (int b = 0; b < 4; b++) {
      u32 words[4];
      const int token = b * 16 + matrix / 2 * 8 + in_matrix;
      load_matrices_transposed(words, value_tile + token * 128 + (((warp % 4 * 2 + matrix % 2) ^ token % 8) << 4));
#pragma unroll
      for (int i = 0; i < 4; i++) {
        values[b * 4 + i] = words[i];
        large[i % 2] = larger(large[i % 2], words[i]);
      }
    }
    bool rescale = false;
    float top[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float of_values = fmaxf(widen_low(large[r]), widen_high(large[r])) * factor[r];
      top[r] = over_quad_max(fmaxf(largest[r], of_values));
      rescale |= top[r] > 16.0f || (top[r] < 0.015625f && top[r] > 0.0f);
    }
    if (__any_sync(~0u, rescale)) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        // 2^-e for a top of 2^e to 2^{e + 1}.
        const u32 exponent = min(max(__float_as_uint(top[r]) >> 23, 27u), 227u);
        const float by = top[r] > 0.0f ? __uint_as_float((254 - exponent) << 23) : 1.0f;
        const float limited = fminf(fmaxf(factor[r] * by, 8.6736174e-19f), 1.1529215e18f);  // 2^-60 to 2^60
        const float change = limited / factor[r];
        factor[r] = limited;
#pragma unroll
        for (int i = 0; i < KP / 8; i++) state[4 * i + 2 * r] *= change, state[4 * i + 2 * r + 1] *= change;
      }
    }
    u32 packed[KP / 4];
#pragma unroll
    for (int i = 0; i < KP / 4; i++) packed[i] = pack(state[2 * i], state[2 * i + 1]);

    float x[32], out[32];
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < KP / 16; step++) {
      const u64 kd = descriptor_k_major<128>(stage + step / 4 * BOX_BYTES) + step % 4 * 2;
      const u32* a = packed + step * 4;
      wgmma_rs<0>(x, a[0], a[1], a[2], a[3], kd, step > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    keep(x);
    u32 left[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
      const float f = factor[i % 2];
      left[i] = pack(widen_low(values[i]) * f - x[2 * i], widen_high(values[i]) * f - x[2 * i + 1]);
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++) {
      const u64 m = descriptor_k_major<128>(stage + M_AT) + step * 2;
      wgmma_rs<0>(x, left[step * 4], left[step * 4 + 1], left[step * 4 + 2], left[step * 4 + 3], m, step > 0);
    }
    wgmma_commit();
#pragma unroll
    for (int step = 0; step < KP / 16; step++) {
      const u64 qd = descriptor_k_major<128>(stage + QD_AT + step / 4 * BOX_BYTES) + step % 4 * 2;
      const u32* a = packed + step * 4;
      wgmma_rs<0>(out, a[0], a[1], a[2], a[3], qd, step > 0);
    }
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < KP / 8; i++) {
      float decay_0, decay_1;
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(decay_0), "=f"(decay_1)
                   : "r"(small + (8 * i + 2 * quad) * 4)
                   : "memory");
      state[4 * i] *= decay_0, state[4 * i + 1] *= decay_1;
      state[4 * i + 2] *= decay_0, state[4 * i + 3] *= decay_1;
    }
    wgmma_wait<1>();
    keep(x);
#pragma unroll
    for (int i = 0; i < 16; i++) left[i] = pack(x[2 * i], x[2 * i + 1]);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++) {
      const u64 ke = descriptor_mn_major<128>(stage + KE_AT, BOX_BYTES) + step * 128;
      wgmma_rs<1>(state, left[step * 4], left[step * 4 + 1], left[step * 4 + 2], left[step * 4 + 3], ke, 1);
    }
    wgmma_commit();
#pragma unroll
    for (int step = 0; step < 4; step++) {
      const u64 aq = descriptor_k_major<128>(stage + AQ_AT) + step * 2;
      wgmma_rs<0>(out, left[step * 4], left[step * 4 + 1], left[step * 4 + 2], left[step * 4 + 3], aq, 1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    keep(state);
    largest[0] = largest[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < KP / 2; i++) largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], fabsf(state[i]));
    wgmma_wait<0>();
    keep(out);
    mbarrier_arrive(empty + c % STAGES * 8);
    const float back[2] = {1.0f / factor[0], 1.0f / factor[1]};
    store_outputs(corner, o + values_at + c * CHUNK * token_stride, token_stride, sequence.count - c * CHUNK, column, out,
                  back, lane);
  }
  const float back[2] = {1.0f / factor[0], 1.0f / factor[1]};  // exact: powers of two
#pragma unroll
  for (int i = 0; i < KP / 2; i++) {
    const int channel = i / 4 * 8 + quad * 2 + i % 2, r = i / 2 % 2, at = column + row + r * 8;
    if (at < VD && (KD % 64 == 0 || channel < KD)) final_state[state_at + (i64)channel * VD + at] = state[i] * back[r];
  }
  }
}
