// Attention backward in float32 arithmetic, for every D, DV and storage type. Weights are recomputed: P = exp(scale q.k - lse),
// dS = scale P (dO.v - delta); dK += dS^T Q and dV += P^T dO (KEYS 1), or dQ += dS K (KEYS 0).
//
// A block has ROWS rows: keys of a key head, or queries of a head. It processes the rows of the other kind that share weights with
// them, in tiles of ROWS, and keys for all query heads of the group, in a fixed order: the same input gives the same bits.
//
// q [B, Tq, H, D], grad_o [B, Tq, H, DV], or packed [total, ..] with cu_q i32 [B + 1], contiguous; k, v [B, Tk, Hkv, D | DV], or packed
// with cu_k, with contiguous channels and the strides k_batch, .. in elements; cache_seqlens [B] gives the keys in use of dense sequences
// (null: all Tk). row_lse, row_delta: float32_rows.cu. grad_a as k or q, contiguous; grad_b as v (KEYS 0: null). Rows without a weight become 0.
// VALUES_IN_KEYS 1: v has k's address and strides, grad_b is not written, and the gradient of the values is added to that of the keys.
// window_left, window_right: keys visible before and after a query's own position i + keys - queries; negative: unlimited.
// softcap 0 is off.
//
// Source: include/storage.cuh, rows.cuh, this file.
// Macros: DTYPE (f32, bf16, f16), D, DV, KEYS (0, 1), ROWS (4, 8, 16), VALUES_IN_KEYS (0, 1).
// Launch: grid (ceil(longest Tk / ROWS), Hkv, B) or (ceil(longest Tq / ROWS), H, B); block (256); dynamic shared memory SHARED_BYTES:
//   8 ROWS (D4 + DV4 + 8) + 8 ROWS^2, D4 and DV4 rounded up to multiples of 4.

constexpr int THREADS = 256;
constexpr int D4 = ceil_div(D, 4) * 4, DV4 = ceil_div(DV, 4) * 4;
constexpr int A_ROW = D4 + 4, B_ROW = DV4 + 4;  // floats of a row in shared memory; adjacent rows start in different banks
// k and v, or q and grad_o, of the block, and those of the tile of the other kind.
constexpr int A_AT = 0;
constexpr int B_AT = A_AT + ROWS * A_ROW;
constexpr int OTHER_A_AT = B_AT + ROWS * B_ROW;
constexpr int OTHER_B_AT = OTHER_A_AT + ROWS * A_ROW;
constexpr int P_AT = OTHER_B_AT + ROWS * B_ROW;  // [row of the other kind][row of the block]
constexpr int DS_AT = P_AT + ROWS * ROWS;
constexpr int SHARED_BYTES = 4 * (DS_AT + ROWS * ROWS);
constexpr int LANES = THREADS / (ROWS * ROWS);  // threads that compute a weight together
static_assert(SHARED_BYTES <= 227 * 1024 && LANES >= 1 && LANES <= 32, "rows do not fit");
static_assert(!VALUES_IN_KEYS || DV <= D, "values are channels of keys");
// Vectors of four channels of each thread.
constexpr int OWN_A = ceil_div(ROWS * D4 / 4, THREADS), OWN_B = ceil_div(ROWS * DV4 / 4, THREADS);

// Rows of `channels` channels as floats, with zeros past their ends.
template <int channels, int row_floats>
DEVICE void load_rows(float* to, const void* from, i64 first, i64 row_stride, int rows) {
  constexpr int width = row_floats - 4;
  for (int at = threadIdx.x; at < ROWS * width; at += THREADS) {
    const int row = at / width, channel = at % width;
    const bool inside = row < rows && channel < channels;
    to[row * row_floats + channel] = inside ? number(from, first + row * row_stride + channel, false) : 0.0f;
  }
}

