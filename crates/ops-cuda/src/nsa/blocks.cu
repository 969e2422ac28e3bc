// The selected branch of nsa, block by block: each block of keys is read once for all the queries that selected it.
//
// A thread block has the keys and values of one select block in shared memory, lists the queries, among sub_tokens consecutive
// ones, that selected it (from the bits that select.cu set), and each warp takes them ROW_TILES at a time, 16
// heads each: the softmax over this block alone, which finish.cu then merges with that of the query's other blocks.
//
// q [B, Tq, HQ, D], k, v [B, Tk, Hkv, D|DV], or packed with cu_q and cu_k. indices [.., Hkv, n] as select.cu wrote them.
// partial [B * chunk_tokens, Hkv * slabs, n] of 16 x DV (padded to 16) storage elements in the order of the MMA's registers: pieces
// of 16 bytes [DV / 16][32 lanes]; lse [B * chunk_tokens, Hkv * slabs, n, 16] f32, base 2.
//
// Launch: grid (blocks of the longest sequence * Hkv * slabs, ceil(chunk_tokens / sub_tokens), B), block 32 * WARPS;
// sub_tokens a multiple of 32, at most 1024 * WARPS and 65536. Dynamic shared memory
// KEYS * (row(D) + row(DV)) + WARPS * STAGES * ROW_TILES * 16 * row(D) + 2 * sub_tokens.
// Macros: D, DV, DTYPE, KEYS (l' rounded up to 16, at most 64), ROW_TILES, WARPS, STAGES (1, 2: tiles of queries per warp), BLOCKS_PER_SM.
//
// Source: ampere.cuh, call.cuh, softmax.cuh, common.cuh, list.cuh and this.

constexpr int THREADS = WARPS * 32;
constexpr int PAIRS = KEYS / 16;
constexpr int VALUES_AT = KEYS * Rows<D>::stride;
constexpr int QUERIES_AT = VALUES_AT + KEYS * Rows<DV>::stride;
constexpr int TILE_BYTES = 16 * Rows<D>::stride;
constexpr int LIST_AT = QUERIES_AT + WARPS * STAGES * ROW_TILES * TILE_BYTES;
constexpr int PIECES = Rows<DV>::padded / 16;
constexpr int PIECES_AT_ONCE = 4;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    nsa_blocks(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v,
               const int* __restrict__ indices, const u32* __restrict__ bits, uint4* __restrict__ partial,
               float* __restrict__ lse, const int* __restrict__ cu_q, const int* __restrict__ cu_k, int tq, int tk,
               int heads, int kv_heads, int select_block, int select_count, int chunk_first, int chunk_tokens,
               int sub_tokens, int most_blocks, float scale) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  u16* list = (u16*)(shared + LIST_AT);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const Sequence here = sequence_at(blockIdx.z, cu_q, cu_k, tq, tk);
  // The grid is ordered by slab of heads: the queries of sub_tokens tokens that are gathered at a time stay in L2.
  const int lanes_of_heads = kv_heads * head_slab(0, heads, kv_heads).slabs;
  const int j = blockIdx.x % most_blocks, kv_slab = blockIdx.x / most_blocks;
  const HeadSlab own = head_slab(kv_slab, heads, kv_heads);
  const int first_key = j * select_block;
  if (first_key >= here.keys) return;

  // ---- The queries that selected this block.
  const int sub_first = blockIdx.y * sub_tokens;  // in the chunk
  const int words = min(sub_tokens, chunk_tokens - sub_first) / 32;
  const u32* row = bits + (((i64)blockIdx.z * kv_heads + own.kv_head) * most_blocks + j) * (chunk_tokens / 32) + sub_first / 32;
  const int total = list_queries<THREADS>(list, row, words);
  if (total == 0) return;

  // ---- Keys and values, once; then queries, a tile ahead.
  const i64 key_row = ((i64)here.k_start + first_key) * kv_heads + own.kv_head;
  const int valid = min(select_block, here.keys - first_key);
  Rows<D>::template load_range<KEYS, THREADS>(base, k + key_row * D, kv_heads * D, valid, thread);
  Rows<DV>::template load_range<KEYS, THREADS>(base + VALUES_AT, v + key_row * DV, kv_heads * DV, valid, thread);
  copy_commit();
  const u32 my_queries = base + QUERIES_AT + warp * STAGES * ROW_TILES * TILE_BYTES;
  const u16* q_here = q + ((i64)(here.q_start + chunk_first + sub_first) * heads + own.first) * D;
  auto load = [&](int at, int stage) {
    if (at < total) {
      Rows<D>::template copy<ROW_TILES * 16, 32, false, 2>(my_queries + stage * ROW_TILES * TILE_BYTES, lane, q, [&](int r) {
        return at + r / 16 < total && r % 16 < own.count ? q_here + ((i64)list[min(at + r / 16, total - 1)] * heads + r % 16) * D
                                                          : nullptr;
      });
    }
    copy_commit();
  };
  // A query's index among those of the chunk, with its heads.
  auto item_of = [&](int in_chunk) {
    return ((i64)blockIdx.z * chunk_tokens + in_chunk) * lanes_of_heads + kv_slab;
  };
  const float factor = scale * TO_BASE2;
  load(warp * ROW_TILES, 0);
  if (STAGES == 2) {
    copy_wait<1>();
  } else {
    copy_wait<0>();
  }
  __syncthreads();

