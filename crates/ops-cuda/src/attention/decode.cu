// Split-KV attention forward for few queries per sequence (decode, Tq 1..16), and for any number of queries where
// the head dimension is too large for mma.cu: o = softmax(scale q k^T, masked) v in tiles of keys with a running
// maximum and sum. Design, split rule and figures: README-decode.md.
//
// The query heads of one key head and all its queries form the rows of the matrix products ("GQA packing"), so each
// key and value byte is read once: row r of sequence b and key head g is query r / (H / Hkv), head
// g * (H / Hkv) + r % (H / Hkv). A block takes BLOCK_ROWS of them and one of `splits` shares of the visible keys.
//
// q, o [B, Tq, H, D|Dv], or packed [total, H, D|Dv] with cu_q [B + 1];
// k, v [B, Tk, Hkv, D|Dv], packed [total, Hkv, ..] with cu_k [B + 1], or paged [blocks, block_size, Hkv, ..] with
// block_table [B, max_blocks]; cache_seqlens [B] gives the keys in use of dense or paged sequences (null: all Tk);
// lse f32 [B, H, Tq], packed [H, total], natural logarithm, or null. All q, k, v, o 16-byte aligned; q, o contiguous. The channels of
// k and v are contiguous; k_batch, k_token, k_head and v_batch, v_token, v_head are strides in elements between sequences, tokens and
// heads, multiples of Rows' widest piece of a row. Page p starts at row p * block_size; its keys are k_token elements apart.
// Query i of a sequence sees key j when -window_left <= j - (i + keys - queries) <= window_right; negative windows
// are unlimited, as are those of 2^30 and more; causal is window_right = 0. A row that sees no key gives o = 0, lse = -inf. softcap 0 is off.
//
// Launch: grid (Hkv * row_blocks * VALUE_SPLITS, splits, B), row_blocks = ceil(longest Tq * (H / Hkv) / BLOCK_ROWS);
// block (32 * WARPS); dynamic shared memory SHARED_BYTES below:
//   BLOCK_KEYS * (KEY_STAGES * row(D) + STAGES * row(DV), the second 0 with VALUES_IN_KEYS) + BLOCK_ROWS * row(D)
//   + 4 * SPLIT_DEPTH * BLOCK_ROWS * (BLOCK_KEYS + 8) + 2 * BLOCK_ROWS * (BLOCK_KEYS + 8) + 12 * BLOCK_ROWS
//   + 4 * (KEY_STAGES + 1) * BLOCK_KEYS,
//   row(n) = 2 p bytes, p = n rounded up to 16, plus 16 where p % 64 != 0;
//   SPLIT_KEYS = min(WARPS / SPLIT_ROWS, BLOCK_KEYS / 16), SPLIT_DEPTH = WARPS / SPLIT_ROWS / SPLIT_KEYS.
// `longest` is the number of keys that the queries of a sequence see together at most, of the sequence where it is largest.
// splits = 1 writes o and lse; splits > 1 writes partial_o f32 [splits, q rows * H, Dv] and partial_lse
// [splits, q rows * H] for combine.cu.
//
// Macros: D, DV (default D), DTYPE (bf16, f16), BLOCK_ROWS (16, 32, 64), BLOCK_KEYS (16 .. 128), WARPS (4, 8, 16),
// SPLIT_ROWS (1, 2, 4: warps that share the rows of the scores), STAGES (1 ..: tiles of values in shared memory),
// KEY_STAGES (tiles of keys; STAGES, or 2 where STAGES is 1), VALUE_SPLITS (1 ..: number of blocks that share the
// columns of v; a block has DV of the Dv = DV * VALUE_SPLITS columns, and each of them computes the scores),
// VALUES_IN_KEYS (0; 1: the values are the first Dv columns of k, and v is not read; STAGES = KEY_STAGES >= 2),
// BLOCKS_PER_SM (register cap).

#ifndef DV
#define DV D
#endif
#ifndef BLOCK_ROWS
#define BLOCK_ROWS 16
#endif
#ifndef BLOCK_KEYS
#define BLOCK_KEYS 64
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef KEY_STAGES
#define KEY_STAGES STAGES
#endif
#ifndef SPLIT_ROWS
#define SPLIT_ROWS 1
#endif
#ifndef VALUE_SPLITS
#define VALUE_SPLITS 1
#endif
#ifndef VALUES_IN_KEYS
#define VALUES_IN_KEYS 0
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 1
#endif

