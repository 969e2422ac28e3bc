// Attention backward for every GPU from sm_80 on, gradients of k and v: a block takes 64 keys of a key head and processes
// all queries that see them, of all query heads of the group, in a fixed order: the same input gives the same bits.
// Weights are recomputed: P = 2^(scale log2(e) K Q^T - row_lse), dV += P dO, dS = P (V dO^T - delta), dK += dS Q.
//
// q [B, Tq, H, D], grad_o [B, Tq, H, DV], or packed [total, ..] with cu_q i32 [B + 1], contiguous; k, v [B, Tk, Hkv, D | DV],
// or packed with cu_k; their channels are contiguous, the strides (k_batch, .. in elements) are multiples of 8; cache_seqlens
// [B] gives the keys in use of dense sequences (null: all Tk). row_lse, row_delta: prepare.cu. grad_k, grad_v: as
// k and v, contiguous; rows that no query sees, and unused rows of dense sequences, become 0. All 16-byte aligned.
// window_left, window_right: keys visible before and after a query's own position i + keys - queries; negative: unlimited.
// softcap 0 is off.
//
// Source: include/ampere.cuh, rows.cuh, mma.cuh, this file.
// Macros: D, DV (default D; multiples of 8 up to 256), DTYPE (bf16, f16), BLOCK_QUERIES (16, 32, 64).
// Launch: grid (ceil(longest Tk / 64), Hkv, B); block 128 * SPLITS, SPLITS = max(D, DV) > 128 ? 2 : 1; dynamic shared memory
//   (64 + BLOCK_QUERIES) (row(D) + row(DV)) + 8 BLOCK_QUERIES, row(n) as in mma.cu.

constexpr int BLOCK_KEYS = 64;
constexpr int SPLITS = (D > 128 || DV > 128) ? 2 : 1;  // of the channels among groups of four warps
constexpr int THREADS = 128 * SPLITS;
constexpr int K_PAIRS = Rows<D>::padded / 16, V_PAIRS = Rows<DV>::padded / 16;
constexpr int OWN_K_PAIRS = ceil_div(K_PAIRS, SPLITS), OWN_V_PAIRS = ceil_div(V_PAIRS, SPLITS);
constexpr int AT_V = BLOCK_KEYS * Rows<D>::stride;
constexpr int AT_Q = AT_V + BLOCK_KEYS * Rows<DV>::stride;
constexpr int AT_GRAD_O = AT_Q + BLOCK_QUERIES * Rows<D>::stride;
constexpr int AT_STATISTICS = AT_GRAD_O + BLOCK_QUERIES * Rows<DV>::stride;

