// The compressed branch of nsa, and the weights that blocks are selected by.
//
// A thread block takes WARPS * ROW_TILES adjacent queries and one key head, a warp ROW_TILES of them with 16
// heads each. First pass: o = gate * softmax(scale q k_cmp^T) v_cmp, by tiles of BLOCK_KEYS compressed tokens. Second pass, if blocks
// are to be selected: scores again, now with k_rest added (a score is then as exact as float32), weights from the first
// pass's sums, added up over the heads in an order that is the same for every compressed token, so that ties stay ties.
//
// q [B, Tq, HQ, D], or packed with cu_q; cu_k for packed keys. k_cmp, k_rest, v_cmp: rows as in compress.cu, or rows_each per
// sequence if that is not 0; v_cmp null:
// no output, only weights; k_rest null: no rounding remainder. p_sum [B, chunk_tokens, Hkv, slabs, p_stride] f32 or null: of
// queries chunk_first .. chunk_first + chunk_tokens of each sequence, the sums of weights over the 16 heads of a slab.
// reads [.., Hkv, 3]: [0] gets the number of compressed tokens that were scored.
//
// Launch: grid (ceil(chunk_tokens / (WARPS * ROW_TILES)), Hkv * slabs, B), slabs = ceil(HQ / Hkv / 16); block
// 32 * WARPS; dynamic shared memory WARPS * ROW_TILES * 16 * row(D) + 2 * BLOCK_KEYS * (row(D) + max(row(D), row(DV))),
// row as in ampere.cuh. Macros: D, DV, DTYPE, ROW_TILES, BLOCK_KEYS (32, 64), WARPS, BLOCKS_PER_SM.
//
// Source: ampere.cuh, call.cuh, softmax.cuh, common.cuh, compressed.cuh and this.

constexpr int THREADS = WARPS * 32;
constexpr int TOKENS = WARPS * ROW_TILES;
constexpr int PAIRS = BLOCK_KEYS / 16;
constexpr int QUERY_BYTES = TOKENS * 16 * Rows<D>::stride;
constexpr int KEY_BYTES = BLOCK_KEYS * Rows<D>::stride;
constexpr int VALUE_BYTES = BLOCK_KEYS * (Rows<D>::stride > Rows<DV>::stride ? Rows<D>::stride : Rows<DV>::stride);
constexpr int STAGE_BYTES = KEY_BYTES + VALUE_BYTES;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    nsa_compressed(const u16* __restrict__ q, const u16* __restrict__ k_cmp, const u16* __restrict__ k_rest,
                   const u16* __restrict__ v_cmp, u16* __restrict__ o, float* __restrict__ p_sum,
                   int* __restrict__ reads, const void* __restrict__ g_cmp, const void* __restrict__ g_slc,
                   const void* __restrict__ g_swa, int gates_f32, int gate_kind, const int* __restrict__ cu_q,
                   const int* __restrict__ cu_k, int tq, int tk, int heads, int kv_heads, int block, int stride,
                   int rows_each, int chunk_first, int chunk_tokens, int p_stride, float scale) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const Sequence here = sequence_at(blockIdx.z, cu_q, cu_k, tq, tk);
  const HeadSlab own = head_slab(blockIdx.y, heads, kv_heads);
  const Span span = span_of<TOKENS>(here, chunk_first, chunk_tokens, block, stride);
  if (span.empty()) return;

  // Queries, 16 rows each.
  const u16* q_here = q + ((i64)(here.q_start + span.first) * heads + own.first) * D;
  Rows<D>::template copy<TOKENS * 16, THREADS, false, 1>(base, thread, q, [&](int row) {
    return span.first + row / 16 < span.end && row % 16 < own.count ? q_here + ((i64)(row / 16) * heads + row % 16) * D
                                                                    : nullptr;
  });
  const int key_stride = kv_heads * D, value_stride = kv_heads * DV;
  const i64 key_row = compressed_row(here, blockIdx.z, stride, rows_each) * kv_heads + own.kv_head;
  const u16* keys = k_cmp + key_row * D;
  const u16* rest = k_rest != nullptr ? k_rest + key_row * D : nullptr;
  const u16* values = v_cmp != nullptr ? v_cmp + key_row * DV : nullptr;
  const bool negative = scale <= 0.0f;
  const float factor = negative ? 1.0f : scale * TO_BASE2;

  float maximum[ROW_TILES][2], sum[ROW_TILES][2];
  int seen[ROW_TILES];  // compressed tokens of each of the warp's queries
