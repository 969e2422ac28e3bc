// One token of kda for many sequences: the formulas of recurrent.cu, with states on their way in all the time.
//
// A block takes one (sequence, value head) after another. A thread copies the elements of the state that it will compute
// with into its own corner of shared memory, STAGES states ahead, so that memory never waits for arithmetic and a corner
// needs no barrier: recurrent.cu has bytes on their way only between a block's start and its first sum, and fewer of
// them than registers can hold. The bulk copy engine was slower here: 3.7 TB/s.
//
// Shapes: as in recurrent.cu, every sequence with one token at most, states f32, slots as there.
// Launch: grid (blocks), 256 threads, SHARED_BYTES of dynamic shared memory. A block's heads are neighbours in memory.
// Macros: KD, VD (32, 64 or 128), STAGES, STORAGE (gates.cuh; 0 or 1). Arguments as in recurrent.cu; `sequences` of them.

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int LANES = VD / 4;                      // of a row of the state
constexpr int ROWS = THREADS / LANES;              // that the block has at once
constexpr int PASSES = (KD + ROWS - 1) / ROWS;     // rows of a thread
constexpr int STAGE_BYTES = PASSES * THREADS * 16;
constexpr int SHARED_BYTES = STAGES * STAGE_BYTES;
static_assert(LANES == 8 || LANES == 16 || LANES == 32, "a row of the state lies within a warp");

DEVICE float4 load_four(u32 from) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(from));
  return x;
}

