// Attention forward for every GPU from sm_80 on, head dimensions up to 256: o = softmax(scale q k^T, masked) v by
// mma.sync and cp.async in the FlashAttention-2 manner. Larger head dimensions and paged keys: decode.cu.
// Design and figures: README-mma.md.
//
// A block takes BLOCK_ROWS queries of one head, each warp ROW_TILES * 16 of them with their scores, sums and output in
// its registers. Keys and values go through shared memory in tiles of BLOCK_KEYS, STAGES - 1 of which are in flight while
// one is multiplied.
//
// q, o [B, Tq, H, D|Dv], or packed [total, H, D|Dv] with cu_q [B + 1]; k, v [B, Tk, Hkv, D|Dv], or packed
// [total, Hkv, ..] with cu_k [B + 1]; cache_seqlens [B] gives the keys in use of dense sequences (null: all Tk);
// lse f32 [B, H, Tq], packed [H, total], natural logarithm, or null. All q, k, v, o 16-byte aligned; q, o contiguous. The channels of
// k and v are contiguous; k_batch, k_token, k_head and v_batch, v_token, v_head are strides in elements between sequences, tokens and
// heads, multiples of Rows' widest piece of a row. They are read only with STRIDED, to save registers.
// Query i of a sequence sees key j when -window_left <= j - (i + keys - queries) <= window_right; negative windows
// are unlimited, as are those of 2^30 and more; causal is window_right = 0. A row that sees no key gives o = 0, lse = -inf.
// softcap 0 is off.
//
// Launch: grid (ceil(longest Tq / BLOCK_ROWS), H, B); block (32 * WARPS); dynamic shared memory
//   BLOCK_ROWS * row(D) + STAGES * BLOCK_KEYS * (row(D) + row(DV)),
//   row(n) = 2 p bytes, p = n rounded up to 16, plus 16 where p % 64 != 0; BLOCK_ROWS = WARPS * ROW_TILES * 16.
//
// Macros: D, DV (default D), DTYPE (bf16, f16), ROW_TILES (1, 2), BLOCK_KEYS (multiple of 16), WARPS,
// STAGES (2 ..), BLOCKS_PER_SM (register cap), STRIDED (0, 1: k and v are not contiguous).

#ifndef DV
#define DV D
#endif
#ifndef ROW_TILES
#define ROW_TILES 2
#endif
#ifndef BLOCK_KEYS
#define BLOCK_KEYS 64
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef STRIDED
#define STRIDED 0
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 1
#endif

constexpr int THREADS = WARPS * 32;
constexpr int UNLIMITED = 1 << 30;  // a window that no sequence reaches
constexpr int WARP_ROWS = ROW_TILES * 16;
constexpr int BLOCK_ROWS = WARPS * WARP_ROWS;
constexpr int DEPTH_STEPS = Rows<D>::padded / 16;
constexpr int KEY_PAIRS = BLOCK_KEYS / 16;  // pairs of 8 keys
constexpr int VALUE_PAIRS = Rows<DV>::padded / 16;  // pairs of 8 columns of v
constexpr int KEYS_AT = BLOCK_ROWS * Rows<D>::stride;
constexpr int KEY_BYTES = BLOCK_KEYS * Rows<D>::stride;
constexpr int VALUES_AT = KEYS_AT + STAGES * KEY_BYTES;
constexpr int VALUE_BYTES = BLOCK_KEYS * Rows<DV>::stride;
constexpr int SHARED_BYTES = VALUES_AT + STAGES * VALUE_BYTES;
static_assert(SHARED_BYTES <= 227 * 1024, "more shared memory than any GPU has");