constexpr int THREADS = WARPS * 32;
constexpr int UNLIMITED = 1 << 30;  // a window that no sequence reaches
// Scores: warps share the rows, the keys of a tile, at least 16 each, and beyond that the depth D of the sums.
constexpr int KEY_WARPS = WARPS / SPLIT_ROWS;
constexpr int SPLIT_KEYS = KEY_WARPS < BLOCK_KEYS / 16 ? KEY_WARPS : BLOCK_KEYS / 16;
constexpr int SPLIT_DEPTH = KEY_WARPS / SPLIT_KEYS;
constexpr int ROW_TILES = BLOCK_ROWS / 16;
constexpr int WARP_ROW_TILES = ROW_TILES / SPLIT_ROWS;
constexpr int KEY_PAIRS = BLOCK_KEYS / SPLIT_KEYS / 16;  // pairs of 8 keys of a warp
constexpr int DEPTH_STEPS = Rows<D>::padded / 16;
constexpr int WARP_STEPS = ceil_div(DEPTH_STEPS, SPLIT_DEPTH);
// Output: warps share the columns of V, in tiles of 8.
constexpr int VALUE_TILES = Rows<DV>::padded / 8;
constexpr int WARP_TILES = ceil_div(VALUE_TILES, WARPS);
// Softmax: threads of a row, each with an even number of keys.
constexpr int ROW_THREADS_MAX = THREADS / BLOCK_ROWS < BLOCK_KEYS / 2 ? THREADS / BLOCK_ROWS : BLOCK_KEYS / 2;
constexpr int ROW_THREADS = ROW_THREADS_MAX < 32 ? ROW_THREADS_MAX : 32;
constexpr int THREAD_PAIRS = BLOCK_KEYS / ROW_THREADS / 2;