// The dot product of two rows, of which this thread computes the vectors from `lane` on.
template <int width>
DEVICE float dot(const float* left, const float* right, int lane) {
  float sum = 0.0f;
#pragma unroll 4
  for (int c = lane * 4; c < width; c += LANES * 4) {
    const float4 l = *(const float4*)(left + c), r = *(const float4*)(right + c);
    sum = fmaf(l.x, r.x, fmaf(l.y, r.y, fmaf(l.z, r.z, fmaf(l.w, r.w, sum))));
  }
#pragma unroll
  for (int far = LANES / 2; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffff, sum, far);
  return sum;
}

// sum += a vector of a row of each row of the tile, times that row's term.
DEVICE void accumulate(float4& sum, const float* terms, const float* rows, int row_floats) {
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    const float term = terms[i * ROWS];
    const float4 v = *(const float4*)(rows + i * row_floats);
    sum.x = fmaf(term, v.x, sum.x);
    sum.y = fmaf(term, v.y, sum.y);
    sum.z = fmaf(term, v.z, sum.z);
    sum.w = fmaf(term, v.w, sum.w);
  }
}

template <int channels, int width, int count>
DEVICE void store_rows(const float4 (&sums)[count], void* to, i64 first, i64 row_stride, int rows) {
#pragma unroll
  for (int k = 0; k < count; k++) {
    const int unit = threadIdx.x + k * THREADS, row = unit / (width / 4), channel = unit % (width / 4) * 4;
    const float v[4] = {sums[k].x, sums[k].y, sums[k].z, sums[k].w};
    if (row >= min(rows, ROWS)) continue;
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const i64 at = first + row * row_stride + channel + e;
      if (channel + e >= channels) continue;
      if constexpr (STORAGE == STORED_f32) {
        ((float*)to)[at] = v[e];
      } else {
        ((u16*)to)[at] = narrow_half(v[e]);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_float32(const void* __restrict__ q, const void* __restrict__ k, const void* __restrict__ v,
                               const void* __restrict__ grad_o, const float* __restrict__ row_lse,
                               const float* __restrict__ row_delta, void* __restrict__ grad_a, void* __restrict__ grad_b,
                               const int* __restrict__ cu_q, const int* __restrict__ cu_k,
                               const int* __restrict__ cache_seqlens, int tq, int tk, int heads, int kv_heads, i64 k_batch,
                               i64 v_batch, i64 k_head, i64 v_head, int k_token, int v_token, int window_left,
                               int window_right, float scale, float softcap) {
  extern __shared__ __align__(128) unsigned char shared[];
  float* const memory = (float*)shared;
  const int sequence = blockIdx.z, first = blockIdx.x * ROWS, group = heads / kv_heads;
  const int q_start = first_row_of(sequence, cu_q, tq), queries = first_row_of(sequence + 1, cu_q, tq) - q_start;
  const int k_start = first_row_of(sequence, cu_k, tk), key_rows = first_row_of(sequence + 1, cu_k, tk) - k_start;
  const int rows = KEYS ? key_rows : queries;
  if (first >= rows) return;
  const int keys = cache_seqlens != nullptr ? cache_seqlens[sequence] : key_rows;
  const int padded = padded_start(gridDim.z, first_row_of(gridDim.z, cu_q, tq));
  const int left = window_limit(window_left), right = window_limit(window_right), shift = keys - queries;
  const int kv_head = KEYS ? blockIdx.y : blockIdx.y / group;
  const int first_head = KEYS ? kv_head * group : blockIdx.y, end_head = KEYS ? first_head + group : first_head + 1;
  const i64 k_at = (cu_k != nullptr ? (i64)k_start * k_token : sequence * k_batch) + kv_head * k_head;
  const i64 v_at = (cu_k != nullptr ? (i64)k_start * v_token : sequence * v_batch) + kv_head * v_head;
  auto load_keys = [&](int a, int b, int from) {
    load_rows<D, A_ROW>(memory + a, k, k_at + (i64)from * k_token, k_token, keys - from);
    load_rows<DV, B_ROW>(memory + b, v, v_at + (i64)from * v_token, v_token, keys - from);
  };
  auto load_queries = [&](int a, int b, int from, int head) {
    const i64 row = (i64)(q_start + from) * heads + head;
    load_rows<D, A_ROW>(memory + a, q, row * D, heads * D, queries - from);
    load_rows<DV, B_ROW>(memory + b, grad_o, row * DV, heads * DV, queries - from);
  };
  // Query i sees keys i + shift - left to i + shift + right.
  int begin, end;
  if (KEYS) {
    const int last = min(first + ROWS, keys) - 1;
    begin = max(0, first - right - shift);
    end = last < first ? 0 : min(queries, last + left - shift + 1);
    load_keys(A_AT, B_AT, first);
  } else {
    begin = max(0, first + shift - left);
    end = min(keys, min(first + ROWS, queries) + shift + right);
    load_queries(A_AT, B_AT, first, first_head);
  }

  float4 sums_a[OWN_A] = {}, sums_b[OWN_B] = {};
  for (int head = first_head; head < end_head; head++) {
    const i64 statistics = (i64)head * padded + padded_start(sequence, q_start);
#pragma unroll 1
    for (int other = begin / ROWS * ROWS; other < end; other += ROWS) {
      __syncthreads();  // no thread reads the previous tile
      if (KEYS) load_queries(OTHER_A_AT, OTHER_B_AT, other, head); else load_keys(OTHER_A_AT, OTHER_B_AT, other);
      __syncthreads();
      const int pair = threadIdx.x / LANES, lane = threadIdx.x % LANES, row = pair / ROWS, i = pair % ROWS;
      const float product = dot<D4>(memory + A_AT + row * A_ROW, memory + OTHER_A_AT + i * A_ROW, lane);
      const float change = dot<DV4>(memory + B_AT + row * B_ROW, memory + OTHER_B_AT + i * B_ROW, lane);
      if (lane == 0) {
        const int query = KEYS ? other + i : first + row, key = KEYS ? first + row : other + i;
        const int position = query + shift;
        float p = 0.0f, ds = 0.0f;
        if (query < queries && key < keys && key >= position - left && key <= position + right) {
          const float lse = row_lse[statistics + query];
          float slope = scale;
          if (softcap > 0.0f) {
            const float capped = tanhf(product * (scale / softcap));
            slope = scale * (1.0f - capped * capped);
            p = expf(fmaf(softcap, capped, -lse));
          } else {
            p = expf(fmaf(scale, product, -lse));
          }
          ds = slope * p * (change - row_delta[statistics + query]);
        }
        memory[P_AT + i * ROWS + row] = p;
        memory[DS_AT + i * ROWS + row] = ds;
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < OWN_A; k++) {
        const int unit = threadIdx.x + k * THREADS, row = unit / (D4 / 4), channel = unit % (D4 / 4) * 4;
        if (row >= ROWS) continue;
        accumulate(sums_a[k], memory + DS_AT + row, memory + OTHER_A_AT + channel, A_ROW);
        if (KEYS && VALUES_IN_KEYS && channel < DV) {
          accumulate(sums_a[k], memory + P_AT + row, memory + OTHER_B_AT + channel, B_ROW);
        }
      }
#pragma unroll
      for (int k = 0; k < (KEYS && !VALUES_IN_KEYS ? OWN_B : 0); k++) {
        const int unit = threadIdx.x + k * THREADS, row = unit / (DV4 / 4), channel = unit % (DV4 / 4) * 4;
        if (row < ROWS) accumulate(sums_b[k], memory + P_AT + row, memory + OTHER_B_AT + channel, B_ROW);
      }
    }
  }
  const i64 out = KEYS ? (i64)(k_start + first) * kv_heads + kv_head : (i64)(q_start + first) * heads + first_head;
  const int out_heads = KEYS ? kv_heads : heads;
  store_rows<D, D4>(sums_a, grad_a, out * D, (i64)out_heads * D, rows - first);
  if (KEYS && !VALUES_IN_KEYS) store_rows<DV, DV4>(sums_b, grad_b, out * DV, (i64)out_heads * DV, rows - first);
}