// First row of a sequence, packed (offsets given) or dense.
DEVICE int start_of(int sequence, const int* offsets, int length) {
  return offsets != nullptr ? offsets[sequence] : sequence * length;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    attention_mma(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v, u16* __restrict__ o,
                  float* __restrict__ lse, const int* __restrict__ cu_q, const int* __restrict__ cu_k,
                  const int* __restrict__ cache_seqlens, int tq, int tk, int total_q, int heads, int kv_heads,
                  i64 k_batch, i64 v_batch, i64 k_head, i64 v_head, int k_token, int v_token, int window_left,
                  int window_right, float scale, float softcap) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;

  // ---- Rows and keys of this block.
  const int kv_head = blockIdx.y / (heads / kv_heads);
  const int q_start = start_of(blockIdx.z, cu_q, tq), queries = start_of(blockIdx.z + 1, cu_q, tq) - q_start;
  const int k_start = start_of(blockIdx.z, cu_k, tk);
  const int keys = cache_seqlens != nullptr ? cache_seqlens[blockIdx.z] : start_of(blockIdx.z + 1, cu_k, tk) - k_start;
  // Under a causal mask the last rows see most keys: they start first, so that no long block is left for the end.
  const int first_row = (gridDim.x - 1 - blockIdx.x) * BLOCK_ROWS;
  if (first_row >= queries) return;
  // Row r of the block sees keys from_key + r to end_key + r - 1, as far as these exist.
  const int position = first_row + keys - queries;
  const int from_key = position - (window_left < 0 ? UNLIMITED : min(window_left, UNLIMITED));
  const int end_key = position + 1 + (window_right < 0 ? UNLIMITED : min(window_right, UNLIMITED));
  const int high = min(keys, end_key + min(BLOCK_ROWS, queries - first_row) - 1);  // end of what some row sees

#if STRIDED
  const int key_stride = k_token, value_stride = v_token;
  k += (cu_k != nullptr ? (i64)k_start * k_token : blockIdx.z * k_batch) + kv_head * k_head;
  v += (cu_k != nullptr ? (i64)k_start * v_token : blockIdx.z * v_batch) + kv_head * v_head;
#else
  const int key_stride = kv_heads * D, value_stride = kv_heads * DV;
  k += (i64)k_start * key_stride + kv_head * D;
  v += (i64)k_start * value_stride + kv_head * DV;
#endif
  int load_stage = 0;
  auto load_tile = [&](int first) {
    if (first < high) {
      Rows<D>::load_range<BLOCK_KEYS, THREADS>(base + KEYS_AT + load_stage * KEY_BYTES, k + (i64)first * key_stride,
                                               key_stride, high - first, thread);
      Rows<DV>::load_range<BLOCK_KEYS, THREADS>(base + VALUES_AT + load_stage * VALUE_BYTES,
                                                v + (i64)first * value_stride, value_stride, high - first, thread);
    }
    copy_commit();
    load_stage = load_stage + 1 == STAGES ? 0 : load_stage + 1;
  };
  Rows<D>::load_range<BLOCK_ROWS, THREADS>(base, q + ((i64)(q_start + first_row) * heads + blockIdx.y) * D, heads * D,
                                           queries - first_row, thread);
#pragma unroll 1
  for (int ahead = 0; ahead < STAGES - 1; ahead++) load_tile(max(0, from_key) + ahead * BLOCK_KEYS);

  // softmax in base 2: weights are 2^(s * factor - max * factor). A softcap, or a scale that would reverse the order of
  // the scores, is applied to the scores first.
  const float to_base2 = 1.44269504f;
  const bool transformed = softcap > 0.0f || scale <= 0.0f;
  const float factor = transformed ? 1.0f : scale * to_base2;

  // This lane's rows: lane / 4 + 8 half of row tile m is rows[2 m + half].
  float maximum[ROW_TILES * 2], sum[ROW_TILES * 2];
#pragma unroll
  for (int r = 0; r < ROW_TILES * 2; r++) {
    maximum[r] = -INFINITE;
    sum[r] = 0.0f;
  }
  float output[ROW_TILES][VALUE_PAIRS * 2][4] = {};
  const u32 query_tile = base + warp * WARP_ROWS * Rows<D>::stride;

  int stage = 0;
#pragma unroll 1
  for (int first = max(0, from_key); first < high; first += BLOCK_KEYS) {
    copy_wait<STAGES - 2>();
    __syncthreads();  // this tile has arrived; no warp reads the previous one
    load_tile(first + (STAGES - 1) * BLOCK_KEYS);
    const u32 key_tile = base + KEYS_AT + stage * KEY_BYTES, value_tile = base + VALUES_AT + stage * VALUE_BYTES;
    // Addresses are recomputed from these in every iteration: kept over the loop they would take registers of the products.
    u32 query_lane = query_tile + Rows<D>::lane_offset(lane), key_lane = key_tile + Rows<D>::lane_offset_right(lane);
    u32 value_lane = value_tile + Rows<DV>::lane_offset(lane);
    asm volatile("" : "+r"(query_lane), "+r"(key_lane), "+r"(value_lane));
    stage = stage + 1 == STAGES ? 0 : stage + 1;

    // ---- Scores.
    float s[ROW_TILES][KEY_PAIRS * 2][4] = {};
#pragma unroll
    for (int step = 0; step < DEPTH_STEPS; step++) {
      u32 a[ROW_TILES][4];
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++) {
        load_matrix_x4(a[m], m * 16 * Rows<D>::stride + Rows<D>::advance(query_lane, step));
      }
#pragma unroll
      for (int n = 0; n < KEY_PAIRS; n++) {
        u32 b[4];
        load_matrix_x4(b, n * 16 * Rows<D>::stride + Rows<D>::advance(key_lane, step));
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) {
          multiply(s[m][n * 2], a[m], b[0], b[1]);
          multiply(s[m][n * 2 + 1], a[m], b[2], b[3]);
        }
      }
    }

    // ---- Softmax.
    if (transformed) {
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (int n = 0; n < KEY_PAIRS * 2; n++) {
#pragma unroll
          for (int e = 0; e < 4; e++) {
            s[m][n][e] = softcap > 0.0f ? softcap * to_base2 * tanh_exact(s[m][n][e] * (scale / softcap))
                                        : s[m][n][e] * scale * to_base2;
          }
        }
      }
    }
    // Unless every row sees every key of the tile.
    if (first < from_key + BLOCK_ROWS - 1 || first + BLOCK_KEYS > min(keys, end_key)) {
      // The limits are computed here: kept over the whole loop they would take registers of the products.
      int row = warp * WARP_ROWS + lane / 4;
      asm volatile("" : "+r"(row));
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          // Element n * 8 + e of this lane is key n * 8 + e + start.
          const int r = row + m * 16 + half * 8, start = first + lane % 4 * 2;
          const int row_low = from_key + r - start, row_high = min(keys, end_key + r) - start;
#pragma unroll
          for (int n = 0; n < KEY_PAIRS * 2; n++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
              if (n * 8 + e < row_low || n * 8 + e >= row_high) s[m][n][half * 2 + e] = -INFINITE;
            }
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int r = m * 2 + half;
        float largest = maximum[r];
#pragma unroll
        for (int n = 0; n < KEY_PAIRS * 2; n++) {
          largest = fmaxf(largest, fmaxf(s[m][n][half * 2], s[m][n][half * 2 + 1]));
        }
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 2));
        // A row that has seen nothing yet keeps weights of 0: -inf - 0, not -inf - -inf.
        const float center = largest == -INFINITE ? 0.0f : largest * factor;
        const float fade = exp2_approximate(maximum[r] * factor - center);
        maximum[r] = largest;
        sum[r] *= fade;