constexpr int KEY_BYTES = BLOCK_KEYS * Rows<D>::stride;
using Values = Rows<VALUES_IN_KEYS ? D : DV>;  // where a tile's values are read
constexpr int VALUE_BYTES = VALUES_IN_KEYS ? 0 : BLOCK_KEYS * Rows<DV>::stride;
// Tiles that are copied ahead. With VALUES_IN_KEYS the slot of the preceding tile is free only after the scores.
constexpr int AHEAD = VALUES_IN_KEYS ? KEY_STAGES - 1 : KEY_STAGES;
constexpr int SCORE_STRIDE = BLOCK_KEYS + 8;  // both in floats and in storage elements: no bank conflicts
constexpr int VALUES_AT = KEY_STAGES * KEY_BYTES;
constexpr int QUERIES_AT = VALUES_AT + STAGES * VALUE_BYTES;
constexpr int SCORES_AT = QUERIES_AT + BLOCK_ROWS * Rows<D>::stride;
constexpr int WEIGHTS_AT = SCORES_AT + SPLIT_DEPTH * BLOCK_ROWS * SCORE_STRIDE * 4;
constexpr int FACTORS_AT = WEIGHTS_AT + BLOCK_ROWS * SCORE_STRIDE * 2;
constexpr int LSE_AT = FACTORS_AT + BLOCK_ROWS * 4;
constexpr int QUERY_ROWS_AT = LSE_AT + BLOCK_ROWS * 4;
constexpr int KEY_ROWS_AT = QUERY_ROWS_AT + BLOCK_ROWS * 4;
constexpr int SHARED_BYTES = KEY_ROWS_AT + (KEY_STAGES + 1) * BLOCK_KEYS * 4;
static_assert(BLOCK_KEYS % (16 * SPLIT_KEYS) == 0 && KEY_WARPS % SPLIT_KEYS == 0 && THREAD_PAIRS >= 1, "keys");
static_assert(ROW_TILES % SPLIT_ROWS == 0 && WARPS % SPLIT_ROWS == 0, "rows");
static_assert(VALUE_SPLITS == 1 || DV % 8 == 0, "shares of v start at 16 bytes");
static_assert(KEY_STAGES == STAGES || (STAGES == 1 && KEY_STAGES == 2), "stages");
static_assert(!VALUES_IN_KEYS || (KEY_STAGES == STAGES && STAGES >= 2), "a tile of keys stays until its values are used");
static_assert(SHARED_BYTES <= 227 * 1024, "more shared memory than any GPU has");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    attention_decode(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v,
                     u16* __restrict__ o, float* __restrict__ lse, float* __restrict__ partial_o,
                     float* __restrict__ partial_lse, const int* __restrict__ cu_q, const int* __restrict__ cu_k,
                     const int* __restrict__ cache_seqlens, const int* __restrict__ block_table, int tq, int tk,
                     int total_q, int heads, int kv_heads, int block_size, int max_blocks, int longest, i64 k_batch,
                     i64 v_batch, i64 k_head, i64 v_head, int k_token, int v_token, int window_left, int window_right,
                     float scale, float softcap) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  float* const scores = (float*)(shared + SCORES_AT);    // [SPLIT_DEPTH, BLOCK_ROWS, SCORE_STRIDE]
  float* const factors = (float*)(shared + FACTORS_AT);  // [BLOCK_ROWS], of the output so far; at the end 1 / sum
  float* const row_lse = (float*)(shared + LSE_AT);      // [BLOCK_ROWS], base 2
  int* const query_rows = (int*)(shared + QUERY_ROWS_AT);
  int* const key_rows = (int*)(shared + KEY_ROWS_AT);  // [KEY_STAGES + 1, BLOCK_KEYS]
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  wait_for_previous();

  // ---- Rows and keys of this block.
  const int sequence = blockIdx.z, group = heads / kv_heads;
  // Blocks of the same keys are adjacent in the grid, so that these are in L2; the last rows, which under a causal mask
  // see most keys, start first.
  const int row_blocks = gridDim.x / (kv_heads * VALUE_SPLITS), others = blockIdx.x / row_blocks;
  const int first_row = (row_blocks - 1 - blockIdx.x % row_blocks) * BLOCK_ROWS;
  const int kv_head = others / VALUE_SPLITS, share = others % VALUE_SPLITS;
  const int q_start = cu_q != nullptr ? cu_q[sequence] : sequence * tq;
  const int queries = cu_q != nullptr ? cu_q[sequence + 1] - q_start : tq;
  const int k_start = cu_k != nullptr ? cu_k[sequence] : 0;
  const int keys = cache_seqlens != nullptr ? cache_seqlens[sequence]
                   : cu_k != nullptr        ? cu_k[sequence + 1] - k_start
                                            : tk;
  const int rows = queries * group;
  if (first_row >= rows) return;
  const int shift = keys - queries;  // query i is at key position i + shift
  const int last_row = min(first_row + BLOCK_ROWS, rows) - 1;
  // Keys seen by any row of the block: both limits rise with the query.
  const int left = window_left < 0 ? UNLIMITED : min(window_left, UNLIMITED);
  const int right = window_right < 0 ? UNLIMITED : min(window_right, UNLIMITED);
  const int low = max(0, first_row / group + shift - left), high = min(keys, last_row / group + shift + right + 1);
  const int tiles = max(0, ceil_div(high - low, BLOCK_KEYS));
  const Share split = share_of<BLOCK_KEYS>(tiles, longest, cache_seqlens);
  const int first_tile = split.first, end_tile = split.end;

  // The row of a key: packed, or of all pages, or within its dense sequence; -1 past the last visible key.
  auto key_row = [&](int tile, int at) {
    int key = low + tile * BLOCK_KEYS + at;
    if (tile >= end_tile || key >= high) return -1;
    if (block_table == nullptr) return k_start + key;
    return block_table[(i64)sequence * max_blocks + key / block_size] * block_size + key % block_size;
  };
  const bool dense = cu_k == nullptr && block_table == nullptr;
  k += kv_head * k_head + (dense ? sequence * k_batch : 0);
  v += kv_head * v_head + (dense ? sequence * v_batch : 0) + share * DV;
  auto load_keys = [&](int tile) {
    if (tile < end_tile) {
      Rows<D>::load<BLOCK_KEYS, THREADS>(base + tile % KEY_STAGES * KEY_BYTES, k, k_token,
                                         key_rows + tile % (KEY_STAGES + 1) * BLOCK_KEYS, thread);
    }
  };
  auto load_values = [&](int tile) {
    if (!VALUES_IN_KEYS && tile < end_tile) {
      Rows<DV>::load<BLOCK_KEYS, THREADS>(base + VALUES_AT + tile % STAGES * VALUE_BYTES, v, v_token,
                                          key_rows + tile % (KEY_STAGES + 1) * BLOCK_KEYS, thread);
    }
  };

  // ---- First copies. Copy groups: {q, K_0}, {V_0, K_1}, .. {V_{STAGES-2}, K_{STAGES-1}}; then one per tile. With one
  // stage of values: {q, K_0}, and {K_1} if keys have two; then {V_t} and {K_{t+KEY_STAGES}}. With VALUES_IN_KEYS:
  // {q, K_0}, {K_1}, .. {K_{AHEAD-1}}; then {K_{t+AHEAD}}.
  for (int at = thread; at < BLOCK_ROWS; at += THREADS) {
    int row = first_row + at;
    query_rows[at] = row < rows ? (q_start + row / group) * heads + kv_head * group + row % group : -1;
  }
  for (int at = thread; at < KEY_STAGES * BLOCK_KEYS; at += THREADS) {
    int tile = first_tile + at / BLOCK_KEYS;
    key_rows[tile % (KEY_STAGES + 1) * BLOCK_KEYS + at % BLOCK_KEYS] = key_row(tile, at % BLOCK_KEYS);
  }
  __syncthreads();
  Rows<D>::load<BLOCK_ROWS, THREADS>(base + QUERIES_AT, q, D, query_rows, thread);
