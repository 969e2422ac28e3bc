// blocks.cu on Hopper (sm_90a), by wgmma: the same arguments and results.
//
// A thread block has the keys and values of one select block in shared memory; each of its warpgroups takes four of the queries
// that selected it at a time, with 16 heads each: the 64 rows of a wgmma, of which a warp has the 16 of one query. The next four
// queries load meanwhile. Two blocks share an SM.
//
// Launch: grid as of blocks.cu, block 128 * GROUPS, dynamic shared memory
// KEYS * 2 (D + DV) + GROUPS * 2 * 128 D + 2 * sub_tokens + 1024; sub_tokens a multiple of 32, at most 65536.
// Macros: D, DV (multiples of 64 up to 128), DTYPE, KEYS (l' rounded up to 16, at most 64), GROUPS.
//
// Source: hopper.cuh, call.cuh, hopper_tile.cuh, softmax.cuh, list.cuh and this.

constexpr int THREADS = GROUPS * 128;
constexpr int KEY_BYTES = KEYS * 2 * D;
constexpr int QUERIES_AT = KEY_BYTES + KEYS * 2 * DV;
constexpr int TILE_BYTES = 64 * 2 * D;
constexpr int LIST_AT = QUERIES_AT + GROUPS * 2 * TILE_BYTES;

extern "C" __global__ void __launch_bounds__(THREADS, 4 / GROUPS)
    nsa_blocks_hopper(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v,
                      const int* __restrict__ indices, const u32* __restrict__ bits, uint4* __restrict__ partial,
                      float* __restrict__ lse, const int* __restrict__ cu_q, const int* __restrict__ cu_k, int tq, int tk,
                      int heads, int kv_heads, int select_block, int select_count, int chunk_first, int chunk_tokens,
                      int sub_tokens, int most_blocks, float scale) {
  extern __shared__ unsigned char unaligned[];
  const u32 base = (shared_address(unaligned) + 1023) / 1024 * 1024;
  u16* list = (u16*)(unaligned + (base - shared_address(unaligned)) + LIST_AT);
  const int thread = threadIdx.x, lane = thread % 32, in_group = thread % 128, warps_group = thread / 128;
  const Sequence here = sequence_at(blockIdx.z, cu_q, cu_k, tq, tk);
  // The grid is ordered by slab of heads: the queries of sub_tokens tokens that are gathered at a time stay in L2.
  const int lanes_of_heads = kv_heads * head_slab(0, heads, kv_heads).slabs;
  const int j = blockIdx.x % most_blocks, kv_slab = blockIdx.x / most_blocks;
  const HeadSlab own = head_slab(kv_slab, heads, kv_heads);
  const int first_key = j * select_block;
  if (first_key >= here.keys) return;

  const int sub_first = blockIdx.y * sub_tokens;  // in the chunk
  const int words = min(sub_tokens, chunk_tokens - sub_first) / 32;
  const u32* row = bits + (((i64)blockIdx.z * kv_heads + own.kv_head) * most_blocks + j) * (chunk_tokens / 32) + sub_first / 32;
  const int total = list_queries<THREADS>(list, row, words);
  if (total == 0) return;

  // ---- Keys and values, once; then queries, four ahead.
  const i64 key_row = ((i64)here.k_start + first_key) * kv_heads + own.kv_head;
  const int valid = min(select_block, here.keys - first_key);
  load_tile<KEYS, D, THREADS>(base, q, thread, [&](int r) { return r < valid ? k + (key_row + r * kv_heads) * D : nullptr; });
  load_tile<KEYS, DV, THREADS>(base + KEY_BYTES, q, thread,
                               [&](int r) { return r < valid ? v + (key_row + r * kv_heads) * DV : nullptr; });
  const u32 my_queries = base + QUERIES_AT + warps_group * 2 * TILE_BYTES;
  const u16* q_here = q + ((i64)(here.q_start + chunk_first + sub_first) * heads + own.first) * D;
  auto load = [&](int at, int stage) {
    if (at < total) {
      load_tile<64, D, 128>(my_queries + stage * TILE_BYTES, q, in_group, [&](int r) {
        return at + r / 16 < total && r % 16 < own.count ? q_here + ((i64)list[min(at + r / 16, total - 1)] * heads + r % 16) * D
                                                          : nullptr;
      });
    }
    copy_commit();
  };
  const int* my_blocks = indices + ((i64)(here.q_start + chunk_first) * kv_heads + own.kv_head) * select_count;
  const int position_0 = chunk_first + here.keys - here.queries + 1;
  const bool negative = scale <= 0.0f;
  const float factor = negative ? 1.0f : scale * TO_BASE2;
  load(warps_group * 4, 0);
  copy_wait<0>();
  fence_async_shared();
  __syncthreads();

#pragma unroll 1
  for (int at = warps_group * 4, stage = 0; at < total; at += GROUPS * 4, stage ^= 1) {
    // These queries have arrived; no warp reads the preceding ones.
    copy_wait<0>();
    fence_async_shared();
    named_barrier_sync(1 + warps_group, 128);
    load(at + GROUPS * 4, stage ^ 1);
    float s[KEYS / 2];
    wgmma_fence();
    issue_scores<64, KEYS>(s, descriptor_k_major<128>(my_queries + stage * TILE_BYTES), base, false);
    wgmma_commit();
    // The slot of this block among the query's blocks.
    const int mine = at + in_group / 32;
    const int in_chunk = sub_first + list[min(mine, total - 1)];
    const int slot = slot_of(my_blocks + (i64)in_chunk * kv_heads * select_count, select_count, j, lane);
    const int limit = min(valid, in_chunk + position_0 - first_key);
    wgmma_wait<0>();
    keep(s);
    float(&tile)[KEYS / 8][4] = reinterpret_cast<float(&)[KEYS / 8][4]>(s);
    if (negative) multiply_all<KEYS / 16>(tile, scale * TO_BASE2);
    if (limit < KEYS) mask_behind<KEYS / 16>(tile, limit, lane);
    float maximum[2] = {-INFINITE, -INFINITE}, sum[2] = {}, fade[2];
    soften<KEYS / 16>(tile, maximum, sum, fade, factor);
    float output[DV / 2];
    multiply_values<KEYS>(output, s, base + KEY_BYTES, false);
    const i64 item = (((i64)blockIdx.z * chunk_tokens + in_chunk) * lanes_of_heads + kv_slab) * select_count + slot;
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      sum[half] = row_sum(sum[half]);
      inverse[half] = 1.0f / sum[half];
      if (lane % 4 == 0 && mine < total) {
        lse[item * 16 + lane / 4 + half * 8] = maximum[half] * factor + log2_approximate(sum[half]);
      }
    }
    if (mine < total) {
      uint4* to = partial + item * (DV / 16 * 32) + lane;
#pragma unroll
      for (int p = 0; p < DV / 16; p++) {
        const float* o = output + p * 8;
        to[p * 32] = make_uint4(pack(o[0] * inverse[0], o[1] * inverse[0]), pack(o[2] * inverse[1], o[3] * inverse[1]),
                                pack(o[4] * inverse[0], o[5] * inverse[0]), pack(o[6] * inverse[1], o[7] * inverse[1]));
      }
    }
  }
  copy_wait<0>();
}