#pragma unroll
  for (int m = 0; m < ROW_TILES; m++) {
    seen[m] = compressed_before(span.first_position + warp * ROW_TILES + m, block, stride);
    maximum[m][0] = maximum[m][1] = -INFINITE;
    sum[m][0] = sum[m][1] = 0.0f;
  }
  int walked = 0;
  const u32 query_tile = base + warp * ROW_TILES * 16 * Rows<D>::stride;
  auto load = [&](int first, int stage, const u16* second, bool second_is_keys) {
    const u32 to = base + QUERY_BYTES + stage * STAGE_BYTES;
    if (first < span.high) {
      Rows<D>::template load_range<BLOCK_KEYS, THREADS>(to, keys + (i64)first * key_stride, key_stride, span.high - first, thread);
      if (second != nullptr && second_is_keys) {
        Rows<D>::template load_range<BLOCK_KEYS, THREADS>(to + KEY_BYTES, second + (i64)first * key_stride, key_stride,
                                                          span.high - first, thread);
      } else if (second != nullptr) {
        Rows<DV>::template load_range<BLOCK_KEYS, THREADS>(to + KEY_BYTES, second + (i64)first * value_stride,
                                                           value_stride, span.high - first, thread);
      }
    }
    copy_commit();
  };

  // ---- First pass.
  {
    float output[ROW_TILES][Rows<DV>::padded / 8][4] = {};
    load(0, 0, values, false);
#pragma unroll 1
    for (int first = 0, stage = 0; first < span.high; first += BLOCK_KEYS, stage ^= 1) {
      copy_wait<0>();
      __syncthreads();  // this tile has arrived; no warp reads the previous one
      load(first + BLOCK_KEYS, stage ^ 1, values, false);
      u32 key_tile = base + QUERY_BYTES + stage * STAGE_BYTES, query_lane = query_tile;
      asm volatile("" : "+r"(key_tile), "+r"(query_lane));
      float s[ROW_TILES][PAIRS * 2][4] = {};
      add_scores<ROW_TILES, PAIRS>(s, query_lane + Rows<D>::lane_offset(lane), key_tile + Rows<D>::lane_offset_right(lane));
      float fade[ROW_TILES][2];
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++) {
        if (negative) multiply_all<PAIRS>(s[m], scale * TO_BASE2);
        if (first + BLOCK_KEYS > seen[m]) mask_behind<PAIRS>(s[m], seen[m] - first, lane);
        soften<PAIRS>(s[m], maximum[m], sum[m], fade[m], factor);
      }
      walked += min(BLOCK_KEYS, span.high - first);
      if (values != nullptr) {
        add_output<ROW_TILES, PAIRS>(output, s, fade, key_tile + KEY_BYTES + Rows<DV>::lane_offset(lane));
      }
    }
    copy_wait<0>();
    const Gates gates = {g_cmp, g_slc, g_swa, gates_f32, gate_kind};
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
      const int token = span.first + warp * ROW_TILES + m;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        sum[m][half] = row_sum(sum[m][half]);
        const int head = lane / 4 + half * 8;
        if (values == nullptr || token >= span.end || head >= own.count) continue;
        const i64 row = (i64)(here.q_start + token) * heads + own.first + head;
        const float gate = gate_of(gates, 0, row);
        write_row(o + row * DV, output[m], half, sum[m][half] > 0.0f ? gate / sum[m][half] : 0.0f, false, lane);
      }
      // Compressed tokens that this query read, of the tiles that the block processed.
      if (own.slab == 0 && lane == 0 && token < span.end) {
        reads[((i64)(here.q_start + token) * kv_heads + own.kv_head) * 3] = min(walked, seen[m]);
      }
    }
  }
  if (p_sum == nullptr) return;

  // ---- Second pass.
#pragma unroll
  for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      maximum[m][half] = exponent_of(maximum[m][half], sum[m][half], factor, lane / 4 + half * 8, own.count);
    }
  }
  __syncthreads();
  load(0, 0, rest, true);
#pragma unroll 1
  for (int first = 0, stage = 0; first < span.high; first += BLOCK_KEYS, stage ^= 1) {
    copy_wait<0>();
    __syncthreads();
    load(first + BLOCK_KEYS, stage ^ 1, rest, true);
    u32 key_tile = base + QUERY_BYTES + stage * STAGE_BYTES, query_lane = query_tile;
    asm volatile("" : "+r"(key_tile), "+r"(query_lane));
    float s[ROW_TILES][PAIRS * 2][4] = {};
    const u32 query_at = query_lane + Rows<D>::lane_offset(lane), key_at = key_tile + Rows<D>::lane_offset_right(lane);
    add_scores<ROW_TILES, PAIRS>(s, query_at, key_at);
    if (rest != nullptr) add_scores<ROW_TILES, PAIRS>(s, query_at, key_at + KEY_BYTES);
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
      if (negative) multiply_all<PAIRS>(s[m], scale * TO_BASE2);
      float weights[PAIRS * 4];
#pragma unroll
      for (int n = 0; n < PAIRS * 2; n++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          weights[n * 2 + e] = exp2_approximate(s[m][n][e] * factor - maximum[m][0]) +
                               exp2_approximate(s[m][n][e + 2] * factor - maximum[m][1]);
        }
      }
      const int token = span.first + warp * ROW_TILES + m;
      const i64 query = ((i64)blockIdx.z * chunk_tokens + token - chunk_first) * kv_heads + own.kv_head;
      float* row = token < span.end ? p_sum + (query * own.slabs + own.slab) * p_stride : nullptr;
      write_weights<BLOCK_KEYS>(row, weights, first, seen[m], lane);
    }
  }
  copy_wait<0>();
}