#pragma unroll 1
  for (int ahead = 0; ahead < AHEAD; ahead++) {
    load_keys(first_tile + ahead);
    copy_commit();
    if (ahead + 1 < STAGES) load_values(first_tile + ahead);
  }
  let_next_start();  // combine.cu
  int next_row = thread < BLOCK_KEYS ? key_row(first_tile + KEY_STAGES, thread) : -1;

  // ---- Roles. Softmax: one row (of which only some threads' rows exist when BLOCK_ROWS * ROW_THREADS < THREADS).
  const int soft_row = thread / ROW_THREADS, soft_lane = thread % ROW_THREADS;
  const int position = (first_row + soft_row) / group + shift;
  const int row_low = position - left, row_high = min(keys, position + right + 1);
  const float to_base2 = 1.44269504f;
  const float factor = softcap > 0.0f ? scale / softcap : scale * to_base2;
  const float cap = softcap * to_base2;
  float maximum = -INFINITE, sum = 0.0f;
  float output[ROW_TILES][WARP_TILES][4] = {};

  copy_wait<AHEAD - 1>();
  __syncthreads();
#pragma unroll 1
  for (int tile = first_tile; tile < end_tile; tile++) {
    if constexpr (STAGES == 1) {
      load_values(tile);
      copy_commit();
    }
    // ---- Scores of this warp's rows and keys over its share of the depth.
    {
      float s[WARP_ROW_TILES][KEY_PAIRS * 2][4] = {};
      const int first_row_tile = warp / KEY_WARPS * WARP_ROW_TILES, key_warp = warp % KEY_WARPS;
      const int first_key = key_warp % SPLIT_KEYS * KEY_PAIRS * 16, first_step = key_warp / SPLIT_KEYS * WARP_STEPS;
      const u32 query_tile = base + QUERIES_AT + first_row_tile * 16 * Rows<D>::stride;
      const u32 key_tile = base + tile % KEY_STAGES * KEY_BYTES + first_key * Rows<D>::stride;
      // If the depth shares start at whole swizzle periods (4 steps, 128 bytes), the addresses of the steps differ by constants.
      constexpr bool whole = SPLIT_DEPTH == 1 || WARP_STEPS % 4 == 0;
      const u32 first_column = whole ? first_step * 32 : 0;
      const u32 query_lane = query_tile + Rows<D>::lane_offset(lane) + first_column;
      const u32 key_lane = key_tile + Rows<D>::lane_offset_right(lane) + first_column;
#pragma unroll
      for (int i = 0; i < WARP_STEPS; i++) {
        if (DEPTH_STEPS % SPLIT_DEPTH != 0 && first_step + i >= DEPTH_STEPS) break;
        const int step = whole ? i : first_step + i;
        u32 a[WARP_ROW_TILES][4];
#pragma unroll
        for (int m = 0; m < WARP_ROW_TILES; m++) {
          load_matrix_x4(a[m], m * 16 * Rows<D>::stride + Rows<D>::advance(query_lane, step));
        }
#pragma unroll
        for (int n = 0; n < KEY_PAIRS; n++) {
          u32 b[4];
          load_matrix_x4(b, n * 16 * Rows<D>::stride + Rows<D>::advance(key_lane, step));
#pragma unroll
          for (int m = 0; m < WARP_ROW_TILES; m++) {
            multiply(s[m][n * 2], a[m], b[0], b[1]);
            multiply(s[m][n * 2 + 1], a[m], b[2], b[3]);
          }
        }
      }
      float* to = scores + (key_warp / SPLIT_KEYS * BLOCK_ROWS + first_row_tile * 16 + lane / 4) * SCORE_STRIDE +
                  first_key + lane % 4 * 2;
#pragma unroll
      for (int m = 0; m < WARP_ROW_TILES; m++) {
#pragma unroll
        for (int n = 0; n < KEY_PAIRS * 2; n++) {
          *(float2*)(to + m * 16 * SCORE_STRIDE + n * 8) = make_float2(s[m][n][0], s[m][n][1]);
          *(float2*)(to + (m * 16 + 8) * SCORE_STRIDE + n * 8) = make_float2(s[m][n][2], s[m][n][3]);
        }
      }
    }
    __syncthreads();  // scores are written; no warp reads the previous tile's values
    if constexpr (VALUES_IN_KEYS) {
      load_keys(tile + AHEAD);
      copy_commit();
    }

    // ---- Softmax: the row's new maximum, the weights, and the factor of what was summed before.
    if (thread < BLOCK_KEYS) key_rows[(tile + KEY_STAGES) % (KEY_STAGES + 1) * BLOCK_KEYS + thread] = next_row;
    if (BLOCK_ROWS * ROW_THREADS == THREADS || soft_row < BLOCK_ROWS) {
      const int first_key = low + tile * BLOCK_KEYS;
      float s[THREAD_PAIRS][2];
      float largest = maximum;
#pragma unroll
      for (int i = 0; i < THREAD_PAIRS; i++) {
        const int at = (i * ROW_THREADS + soft_lane) * 2;
        float2 value = *(const float2*)(scores + soft_row * SCORE_STRIDE + at);
#pragma unroll
        for (int part = 1; part < SPLIT_DEPTH; part++) {
          float2 more = *(const float2*)(scores + (part * BLOCK_ROWS + soft_row) * SCORE_STRIDE + at);
          value.x += more.x;
          value.y += more.y;
        }
        s[i][0] = value.x * factor;
        s[i][1] = value.y * factor;
#pragma unroll
        for (int j = 0; j < 2; j++) {
          if (softcap > 0.0f) s[i][j] = cap * tanh_exact(s[i][j]);
          const int key = first_key + at + j;
          if (key < row_low || key >= row_high) s[i][j] = -INFINITE;
          largest = fmaxf(largest, s[i][j]);
        }
      }
#pragma unroll
      for (int far = ROW_THREADS / 2; far > 0; far /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, far));
      }
      // A row that has seen nothing yet keeps weights of 0: -inf - 0, not -inf - -inf.
      const float center = largest == -INFINITE ? 0.0f : largest;
      const float fade = exp2_approximate(maximum - center);
      maximum = largest;
      sum *= fade;
      u32* to = (u32*)(shared + WEIGHTS_AT) + soft_row * (SCORE_STRIDE / 2) + soft_lane;