#pragma unroll
        for (int n = 0; n < KEY_PAIRS * 2; n++) {
#pragma unroll
          for (int e = 0; e < 2; e++) {
            s[m][n][half * 2 + e] = exp2_approximate(s[m][n][half * 2 + e] * factor - center);
            sum[r] += s[m][n][half * 2 + e];
          }
        }
#pragma unroll
        for (int n = 0; n < VALUE_PAIRS * 2; n++) {
          output[m][n][half * 2] *= fade;
          output[m][n][half * 2 + 1] *= fade;
        }
      }
    }

    // ---- Output. The accumulators of the scores have the layout of the A fragment.
#pragma unroll
    for (int step = 0; step < KEY_PAIRS; step++) {
      u32 a[ROW_TILES][4];
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++) {
        a[m][0] = pack(s[m][step * 2][0], s[m][step * 2][1]);
        a[m][1] = pack(s[m][step * 2][2], s[m][step * 2][3]);
        a[m][2] = pack(s[m][step * 2 + 1][0], s[m][step * 2 + 1][1]);
        a[m][3] = pack(s[m][step * 2 + 1][2], s[m][step * 2 + 1][3]);
      }
#pragma unroll
      for (int n = 0; n < VALUE_PAIRS; n++) {
        u32 b[4];
        load_matrix_x4_transposed(b, step * 16 * Rows<DV>::stride + Rows<DV>::advance(value_lane, n));
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) {
          multiply(output[m][n * 2], a[m], b[0], b[1]);
          multiply(output[m][n * 2 + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
  copy_wait<0>();

  // ---- Divide by the sums and write. The output row is recomputed, so that no register holds it through the loop.
  int sequence = blockIdx.z;
  asm volatile("" : "+r"(sequence));
  const int start = start_of(sequence, cu_q, tq), end = start_of(sequence + 1, cu_q, tq);
  const int warp_row = start + (gridDim.x - 1 - blockIdx.x) * BLOCK_ROWS + warp * WARP_ROWS + lane / 4;
#pragma unroll
  for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int r = m * 2 + half;
      float total = sum[r];
      total += __shfl_xor_sync(0xffffffff, total, 1);
      total += __shfl_xor_sync(0xffffffff, total, 2);
      const int query = warp_row + m * 16 + half * 8;  // among those of all sequences
      if (query >= end) continue;
      const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
      if (lse != nullptr && lane % 4 == 0) {
        const i64 at = cu_q != nullptr ? (i64)blockIdx.y * total_q + query
                                       : ((i64)sequence * heads + blockIdx.y) * tq + query - start;
        lse[at] = total > 0.0f ? (maximum[r] * factor + log2_approximate(total)) * 0.693147181f : -INFINITE;
      }
      u16* const row = o + ((i64)query * heads + blockIdx.y) * DV;
#pragma unroll
      for (int n = 0; n < VALUE_PAIRS * 2; n++) {
        const int column = n * 8 + lane % 4 * 2;
        if (Rows<DV>::padded != DV && column >= DV) continue;
        const u32 both = pack(output[m][n][half * 2] * inverse, output[m][n][half * 2 + 1] * inverse);
        if (DV % 2 == 0) {
          *(u32*)(row + column) = both;
        } else {
          row[column] = (u16)both;
          if (column + 1 < DV) row[column + 1] = (u16)(both >> 16);
        }
      }
    }
  }
}
