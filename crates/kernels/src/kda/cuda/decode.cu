// One token of kda for many sequences, on Hopper: the formulas of recurrent.cu, with states in flight all the time.
//
// A block takes one (sequence, value head) after another. Its states come and go by bulk copies, STAGES of them in shared
// memory: while one is computed with, the next are on their way in and the last on its way out, so that memory never waits
// for arithmetic. recurrent.cu has as many bytes in flight only between a block's start and its first sum.
//
// Shapes: as in recurrent.cu, every sequence with one token at most, states f32, slots as there.
// Launch: grid (blocks), 256 threads, SHARED_BYTES of dynamic shared memory. A block's heads are neighbours in memory.
// Macros: KD, VD (a multiple of 4, up to 128), STAGES, STORAGE (gates.cuh; 0 or 1), DTYPE. Arguments as in recurrent.cu;
// `sequences` of them.

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int STATE_BYTES = KD * VD * 4;
constexpr int LANES = VD / 4 < 32 ? VD / 4 : 32;  // of a row of the state; a warp has one row at a time
constexpr int PASSES = (KD + WARPS - 1) / WARPS;
constexpr int SHARED_BYTES = STAGES * STATE_BYTES + 128;

DEVICE void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

DEVICE void bulk_store(void* to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}

DEVICE float4 load_four(u32 from) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(from));
  return x;
}

DEVICE void store_four(u32 to, const float4& x) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

DEVICE void add_times(float4& sum, const float4& x, float factor) {
  sum.x += x.x * factor, sum.y += x.y * factor, sum.z += x.z * factor, sum.w += x.w * factor;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    kda_decode(const u16* q, const u16* k, const u16* v, const void* g, const void* beta, const void* a_log,
               const void* dt_bias, const float* initial, u16* o, float* final_state, const int* offsets,
               const int* slots, int sequences, int heads, int value_heads, int gate, int types, int l2norm,
               float lower_bound, float beta_factor, float scale) {
  extern __shared__ unsigned char dynamic[];
  __shared__ u64 barriers[STAGES];
  __shared__ float key[2][KD], query[2][KD], decay[2][KD], norms[2][3][WARPS];
  __shared__ __align__(16) float sums[2][WARPS][VD];
  const u32 states = (shared_address(dynamic) + 127) & ~127u, full = shared_address(barriers);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int items = sequences * value_heads;
  const int begin = (int)((i64)items * blockIdx.x / gridDim.x), end = (int)((i64)items * (blockIdx.x + 1) / gridDim.x);

  auto slot_of = [&](int item) {
    const int sequence = item / value_heads;
    return slots ? slots[sequence] : sequence;
  };
  auto state_at = [&](int item) { return ((i64)slot_of(item) * value_heads + item % value_heads) * KD * VD; };
  auto token_of = [&](int item) {  // -1: this sequence has none
    const int sequence = item / value_heads;
    return offsets == nullptr ? sequence : offsets[sequence + 1] > offsets[sequence] ? offsets[sequence] : -1;
  };
  if (thread == 0) {
    for (int s = 0; s < STAGES; s++) mbarrier_init(full + s * 8, 1);
    fence_barrier_init();
  }
  __syncthreads();
  auto fetch = [&](int item) {
    const int s = (item - begin) % STAGES;
    mbarrier_expect(full + s * 8, slot_of(item) >= 0 ? STATE_BYTES : 0);
    if (slot_of(item) >= 0) bulk_load(states + s * STATE_BYTES, initial + state_at(item), STATE_BYTES, full + s * 8);
  };
  if (thread == 0) {
    for (int item = begin; item < min(end, begin + STAGES - 1); item++) fetch(item);
  }
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
    const int n = item - begin, s = n % STAGES, half = n % 2, head = item % value_heads, token = token_of(item);
    const bool live = token >= 0 && slot_of(item) >= 0;
    const u32 state = states + s * STATE_BYTES;
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
      if (lane < LANES) {
        const uint2 words = *(const uint2*)(v + own * VD + lane * 4);
        value = {widen_low(words.x), widen_high(words.x), widen_low(words.y), widen_high(words.y)};
      }
    }
    __syncthreads();
    mbarrier_wait(full + s * 8, n / STAGES % 2);
    if (live) {
      kk = qq = qk = 0;
#pragma unroll
      for (int w = 0; w < WARPS; w++) kk += norms[half][0][w], qq += norms[half][1][w], qk += norms[half][2][w];
      const float key_factor = l2norm ? rsqrtf(kk + 1e-6f) : 1.0f;
      const float query_factor = scale * (l2norm ? rsqrtf(qq + 1e-6f) : 1.0f);
      qk *= key_factor * query_factor;
      float4 rows[PASSES], from_key = {0, 0, 0, 0}, from_query = {0, 0, 0, 0};
#pragma unroll
      for (int p = 0; p < PASSES; p++) {
        const int r = p * WARPS + warp;
        if (lane >= LANES || (KD % WARPS != 0 && r >= KD)) continue;
        rows[p] = load_four(state + (r * VD + lane * 4) * 4);
        add_times(rows[p], rows[p], decay[half][r]);
        add_times(from_key, rows[p], key[half][r]);
        add_times(from_query, rows[p], query[half][r]);
      }
      if (lane < LANES) {
        *(float4*)&sums[0][warp][lane * 4] = from_key;
        *(float4*)&sums[1][warp][lane * 4] = from_query;
      }
      __syncthreads();
      from_key = from_query = {0, 0, 0, 0};
      if (lane < LANES) {
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
          add_times(from_key, *(const float4*)&sums[0][w][lane * 4], 1.0f);
          add_times(from_query, *(const float4*)&sums[1][w][lane * 4], 1.0f);
        }
      }
      float4 written = value;
      add_times(written, from_key, -key_factor);
      written.x *= write, written.y *= write, written.z *= write, written.w *= write;
      if (warp == 0 && lane < LANES) {
        float4 out = {0, 0, 0, 0};
        add_times(out, from_query, query_factor);
        add_times(out, written, qk);
        *(uint2*)(o + own * VD + lane * 4) = {narrow(out.x, out.y), narrow(out.z, out.w)};
      }
#pragma unroll
      for (int p = 0; p < PASSES; p++) {
        const int r = p * WARPS + warp;
        if (lane >= LANES || (KD % WARPS != 0 && r >= KD)) continue;
        add_times(rows[p], written, key[half][r] * key_factor);
        store_four(state + (r * VD + lane * 4) * 4, rows[p]);
      }
      fence_async_shared();
    } else if (token >= 0 && warp == 0 && lane < LANES) {
      *(uint2*)(o + own * VD + lane * 4) = {0, 0};  // Padding.
    }
    __syncthreads();
    if (thread == 0) {
      if (slot_of(item) >= 0) bulk_store(final_state + state_at(item), state, STATE_BYTES);
      tma_store_commit();
      // The stage of the item before this one is free when its store has read it.
      tma_store_wait_read<1>();
      if (item + STAGES - 1 < end) fetch(item + STAGES - 1);
    }
  }
  if (thread == 0) tma_store_wait<0>();
}