#pragma unroll 1
  for (int at = warp * ROW_TILES, stage = 0; at < total; at += WARPS * ROW_TILES, stage = (stage + 1) % STAGES) {
    if (STAGES == 2) load(at + WARPS * ROW_TILES, stage ^ 1);
    // The slots of this block among the queries' blocks.
    int slot[ROW_TILES], in_chunk[ROW_TILES];
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
      in_chunk[m] = sub_first + list[min(at + m, total - 1)];
      const int* mine = indices + ((i64)(here.q_start + chunk_first + in_chunk[m]) * kv_heads + own.kv_head) * select_count;
      slot[m] = slot_of(mine, select_count, j, lane);
    }
    copy_wait<STAGES - 1>();
    __syncwarp();
    float s[ROW_TILES][PAIRS * 2][4] = {};
    u32 key_tile = base;
    asm volatile("" : "+r"(key_tile));
    add_scores<ROW_TILES, PAIRS>(s, my_queries + stage * ROW_TILES * TILE_BYTES + Rows<D>::lane_offset(lane),
                                 key_tile + Rows<D>::lane_offset_right(lane));
    if (STAGES == 1) {
      __syncwarp();
      load(at + WARPS * ROW_TILES, 0);
    }
    float inverse[ROW_TILES][2];
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
      const int position = chunk_first + in_chunk[m] + here.keys - here.queries;
      const int limit = min(valid, position + 1 - first_key);
      multiply_all<PAIRS>(s[m], factor);
      if (limit < KEYS) mask_behind<PAIRS>(s[m], limit, lane);
      float maximum[2] = {-INFINITE, -INFINITE}, sum[2] = {}, fade[2];
      soften<PAIRS>(s[m], maximum, sum, fade, 1.0f);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        sum[half] = row_sum(sum[half]);
        inverse[m][half] = 1.0f / sum[half];
        if (lane % 4 == 0 && at + m < total) {
          lse[(item_of(in_chunk[m]) * select_count + slot[m]) * 16 + lane / 4 + half * 8] = maximum[half] + log2_approximate(sum[half]);
        }
      }
    }
    // ---- Output, a few columns at a time, so that finished columns take no registers.
    u32 a[ROW_TILES][PAIRS][4];
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
      for (int step = 0; step < PAIRS; step++) {
        a[m][step][0] = pack(s[m][step * 2][0], s[m][step * 2][1]);
        a[m][step][1] = pack(s[m][step * 2][2], s[m][step * 2][3]);
        a[m][step][2] = pack(s[m][step * 2 + 1][0], s[m][step * 2 + 1][1]);
        a[m][step][3] = pack(s[m][step * 2 + 1][2], s[m][step * 2 + 1][3]);
      }
    }
    const u32 value_lane = key_tile + VALUES_AT + Rows<DV>::lane_offset(lane);
#pragma unroll
    for (int first = 0; first < PIECES; first += PIECES_AT_ONCE) {
      float output[ROW_TILES][PIECES_AT_ONCE * 2][4] = {};
#pragma unroll
      for (int step = 0; step < PAIRS; step++) {
#pragma unroll
        for (int p = 0; p < PIECES_AT_ONCE && first + p < PIECES; p++) {
          u32 b[4];
          load_matrix_x4_transposed(b, step * 16 * Rows<DV>::stride + Rows<DV>::advance(value_lane, first + p));
#pragma unroll
          for (int m = 0; m < ROW_TILES; m++) {
            multiply(output[m][p * 2], a[m][step], b[0], b[1]);
            multiply(output[m][p * 2 + 1], a[m][step], b[2], b[3]);
          }
        }
      }
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++) {
        if (at + m >= total) break;
        uint4* to = partial + (item_of(in_chunk[m]) * select_count + slot[m]) * (PIECES * 32) + lane;
#pragma unroll
        for (int p = 0; p < PIECES_AT_ONCE && first + p < PIECES; p++) {
          const float(&low)[4] = output[m][p * 2], (&high)[4] = output[m][p * 2 + 1];
          to[(first + p) * 32] = make_uint4(pack(low[0] * inverse[m][0], low[1] * inverse[m][0]),
                                            pack(low[2] * inverse[m][1], low[3] * inverse[m][1]),
                                            pack(high[0] * inverse[m][0], high[1] * inverse[m][0]),
                                            pack(high[2] * inverse[m][1], high[3] * inverse[m][1]));
        }
      }
    }
    if (STAGES == 2) __syncwarp();  // no lane reads the queries when they are overwritten
  }
  copy_wait<0>();
}
