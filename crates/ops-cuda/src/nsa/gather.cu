// The selected branch or the window branch of nsa, query by query: o (+)= gate * softmax(scale q k^T) v.
//
// A warp takes one query and 16 heads of one key head, and copies the tokens that it reads itself, TILE at a time: the
// concatenated tokens of its blocks, of which only the last can be truncated (by the query's position), or those of the window.
//
// q, o [B, Tq, HQ, D|DV], k, v [B, Tk, Hkv, D|DV], or packed with cu_q and cu_k. indices [.., Hkv, n]: ascending, ends at
// -1; null: the window branch. accumulate: adds to the values of o. reads [.., Hkv, 3]: [1] or [2] gets the number of tokens read.
//
// Launch: grid (ceil(longest Tq / WARPS), Hkv * slabs, B), block 32 * WARPS, dynamic shared memory
// WARPS * (16 row(D) + 2 TILE (row(D) + row(DV))). Macros: D, DV, DTYPE, TILE (16, 32), WARPS, BLOCKS_PER_SM.

constexpr int PAIRS = TILE / 16;
constexpr int QUERY_BYTES = 16 * Rows<D>::stride;
constexpr int KEY_BYTES = TILE * Rows<D>::stride;
constexpr int STAGE_BYTES = KEY_BYTES + TILE * Rows<DV>::stride;
constexpr int WARP_BYTES = QUERY_BYTES + 2 * STAGE_BYTES;

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS_PER_SM)
    nsa_gather(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v, u16* __restrict__ o,
               const int* __restrict__ indices, int* __restrict__ reads, const void* __restrict__ g_cmp,
               const void* __restrict__ g_slc, const void* __restrict__ g_swa, int gates_f32, int gate_kind,
               const int* __restrict__ cu_q, const int* __restrict__ cu_k, int tq, int tk, int heads, int kv_heads,
               int select_block, int select_count, int window, int accumulate, float scale) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 base = shared_address(shared) + warp * WARP_BYTES;
  const Sequence here = sequence_at(blockIdx.z, cu_q, cu_k, tq, tk);
  const int group = heads / kv_heads, slabs = ceil_div(group, HEAD_ROWS);
  const int kv_head = blockIdx.y / slabs, slab = blockIdx.y % slabs;
  const int first_head = kv_head * group + slab * HEAD_ROWS, slab_heads = min(HEAD_ROWS, group - slab * HEAD_ROWS);
  const int token = (gridDim.x - 1 - blockIdx.x) * WARPS + warp;
  if (token >= here.queries) return;
  const int position = token + here.keys - here.queries;
  const i64 query = here.q_start + token;

  // ---- Number and positions of the tokens.
  const bool selected = indices != nullptr;
  const int* blocks = indices + (query * kv_heads + kv_head) * select_count;
  int total = 0, window_first = 0;
  if (selected) {
    int count = 0;
    for (int s = lane; s - lane < select_count; s += 32) {
      count += __popc(__ballot_sync(0xffffffff, s < select_count && blocks[s] >= 0));
    }
    if (count > 0) total = (count - 1) * select_block + min(select_block, position + 1 - blocks[count - 1] * select_block);
  } else {
    window_first = max(0, position + 1 - window);
    total = max(0, position + 1 - window_first);
  }
  const i64 key_row = (i64)here.k_start * kv_heads + kv_head;
  const u16 *keys = k + key_row * D, *values = v + key_row * DV;
  auto token_at = [&](int at) {
    return selected ? blocks[at / select_block] * select_block + at % select_block : window_first + at;
  };
  auto load = [&](int first, int stage) {
    const u32 to = base + QUERY_BYTES + stage * STAGE_BYTES;
    if (first < total) {
      Rows<D>::template copy<TILE, 32, false, 2>(to, lane, k, [&](int row) {
        return first + row < total ? keys + (i64)token_at(first + row) * (kv_heads * D) : nullptr;
      });
      Rows<DV>::template copy<TILE, 32, false, 2>(to + KEY_BYTES, lane, v, [&](int row) {
        return first + row < total ? values + (i64)token_at(first + row) * (kv_heads * DV) : nullptr;
      });
    }
    copy_commit();
  };
  const u16* q_here = q + (query * heads + first_head) * D;
  Rows<D>::template copy<16, 32, false, 1>(base, lane, q, [&](int row) {
    return row < slab_heads ? q_here + row * D : nullptr;
  });
  load(0, 0);

  const bool negative = scale <= 0.0f;
  const float factor = negative ? 1.0f : scale * TO_BASE2;
  float maximum[1][2] = {{-INFINITE, -INFINITE}}, sum[1][2] = {};
  float output[1][Rows<DV>::padded / 8][4] = {};
  int walked = 0;
#pragma unroll 1
  for (int first = 0, stage = 0; first < total; first += TILE, stage ^= 1) {
    load(first + TILE, stage ^ 1);
    copy_wait<1>();
    __syncwarp();
    u32 key_tile = base + QUERY_BYTES + stage * STAGE_BYTES, query_tile = base;
    asm volatile("" : "+r"(key_tile), "+r"(query_tile));
    float s[1][PAIRS * 2][4] = {}, fade[1][2];
    add_scores<1, PAIRS>(s, query_tile + Rows<D>::lane_offset(lane), key_tile + Rows<D>::lane_offset_right(lane));
    if (negative) multiply_all<PAIRS>(s[0], scale * TO_BASE2);
    if (first + TILE > total) mask_behind<PAIRS>(s[0], total - first, lane);
    soften<PAIRS>(s[0], maximum[0], sum[0], fade[0], factor);
    add_output<1, PAIRS>(output, s, fade, key_tile + KEY_BYTES + Rows<DV>::lane_offset(lane));
    walked += min(TILE, total - first);
    __syncwarp();  // no lane reads the tile when it is overwritten
  }
  copy_wait<0>();

  const int branch = selected ? 1 : 2;
  const Gates gates = {g_cmp, g_slc, g_swa, gates_f32, gate_kind};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float all = row_sum(sum[0][half]);
    const int head = lane / 4 + half * 8;
    if (head >= slab_heads) continue;
    const i64 row = query * heads + first_head + head;
    const float gate = gate_of(gates, branch, row);
    write_row(o + row * DV, output[0], half, all > 0.0f ? gate / all : 0.0f, accumulate, lane);
  }
  if (slab == 0 && lane == 0) reads[(query * kv_heads + kv_head) * 3 + branch] = walked;
}