template <int pairs, int channels>
DEVICE void write_keys(const float (&c)[pairs * 2][4], u16* to, int row_stride, int rows, int first_pair, float factor,
                       int lane) {
#pragma unroll
  for (int n = 0; n < pairs * 2; n++) {
    const int channel = (first_pair * 2 + n) * 8 + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = lane / 4 + half * 8;
      if (row < rows) {
        store_pair<channels>(to + (i64)row * row_stride, channel, c[n][half * 2] * factor, c[n][half * 2 + 1] * factor);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_mma_kv(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v,
                              const u16* __restrict__ grad_o, const float* __restrict__ row_lse,
                              const float* __restrict__ row_delta, u16* __restrict__ grad_k, u16* __restrict__ grad_v,
                              const int* __restrict__ cu_q, const int* __restrict__ cu_k,
                              const int* __restrict__ cache_seqlens, int tq, int tk, int heads, int kv_heads, i64 k_batch,
                              i64 v_batch, i64 k_head, i64 v_head, int k_token, int v_token, int window_left,
                              int window_right, float scale, float softcap) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, warp = thread / 32 % 4, split = thread / 128, lane = thread % 32;
  const int sequence = blockIdx.z, kv_head = blockIdx.y, first_key = blockIdx.x * BLOCK_KEYS;
  const int q_start = first_row_of(sequence, cu_q, tq), queries = first_row_of(sequence + 1, cu_q, tq) - q_start;
  const int k_start = first_row_of(sequence, cu_k, tk), key_rows = first_row_of(sequence + 1, cu_k, tk) - k_start;
  if (first_key >= key_rows) return;
  const int keys = cache_seqlens != nullptr ? cache_seqlens[sequence] : key_rows;
  const int padded = padded_start(gridDim.z, first_row_of(gridDim.z, cu_q, tq));
  const int left = window_limit(window_left), right = window_limit(window_right), shift = keys - queries;
  // Query i sees keys i + shift - left to i + shift + right.
  const int last_key = min(first_key + BLOCK_KEYS, keys) - 1;
  const int first_query = max(0, first_key - right - shift), end_query = min(queries, last_key + left - shift + 1);
  const Logits logits(scale, softcap);

  k += (cu_k != nullptr ? (i64)k_start * k_token : sequence * k_batch) + kv_head * k_head;
  v += (cu_k != nullptr ? (i64)k_start * v_token : sequence * v_batch) + kv_head * v_head;
  float grad_key[OWN_K_PAIRS * 2][4] = {}, grad_value[OWN_V_PAIRS * 2][4] = {};
  if (last_key >= first_key && first_query < end_query) {
    Rows<D>::template load_range<BLOCK_KEYS, THREADS>(base, k + (i64)first_key * k_token, k_token, keys - first_key, thread);
    Rows<DV>::template load_range<BLOCK_KEYS, THREADS>(base + AT_V, v + (i64)first_key * v_token, v_token, keys - first_key,
                                                       thread);
    const int group = heads / kv_heads;
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
      const float* const lse_of = row_lse + (i64)head * padded + padded_start(sequence, q_start);
      const float* const delta_of = row_delta + (i64)head * padded + padded_start(sequence, q_start);
#pragma unroll 1
      for (int first = first_query / BLOCK_QUERIES * BLOCK_QUERIES; first < end_query; first += BLOCK_QUERIES) {
        __syncthreads();  // no warp reads the previous tile
        const i64 row = (i64)(q_start + first) * heads + head;
        Rows<D>::template load_range<BLOCK_QUERIES, THREADS>(base + AT_Q, q + row * D, heads * D, queries - first, thread);
        Rows<DV>::template load_range<BLOCK_QUERIES, THREADS>(base + AT_GRAD_O, grad_o + row * DV, heads * DV,
                                                              queries - first, thread);
        copy_commit();
        float* const statistics = reinterpret_cast<float*>(shared + AT_STATISTICS);
        if (thread < BLOCK_QUERIES) {
          statistics[thread] = lse_of[first + thread];
          statistics[BLOCK_QUERIES + thread] = delta_of[first + thread];
        }
        copy_wait<0>();
        __syncthreads();

        float p[BLOCK_QUERIES / 8][4], ds[BLOCK_QUERIES / 8][4];
        multiply_rows<D>(p, base + warp * 16 * Rows<D>::stride + Rows<D>::lane_offset(lane),
                         base + AT_Q + Rows<D>::lane_offset_right(lane));
        multiply_rows<DV>(ds, base + AT_V + warp * 16 * Rows<DV>::stride + Rows<DV>::lane_offset(lane),
                          base + AT_GRAD_O + Rows<DV>::lane_offset_right(lane));
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int key = first_key + warp * 16 + lane / 4 + half * 8;
          // Queries of the tile that see the key.
          const int from = key - right - shift - first, to = key < keys ? min(queries, key + left - shift + 1) - first : 0;
#pragma unroll
          for (int j = 0; j < BLOCK_QUERIES / 8; j++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
              const int column = j * 8 + lane % 4 * 2 + e;
              float slope;
              const float weight = logits.weight(p[j][half * 2 + e], statistics[column], slope);
              const bool seen = column >= from && column < to;
              p[j][half * 2 + e] = seen ? weight : 0.0f;
              const float change = weight * slope * (ds[j][half * 2 + e] - statistics[BLOCK_QUERIES + column]);
              ds[j][half * 2 + e] = seen ? change : 0.0f;
            }
          }
        }
        accumulate_rows<DV, BLOCK_QUERIES / 8, OWN_V_PAIRS>(grad_value, p, base + AT_GRAD_O + Rows<DV>::lane_offset(lane),
                                                            split * OWN_V_PAIRS, V_PAIRS);
        accumulate_rows<D, BLOCK_QUERIES / 8, OWN_K_PAIRS>(grad_key, ds, base + AT_Q + Rows<D>::lane_offset(lane),
                                                           split * OWN_K_PAIRS, K_PAIRS);
      }
    }
  }
  const int row = first_key + warp * 16;
  const i64 out = (i64)(k_start + row) * kv_heads + kv_head;
  write_keys<OWN_K_PAIRS, D>(grad_key, grad_k + out * D, kv_heads * D, key_rows - row, split * OWN_K_PAIRS, scale, lane);
  write_keys<OWN_V_PAIRS, DV>(grad_value, grad_v + out * DV, kv_heads * DV, key_rows - row, split * OWN_V_PAIRS, 1.0f, lane);
}