#pragma unroll
      for (int i = 0; i < THREAD_PAIRS; i++) {
        float p0 = exp2_approximate(s[i][0] - center), p1 = exp2_approximate(s[i][1] - center);
        sum += p0 + p1;
        to[i * ROW_THREADS] = pack(p0, p1);
      }
      if (soft_lane == 0) factors[soft_row] = fade;
    }
    // This tile's values and the next tile's keys. With VALUES_IN_KEYS and two stages, wait at the end of the tile instead.
    if constexpr (!VALUES_IN_KEYS || STAGES > 2) copy_wait<STAGES >= 2 ? STAGES - 2 : 0>();
    __syncthreads();  // weights are written; no warp reads this tile's keys

    if constexpr (!VALUES_IN_KEYS) {
      if constexpr (STAGES > 1) load_values(tile + STAGES - 1);
      load_keys(tile + KEY_STAGES);
      copy_commit();
    }
    next_row = thread < BLOCK_KEYS ? key_row(tile + KEY_STAGES + 1, thread) : -1;

    // ---- Output: this warp's columns.
    float fades[ROW_TILES][2];
    bool faded = false;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        fades[m][half] = factors[m * 16 + half * 8 + lane / 4];
        faded |= fades[m][half] != 1.0f;
      }
    }
    // After the first tiles the maxima seldom change.
    if (__any_sync(0xffffffff, faded)) {
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (int n = 0; n < WARP_TILES; n++) {
#pragma unroll
          for (int e = 0; e < 4; e++) output[m][n][e] *= fades[m][e / 2];
        }
      }
    }
    const u32 value_tile = base + (VALUES_IN_KEYS ? tile % KEY_STAGES * KEY_BYTES : VALUES_AT + tile % STAGES * VALUE_BYTES);
    const int first_chunk = VALUES_IN_KEYS ? share * VALUE_TILES : 0;
    const u32 weight_tile = base + WEIGHTS_AT + (lane % 16 * SCORE_STRIDE + lane / 16 * 8) * 2;
