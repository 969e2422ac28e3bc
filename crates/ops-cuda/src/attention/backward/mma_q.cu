// Attention backward for every GPU from sm_80 on, gradient of q: a block takes 64 queries of one head and processes the keys
// that they see in a fixed order: the same input gives the same bits.
// P = 2^(scale log2(e) Q K^T - row_lse), dS = P (dO V^T - delta), dQ += dS K.
//
// Tensors and arguments as in mma_kv.cu; grad_q as q.
//
// Source: include/ampere.cuh, rows.cuh, mma.cuh, this file.
// Macros: D, DV (default D; multiples of 8 up to 256), DTYPE (bf16, f16), BLOCK_KEYS (16, 32, 64).
// Launch: grid (ceil(longest Tq / 64), H, B); block 128; dynamic shared memory
//   (64 + BLOCK_KEYS) (row(D) + row(DV)), row(n) as in mma.cu.

constexpr int BLOCK_QUERIES = 64;
constexpr int THREADS = 128;
constexpr int K_PAIRS = Rows<D>::padded / 16;
constexpr int AT_GRAD_O = BLOCK_QUERIES * Rows<D>::stride;
constexpr int AT_K = AT_GRAD_O + BLOCK_QUERIES * Rows<DV>::stride;
constexpr int AT_V = AT_K + BLOCK_KEYS * Rows<D>::stride;

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_mma_q(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v,
                             const u16* __restrict__ grad_o, const float* __restrict__ row_lse,
                             const float* __restrict__ row_delta, u16* __restrict__ grad_q, const int* __restrict__ cu_q,
                             const int* __restrict__ cu_k, const int* __restrict__ cache_seqlens, int tq, int tk, int heads,
                             int kv_heads, i64 k_batch, i64 v_batch, i64 k_head, i64 v_head, int k_token, int v_token,
                             int window_left, int window_right, float scale, float softcap) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int sequence = blockIdx.z, head = blockIdx.y, kv_head = head / (heads / kv_heads);
  const int q_start = first_row_of(sequence, cu_q, tq), queries = first_row_of(sequence + 1, cu_q, tq) - q_start;
  // The last rows see most keys under a causal mask: they start first.
  const int first_query = (gridDim.x - 1 - blockIdx.x) * BLOCK_QUERIES;
  if (first_query >= queries) return;
  const int k_start = first_row_of(sequence, cu_k, tk);
  const int keys = cache_seqlens != nullptr ? cache_seqlens[sequence] : first_row_of(sequence + 1, cu_k, tk) - k_start;
  const int padded = padded_start(gridDim.z, first_row_of(gridDim.z, cu_q, tq));
  const int left = window_limit(window_left), right = window_limit(window_right), shift = keys - queries;
  const int last_query = min(first_query + BLOCK_QUERIES, queries) - 1;
  const int first_key = max(0, first_query + shift - left), end_key = min(keys, last_query + shift + right + 1);
  const Logits logits(scale, softcap);

  k += (cu_k != nullptr ? (i64)k_start * k_token : sequence * k_batch) + kv_head * k_head;
  v += (cu_k != nullptr ? (i64)k_start * v_token : sequence * v_batch) + kv_head * v_head;
  const i64 row = (i64)(q_start + first_query) * heads + head;
  Rows<D>::template load_range<BLOCK_QUERIES, THREADS>(base, q + row * D, heads * D, queries - first_query, thread);
  Rows<DV>::template load_range<BLOCK_QUERIES, THREADS>(base + AT_GRAD_O, grad_o + row * DV, heads * DV,
                                                        queries - first_query, thread);
  // Statistics of the lane's two rows; the padding rows of the statistics may be read.
  const i64 at = (i64)head * padded + padded_start(sequence, q_start) + first_query + warp * 16 + lane / 4;
  const float lse[2] = {row_lse[at], row_lse[at + 8]}, delta[2] = {row_delta[at], row_delta[at + 8]};

  float grad_query[K_PAIRS * 2][4] = {};
#pragma unroll 1
  for (int first = first_key / BLOCK_KEYS * BLOCK_KEYS; first < end_key; first += BLOCK_KEYS) {
    __syncthreads();  // no warp reads the previous tile
    Rows<D>::template load_range<BLOCK_KEYS, THREADS>(base + AT_K, k + (i64)first * k_token, k_token, keys - first, thread);
    Rows<DV>::template load_range<BLOCK_KEYS, THREADS>(base + AT_V, v + (i64)first * v_token, v_token, keys - first, thread);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    float p[BLOCK_KEYS / 8][4], ds[BLOCK_KEYS / 8][4];
    multiply_rows<D>(p, base + warp * 16 * Rows<D>::stride + Rows<D>::lane_offset(lane),
                     base + AT_K + Rows<D>::lane_offset_right(lane));
    multiply_rows<DV>(ds, base + AT_GRAD_O + warp * 16 * Rows<DV>::stride + Rows<DV>::lane_offset(lane),
                      base + AT_V + Rows<DV>::lane_offset_right(lane));
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int position = first_query + warp * 16 + lane / 4 + half * 8 + shift;
      const int from = position - left - first, to = min(keys, position + right + 1) - first;
#pragma unroll
      for (int j = 0; j < BLOCK_KEYS / 8; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int column = j * 8 + lane % 4 * 2 + e;
          float slope;
          const float weight = logits.weight(p[j][half * 2 + e], lse[half], slope);
          const float change = weight * slope * (ds[j][half * 2 + e] - delta[half]);
          ds[j][half * 2 + e] = column >= from && column < to ? change : 0.0f;
        }
      }
    }
    accumulate_rows<D, BLOCK_KEYS / 8, K_PAIRS>(grad_query, ds, base + AT_K + Rows<D>::lane_offset(lane), 0, K_PAIRS);
  }
  copy_wait<0>();
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int query = first_query + warp * 16 + lane / 4 + half * 8;
    if (query >= queries) continue;
    u16* const to = grad_q + ((i64)(q_start + query) * heads + head) * D;
#pragma unroll
    for (int n = 0; n < K_PAIRS * 2; n++) {
      store_pair<D>(to, n * 8 + lane % 4 * 2, grad_query[n][half * 2] * scale, grad_query[n][half * 2 + 1] * scale);
    }
  }
}
