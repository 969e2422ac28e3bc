// The recurrence of kda and of gated_delta, token by token, with the state in registers: decode steps, and every shape and type
// that the chunk kernels do not take.
//
//   S <- Diag(e^g) S;  u = beta (v - k^T S);  S <- S + k u^T;  o = q^T S      q scaled, q and k optionally normalized
//
// A block has COLUMNS value columns of one value head of one sequence: columns are independent. A lane has VECTOR columns of
// every ROWS-th key channel, so that a warp reads whole cache lines of the state. One pass over the state gives k^T S and q^T S
// of the decayed state together, and o = q^T S + (q . k) u needs no second: one barrier for the sums, one for the next
// token's operands. A state that is read once and written once is all the memory traffic of a decode step.
//
// Shapes: q, k [total, H, KD]; v, o [total, HV, VD]; g [total, HV, KD] or, for one decay a head, [total, HV]; beta [total, HV];
// states [slots, HV, KD, VD].
// Launch: grid (ceil(VD / COLUMNS), HV, sequences), THREADS threads.
// Macros: KD, VD, COLUMNS (a power of two times VECTOR), VECTOR (4, 2 or 1, dividing VD), THREADS, ONE_TOKEN
// (1: no sequence has more; saves registers), BLOCKS (resident blocks
// per SM: caps the registers), STORAGE (gates.cuh), PER_HEAD (1: a head has one decay, which
// every thread computes; 0: a channel has one).
// Arguments: offsets is cu_seqlens or null, then each sequence has `tokens`; slots is state_indices or null (sequence n
// has slot n); initial may be null (zeros), or final_state, which is then updated in place; q_row .. beta_row: strides in elements
// between tokens of q, k, v and beta; ahead: a block prefetches the state of the block `ahead` further in launch order into L2,
// 0 for none. types, gate: gates.cuh.

constexpr int LANES = COLUMNS / VECTOR;           // lanes of a row of the state
constexpr int ROWS = THREADS / LANES;             // rows that the block reads at once
constexpr int PASSES = (KD + ROWS - 1) / ROWS;    // rows of a thread
constexpr int WARPS = THREADS / 32;
static_assert(LANES <= 32, "a row of the state lies within a warp");  // words: allow(lies)

struct Vector {
  float at[VECTOR];
};

DEVICE Vector load_state(const void* from, i64 at, bool narrow_state) {
  Vector x;
  if (narrow_state) {
#pragma unroll
    for (int i = 0; i < VECTOR; i++) x.at[i] = bf16_element(from, at + i);
  } else if (VECTOR == 4) {
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.at[0]), "=f"(x.at[VECTOR > 1 ? 1 : 0]), "=f"(x.at[VECTOR > 2 ? 2 : 0]), "=f"(x.at[VECTOR - 1])
                 : "l"((const float*)from + at));
  } else {
#pragma unroll
    for (int i = 0; i < VECTOR; i++) x.at[i] = ((const float*)from)[at + i];
  }
  return x;
}

DEVICE void store_state(float* to, const Vector& x) {
  if (VECTOR == 4) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.at[0]), "f"(x.at[VECTOR > 1 ? 1 : 0]),
                 "f"(x.at[VECTOR > 2 ? 2 : 0]), "f"(x.at[VECTOR - 1])
                 : "memory");
  } else {
#pragma unroll
    for (int i = 0; i < VECTOR; i++) to[i] = x.at[i];
  }
}

DEVICE void store_output(void* o, i64 at, float x) {
  if (STORAGE == 2) {
    ((float*)o)[at] = x;
  } else {
    ((u16*)o)[at] = (u16)narrow(x, 0.0f);
  }
}