#pragma unroll
    for (int step = 0; step < BLOCK_KEYS / 16; step++) {
      u32 a[ROW_TILES][4];
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++) {
        load_matrix_x4(a[m], weight_tile + (m * 16 * SCORE_STRIDE + step * 16) * 2);
      }
#pragma unroll
      for (int n = 0; n < WARP_TILES; n += 2) {
        const int tile8 = warp * WARP_TILES + n;
        if (VALUE_TILES % WARPS != 0 && tile8 >= VALUE_TILES) break;
        u32 b[4];
        if (n + 1 < WARP_TILES) {
          // Two tiles of 8 columns; a second tile past the last is loaded from the last one and not multiplied below.
          const int chunk = min(tile8 + lane / 16, VALUE_TILES - 1);
          load_matrix_x4_transposed(b, value_tile + Values::offset(step * 16 + lane % 16, first_chunk + chunk));
        } else {
          load_matrix_x2_transposed(b[0], b[1], value_tile + Values::offset(step * 16 + lane % 16, first_chunk + tile8));
        }
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) multiply(output[m][n], a[m], b[0], b[1]);
        if (n + 1 < WARP_TILES && (VALUE_TILES % WARPS == 0 || tile8 + 1 < VALUE_TILES)) {
#pragma unroll
          for (int m = 0; m < ROW_TILES; m++) multiply(output[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
    if constexpr (STAGES == 1 || (VALUES_IN_KEYS && STAGES == 2)) {
      if constexpr (KEY_STAGES == 1 || VALUES_IN_KEYS) copy_wait<0>();
      __syncthreads();  // the next tile's keys have arrived; no warp reads this tile's values
    }
  }

  // ---- Epilogue: divide by the sums and write.
  copy_wait<0>();
  __syncthreads();
  if (BLOCK_ROWS * ROW_THREADS == THREADS || soft_row < BLOCK_ROWS) {
#pragma unroll
    for (int far = ROW_THREADS / 2; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffff, sum, far);
    if (soft_lane == 0) {
      const float row_sum = maximum + log2_approximate(sum);
      factors[soft_row] = sum > 0.0f ? 1.0f / sum : 0.0f;
      row_lse[soft_row] = sum > 0.0f ? row_sum : -INFINITE;
      const int at = query_rows[soft_row];
      if (at >= 0 && share == 0) {
        if (gridDim.y > 1) {
          partial_lse[(i64)blockIdx.y * total_q * heads + at] = row_lse[soft_row];
        } else if (lse != nullptr) {
          const int query = at / heads, head = at % heads;
          const i64 to = cu_q != nullptr ? (i64)head * total_q + query
                                         : ((i64)sequence * heads + head) * tq + (query - q_start);
          lse[to] = row_lse[soft_row] * 0.693147181f;
        }
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = m * 16 + half * 8 + lane / 4, at = query_rows[row];
      const float inverse = factors[row];
      // A part that saw no key is marked by its partial_lse and is not read.
      if (at < 0 || (gridDim.y > 1 && row_lse[row] == -INFINITE)) continue;
      const i64 part_row = (i64)blockIdx.y * total_q * heads + at;
#pragma unroll
      for (int n = 0; n < WARP_TILES; n++) {
        const int column = (warp * WARP_TILES + n) * 8 + lane % 4 * 2;
        const float x = output[m][n][half * 2] * inverse, y = output[m][n][half * 2 + 1] * inverse;
        if (column >= DV) continue;
        if (gridDim.y > 1) {
          float* to = partial_o + (part_row * VALUE_SPLITS + share) * DV + column;
          to[0] = x;
          if (DV % 2 == 0 || column + 1 < DV) to[1] = y;
        } else {
          u16* to = o + ((i64)at * VALUE_SPLITS + share) * DV + column;
          const u32 both = pack(x, y);
          if (DV % 2 == 0) {
            *(u32*)to = both;
          } else {
            to[0] = (u16)both;
            if (column + 1 < DV) to[1] = (u16)(both >> 16);
          }
        }
      }
    }
  }
}