DEVICE void store_streaming(float* to, const float4& x) {
  asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

DEVICE void add_times(float4& sum, const float4& x, float factor) {
  sum.x += x.x * factor, sum.y += x.y * factor, sum.z += x.z * factor, sum.w += x.w * factor;
}

DEVICE void add_over_rows(float4& x) {
#pragma unroll
  for (int step = 16; step >= LANES; step /= 2) {
    x.x += __shfl_xor_sync(~0u, x.x, step), x.y += __shfl_xor_sync(~0u, x.y, step);
    x.z += __shfl_xor_sync(~0u, x.z, step), x.w += __shfl_xor_sync(~0u, x.w, step);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    kda_decode(const u16* q, const u16* k, const u16* v, const void* g, const void* beta, const void* a_log,
               const void* dt_bias, const float* initial, u16* o, float* final_state, const int* offsets,
               const int* slots, int sequences, int heads, int value_heads, int gate, int types, int l2norm,
               float lower_bound, float beta_factor, float scale) {
  extern __shared__ __align__(16) unsigned char dynamic[];
  __shared__ float key[2][KD], query[2][KD], decay[2][KD], norms[2][3][WARPS];
  __shared__ __align__(16) float sums[2][2][WARPS][VD];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int row = thread / LANES, column = thread % LANES * 4;
  const u32 corner = shared_address(dynamic) + thread * 16;
  const int items = sequences * value_heads;
  const int begin = (int)((i64)items * blockIdx.x / gridDim.x), end = (int)((i64)items * (blockIdx.x + 1) / gridDim.x);

  auto slot_of = [&](int item) { return slots ? slots[item / value_heads] : item / value_heads; };
  auto token_of = [&](int item) {  // -1: this sequence has none
    const int sequence = item / value_heads;
    return offsets == nullptr ? sequence : offsets[sequence + 1] > offsets[sequence] ? offsets[sequence] : -1;
  };
  auto state_at = [&](int slot, int item) {
    return ((i64)slot * value_heads + item % value_heads) * KD * VD + row * VD + column;
  };
  auto fetch = [&](int item) {
    const int slot = item < end ? slot_of(item) : -1;
    if (slot >= 0) {
      const float* from = initial + state_at(slot, item);
      const u32 to = corner + (item - begin) % STAGES * STAGE_BYTES;
#pragma unroll
      for (int p = 0; p < PASSES; p++) {
        if (KD % ROWS == 0 || p * ROWS + row < KD) copy_async<16>(to + p * THREADS * 16, from + p * ROWS * VD);
      }
    }
    copy_commit();
  };
  for (int item = begin; item < begin + STAGES; item++) fetch(item);
  // A token's operands: one channel a thread, fetched an item ahead.
  float next_key = 0, next_query = 0, next_gate = 0;
  auto fetch_operands = [&](int item) {
    const int token = item < end ? token_of(item) : -1;
    if (token < 0 || thread >= KD) return;
    const int head = item % value_heads;
    const i64 at = ((i64)token * heads + head / (value_heads / heads)) * KD + thread;
    next_key = widen(k[at]), next_query = widen(q[at]);
    next_gate = element(g, ((i64)token * value_heads + head) * KD + thread, types & WIDE_GATE);
  };
  fetch_operands(begin);

  for (int item = begin; item < end; item++) {
    const int half = (item - begin) % 2, head = item % value_heads, token = token_of(item), slot = slot_of(item);
    const bool live = token >= 0 && slot >= 0;
    float kk = 0, qq = 0, qk = 0;
    if (thread < KD && live) {
      const float rate = gate ? expf(element(a_log, head, types & WIDE_RATE)) : 0.0f;
      const float bias = gate && dt_bias ? element(dt_bias, head * KD + thread, types & WIDE_BIAS) : 0.0f;
      decay[half][thread] = expm1f(log_decay(next_gate, gate, rate, bias, lower_bound));
      key[half][thread] = next_key, query[half][thread] = next_query;
      kk = next_key * next_key, qq = next_query * next_query, qk = next_key * next_query;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      kk += __shfl_xor_sync(~0u, kk, step);
      qq += __shfl_xor_sync(~0u, qq, step);
      qk += __shfl_xor_sync(~0u, qk, step);
    }
    if (lane == 0) norms[half][0][warp] = kk, norms[half][1][warp] = qq, norms[half][2][warp] = qk;
    fetch_operands(item + 1);
    float4 value = {0, 0, 0, 0};
    float write = 0;
    const i64 own = (i64)token * value_heads + head;
    if (live) {
      write = strength(element(beta, own, types & WIDE_BETA), beta_factor);
      const uint2 words = *(const uint2*)(v + own * VD + column);
      value = {widen_low(words.x), widen_high(words.x), widen_low(words.y), widen_high(words.y)};
    }
    copy_wait<STAGES - 1>();
    __syncthreads();
    float4 rows[PASSES], from_key = {0, 0, 0, 0}, from_query = {0, 0, 0, 0};
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
      const int r = p * ROWS + row;
      if (slot < 0 || (KD % ROWS != 0 && r >= KD)) continue;
      rows[p] = load_four(corner + (item - begin) % STAGES * STAGE_BYTES + p * THREADS * 16);
      if (!live) continue;
      add_times(rows[p], rows[p], decay[half][r]);
      add_times(from_key, rows[p], key[half][r]);
      add_times(from_query, rows[p], query[half][r]);
    }
    add_over_rows(from_key);
    add_over_rows(from_query);
    if (lane < LANES) {
      *(float4*)&sums[half][0][warp][column] = from_key;
      *(float4*)&sums[half][1][warp][column] = from_query;
    }
    __syncthreads();
    fetch(item + STAGES);  // Into the corner that has just been read.
    if (live) {
      kk = qq = qk = 0;
#pragma unroll
      for (int w = 0; w < WARPS; w++) kk += norms[half][0][w], qq += norms[half][1][w], qk += norms[half][2][w];
      const float key_factor = l2norm ? rsqrtf(kk + 1e-6f) : 1.0f;
      const float query_factor = scale * (l2norm ? rsqrtf(qq + 1e-6f) : 1.0f);
      qk *= key_factor * query_factor;
      from_key = from_query = {0, 0, 0, 0};
#pragma unroll
      for (int w = 0; w < WARPS; w++) {
        add_times(from_key, *(const float4*)&sums[half][0][w][column], 1.0f);
        add_times(from_query, *(const float4*)&sums[half][1][w][column], 1.0f);
      }
      float4 written = value;
      add_times(written, from_key, -key_factor);
      written.x *= write, written.y *= write, written.z *= write, written.w *= write;
      if (thread < LANES) {
        float4 out = {0, 0, 0, 0};
        add_times(out, from_query, query_factor);
        add_times(out, written, qk);
        *(uint2*)(o + own * VD + column) = {narrow(out.x, out.y), narrow(out.z, out.w)};
      }
      written.x *= key_factor, written.y *= key_factor, written.z *= key_factor, written.w *= key_factor;
#pragma unroll
      for (int p = 0; p < PASSES; p++) {
        if (KD % ROWS == 0 || p * ROWS + row < KD) add_times(rows[p], written, key[half][p * ROWS + row]);
      }
    } else if (token >= 0 && thread < LANES) {
      *(uint2*)(o + own * VD + column) = {0, 0};  // Padding.
    }
    if (slot >= 0) {
      float* to = final_state + state_at(slot, item);
#pragma unroll
      for (int p = 0; p < PASSES; p++) {
        if (KD % ROWS == 0 || p * ROWS + row < KD) store_streaming(to + p * ROWS * VD, rows[p]);
      }
    }
  }
}