// Prefetches the state of the block that is `ahead` further in launch order into L2: memory stays busy
// while the blocks of an SM compute and are replaced by the next ones.
DEVICE void announce(const void* initial, const int* slots, int ahead, int value_heads, int bytes) {
  const int of_sequence = gridDim.x * gridDim.y;
  const i64 block = ahead + blockIdx.x + (i64)gridDim.x * blockIdx.y + (i64)of_sequence * blockIdx.z;
  const i64 sequence = block / of_sequence;
  if (sequence >= gridDim.z) return;
  const int slot = slots ? slots[sequence] : (int)sequence;
  if (slot < 0) return;
  const int within = (int)(block - sequence * of_sequence), first = within % gridDim.x * COLUMNS;
  const i64 at = ((i64)slot * value_heads + within / gridDim.x) * KD * VD + first;
  const int line = 128 / bytes, row_lines = (COLUMNS + line - 1) / line;
  for (int i = threadIdx.x; i < KD * row_lines; i += THREADS) {
    const int column = i % row_lines * line;
    const void* const there = (const char*)initial + (at + i / row_lines * VD + column) * bytes;
    if (first + column < VD) asm volatile("prefetch.global.L2 [%0];" ::"l"(there));
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    kda_recurrent(const void* q, const void* k, const void* v, const void* g, const void* beta, const void* a_log,
                  const void* dt_bias, const void* initial, void* o, float* final_state, const int* offsets,
                  const int* slots, int tokens, int heads, int value_heads, int gate, int types, int l2norm,
                  float lower_bound, float beta_factor, float scale, int q_row, int k_row, int v_row, int beta_row, int ahead) {
  __shared__ float key[KD], query[KD], decay[PER_HEAD ? 1 : KD], biases[PER_HEAD ? 1 : KD];
  __shared__ float norms[3][WARPS];                  // k . k, q . q, q . k of each warp's channels
  __shared__ float sums[2][WARPS][COLUMNS];          // k^T S and q^T S of each warp's rows
  let_next_start();
  wait_for_previous();
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int value_head = blockIdx.y, head = value_head / (value_heads / heads), sequence = blockIdx.z;
  const int first = offsets ? offsets[sequence] : sequence * tokens;
  const int count = offsets ? offsets[sequence + 1] - first : tokens;
  const int slot = slots ? slots[sequence] : sequence;
  const int column = blockIdx.x * COLUMNS + thread % LANES * VECTOR, row = thread / LANES;
  const bool inside = column < VD;

  if (slot < 0) {  // Padding: its rows of o are 0.
    for (int t = 0; t < count; t++) {
      if (row == 0 && inside) {
        for (int i = 0; i < VECTOR; i++) store_output(o, ((i64)(first + t) * value_heads + value_head) * VD + column + i, 0);
      }
    }
    return;
  }
  // A token's operands are fetched ahead of their use, the first token's before the state: after it they would arrive
  // last, and gates, norms and a barrier would then wait for memory a second time.
  constexpr int CHANNELS = (KD + THREADS - 1) / THREADS;
  float next_key[CHANNELS], next_query[CHANNELS], next_gate[PER_HEAD ? 1 : CHANNELS], next_write = 0;
  Vector next_value;
  auto fetch = [&](int t) {
    const i64 token = first + t, own = token * value_heads + value_head;
    const i64 key_at = token * k_row + head * KD, query_at = token * q_row + head * KD;
    const i64 value_at = token * v_row + value_head * VD + column;
#pragma unroll
    for (int i = 0; i < CHANNELS; i++) {
      const int c = i * THREADS + thread;
      if (c >= KD) continue;
      next_key[i] = element(k, key_at + c, false), next_query[i] = element(q, query_at + c, false);
      if constexpr (!PER_HEAD) next_gate[i] = element(g, own * KD + c, types & WIDE_GATE);
    }
    if constexpr (PER_HEAD) next_gate[0] = element(g, own, types & WIDE_GATE);
    next_write = element(beta, token * beta_row + value_head, types & WIDE_BETA);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) next_value.at[i] = inside ? element(v, value_at + i, false) : 0.0f;
  };
  if (count > 0) fetch(0);
  const float rate = gate ? expf(element(a_log, value_head, types & WIDE_RATE)) : 0.0f;
  const float bias_of_head = PER_HEAD && gate && dt_bias ? element(dt_bias, value_head, types & WIDE_BIAS) : 0.0f;
  if (!PER_HEAD && gate) {
    for (int c = thread; c < KD; c += THREADS) {
      biases[c] = dt_bias ? element(dt_bias, value_head * KD + c, types & WIDE_BIAS) : 0.0f;
    }
  }
  const i64 state_at = ((i64)slot * value_heads + value_head) * KD * VD + column;
  Vector state[PASSES];
#pragma unroll
  for (int p = 0; p < PASSES; p++) {
    const int r = p * ROWS + row;
    if (initial != nullptr && inside && (KD % ROWS == 0 || r < KD)) {
      state[p] = load_state(initial, state_at + (i64)r * VD, types & NARROW_STATE);
    } else {
#pragma unroll
      for (int i = 0; i < VECTOR; i++) state[p].at[i] = 0.0f;
    }
  }
  if (ahead > 0 && initial != nullptr) announce(initial, slots, ahead, value_heads, types & NARROW_STATE ? 2 : 4);

  for (int t = 0; t < count; t++) {
    const i64 own = (i64)(first + t) * value_heads + value_head;
    if (t > 0) __syncthreads();  // The last token's operands have been read.
    float kk = 0, qq = 0, qk = 0;
    // e^g - 1 rather than e^g: a slow gate multiplies thousands of tokens, each rounded the same way.
    const float decay_of_head = PER_HEAD ? expm1f(log_decay(next_gate[0], gate, rate, bias_of_head, lower_bound)) : 0.0f;
#pragma unroll
    for (int i = 0; i < CHANNELS; i++) {
      const int c = i * THREADS + thread;
      if (c >= KD) continue;
      const float kc = next_key[i], qc = next_query[i];
      if constexpr (!PER_HEAD) decay[c] = expm1f(log_decay(next_gate[i], gate, rate, gate ? biases[c] : 0.0f, lower_bound));
      key[c] = kc;
      query[c] = qc;
      kk += kc * kc;
      qq += qc * qc;
      qk += qc * kc;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      kk += __shfl_xor_sync(~0u, kk, step);
      qq += __shfl_xor_sync(~0u, qq, step);
      qk += __shfl_xor_sync(~0u, qk, step);
    }
    if (lane == 0) norms[0][warp] = kk, norms[1][warp] = qq, norms[2][warp] = qk;
    const float write = strength(next_write, beta_factor);
    const Vector value = next_value;
    if (!ONE_TOKEN && t + 1 < count) fetch(t + 1);
    __syncthreads();
    kk = qq = qk = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) kk += norms[0][w], qq += norms[1][w], qk += norms[2][w];
    const float key_factor = l2norm ? rsqrtf(kk + 1e-6f) : 1.0f;
    const float query_factor = scale * (l2norm ? rsqrtf(qq + 1e-6f) : 1.0f);
    qk *= key_factor * query_factor;

    Vector from_key, from_query;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) from_key.at[i] = from_query.at[i] = 0.0f;
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
      const int r = p * ROWS + row;
      if (KD % ROWS != 0 && r >= KD) break;
      const float less = PER_HEAD ? decay_of_head : decay[r], kr = key[r], qr = query[r];
#pragma unroll
      for (int i = 0; i < VECTOR; i++) {
        state[p].at[i] += state[p].at[i] * less;
        from_key.at[i] += state[p].at[i] * kr;
        from_query.at[i] += state[p].at[i] * qr;
      }
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
#pragma unroll
      for (int step = 16; step >= LANES; step /= 2) {
        from_key.at[i] += __shfl_xor_sync(~0u, from_key.at[i], step);
        from_query.at[i] += __shfl_xor_sync(~0u, from_query.at[i], step);
      }
    }
    if (lane < LANES) {
#pragma unroll
      for (int i = 0; i < VECTOR; i++) {
        sums[0][warp][thread % LANES * VECTOR + i] = from_key.at[i];
        sums[1][warp][thread % LANES * VECTOR + i] = from_query.at[i];
      }
    }
    __syncthreads();
    Vector written;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
      float key_sum = 0, query_sum = 0;
#pragma unroll
      for (int w = 0; w < WARPS; w++) {
        key_sum += sums[0][w][thread % LANES * VECTOR + i];
        query_sum += sums[1][w][thread % LANES * VECTOR + i];
      }
      written.at[i] = write * (value.at[i] - key_factor * key_sum);
      if (row == 0 && inside) store_output(o, own * VD + column + i, query_factor * query_sum + qk * written.at[i]);
      written.at[i] *= key_factor;
    }
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
      const int r = p * ROWS + row;
      if (KD % ROWS != 0 && r >= KD) break;
#pragma unroll
      for (int i = 0; i < VECTOR; i++) state[p].at[i] += key[r] * written.at[i];
    }
    if (ONE_TOKEN) break;
  }
#pragma unroll
  for (int p = 0; p < PASSES; p++) {
    const int r = p * ROWS + row;
    if (inside && (KD % ROWS == 0 || r < KD)) store_state(final_state + state_at + (i64)r * VD, state[p]);
  }
}
