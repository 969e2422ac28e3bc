// The rest of the selected branch of nsa after blocks.cu: o (+)= gate * softmax over all of a query's blocks.
//
// A thread block takes WARPS adjacent queries, a warp one of them with 16 heads. First the forced blocks, which
// adjacent queries share: the first initial_blocks and the local_blocks up to each query's own, by tiles of TILE keys that all warps read.
// Then the results of blocks.cu for the query's other blocks: weighted by 2^(lse - maximum) and added, in the order of the
// blocks; the first of them load while the forced blocks are processed.
//
// It also counts the tokens of the query's blocks (reads [.., Hkv, 3]: [1]), and clears the bits of the chunk.
//
// Launch: grid (ceil(chunk_tokens / WARPS), Hkv * slabs, B), block 32 * WARPS, dynamic shared memory
// WARPS * 16 row(D) + 2 TILE (row(D) + row(DV)) + WARPS * (1024 ceil(DV / 16) + 64 n). Macros: D, DV, DTYPE, TILE (16, 32), WARPS, BLOCKS_PER_SM.
// Tensors as in blocks.cu; accumulate: adds to the values of o.
//
// Source: ampere.cuh, call.cuh, softmax.cuh, common.cuh, finish.cuh and this.

constexpr int THREADS = WARPS * 32;
constexpr int PAIRS = TILE / 16;
constexpr int PIECES = Rows<DV>::padded / 16;
constexpr int QUERY_BYTES = WARPS * 16 * Rows<D>::stride;
constexpr int KEY_BYTES = TILE * Rows<D>::stride;
constexpr int STAGE_BYTES = KEY_BYTES + TILE * Rows<DV>::stride;
constexpr int AHEAD = 2;  // blocks of a query whose results are in flight
constexpr int RESULT_BYTES = PIECES * 512;
constexpr int RESULTS_AT = QUERY_BYTES + 2 * STAGE_BYTES;
constexpr int WEIGHTS_AT = RESULTS_AT + WARPS * AHEAD * RESULT_BYTES;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    nsa_finish(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v,
               const uint4* __restrict__ partial, const float* __restrict__ lse, u16* __restrict__ o,
               const int* __restrict__ indices, int* __restrict__ reads, u32* __restrict__ bits,
               const void* __restrict__ g_cmp, const void* __restrict__ g_slc, const void* __restrict__ g_swa,
               int gates_f32, int gate_kind, const int* __restrict__ cu_q, const int* __restrict__ cu_k, int tq, int tk,
               int heads, int kv_heads, int select_block, int select_count, int chunk_first, int chunk_tokens,
               int initial_blocks, int local_blocks, int bit_words, int accumulate, float scale) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  clear_bits(bits, bit_words);
  const Sequence here = sequence_at(blockIdx.z, cu_q, cu_k, tq, tk);
  const HeadSlab own = head_slab(blockIdx.y, heads, kv_heads);
  const int first_token = chunk_first + blockIdx.x * WARPS, end_token = min(here.queries, chunk_first + chunk_tokens);
  if (first_token >= end_token) return;
  const int first_position = first_token + here.keys - here.queries;
  const int last_position = first_position + min(WARPS, end_token - first_token) - 1;

  // ---- Tiles of forced keys.
  const Forced forced = forced_keys(first_position, last_position, select_block, initial_blocks, local_blocks);
  const i64 key_row = (i64)here.k_start * kv_heads + own.kv_head;
  const u16 *keys = k + key_row * D, *values = v + key_row * DV;
  auto load = [&](int tile) {
    if (tile < forced.tiles) {
      const u32 to = base + QUERY_BYTES + tile % 2 * STAGE_BYTES;
      const int first = forced.first_of(tile), valid = forced.valid_of(tile);
      Rows<D>::template load_range<TILE, THREADS>(to, keys + (i64)first * kv_heads * D, kv_heads * D, valid, thread);
      Rows<DV>::template load_range<TILE, THREADS>(to + KEY_BYTES, values + (i64)first * kv_heads * DV, kv_heads * DV, valid,
                                                   thread);
    }
    copy_commit();
  };
  if (forced.tiles > 0) {
    const u16* q_here = q + ((i64)(here.q_start + first_token) * heads + own.first) * D;
    Rows<D>::template copy<WARPS * 16, THREADS, false, 1>(base, thread, q, [&](int row) {
      return first_token + row / 16 < end_token && row % 16 < own.count ? q_here + ((i64)(row / 16) * heads + row % 16) * D
                                                                         : nullptr;
    });
  }
  load(0);

  const int token = first_token + warp, position = first_position + warp;

  // ---- Starts loading the other blocks' results. A lane copies what it will read.
  const i64 query = here.q_start + token;
  const int* blocks = indices + (query * kv_heads + own.kv_head) * select_count;
  const Others others = token < end_token
                            ? other_blocks(blocks, select_count, position, select_block, initial_blocks, local_blocks)
                            : Others{};
  const i64 item = (((i64)blockIdx.z * chunk_tokens + token - chunk_first) * (kv_heads * own.slabs) + blockIdx.y) * select_count;
  const uint4* from = partial + item * (PIECES * 32) + lane;
  const u32 results = base + RESULTS_AT + warp * AHEAD * RESULT_BYTES + lane * 16;
  auto fetch = [&](int slot) {
    if (slot < others.end) {
#pragma unroll
      for (int p = 0; p < PIECES; p++) copy_async<16>(results + slot % AHEAD * RESULT_BYTES + p * 512, from + ((i64)slot * PIECES + p) * 32);
    }
    copy_commit();
  };
  fetch(others.begin);
  fetch(others.begin + 1);
  float* sums = (float*)(shared + WEIGHTS_AT) + warp * 16 * select_count;
  for (int i = others.begin * 16 + lane; i < others.end * 16; i += 32) sums[i] = lse[item * 16 + i];

  const float factor = scale * TO_BASE2;
  float maximum[2] = {-INFINITE, -INFINITE}, sum[2] = {};
  float output[1][Rows<DV>::padded / 8][4] = {};
#pragma unroll 1
  for (int tile = 0; tile < forced.tiles; tile++) {
    // The first tile was issued before the results.
    if (tile == 0) {
      copy_wait<AHEAD>();
    } else {
      copy_wait<0>();
    }
    __syncthreads();  // this tile has arrived; no warp reads the previous one
    load(tile + 1);
    u32 key_tile = base + QUERY_BYTES + tile % 2 * STAGE_BYTES, query_lane = base + warp * 16 * Rows<D>::stride;
    asm volatile("" : "+r"(key_tile), "+r"(query_lane));
    float s[1][PAIRS * 2][4] = {}, fade[1][2];
    add_scores<1, PAIRS>(s, query_lane + Rows<D>::lane_offset(lane), key_tile + Rows<D>::lane_offset_right(lane));
    multiply_all<PAIRS>(s[0], factor);
    forced.mask<PAIRS>(s[0], tile, position, lane);
    soften<PAIRS>(s[0], maximum, sum, fade[0], 1.0f);
    add_output<1, PAIRS>(output, s, fade, key_tile + KEY_BYTES + Rows<DV>::lane_offset(lane));
  }
  copy_wait<0>();
  if (token >= end_token) return;
  if (own.slab == 0 && lane == 0) reads[(query * kv_heads + own.kv_head) * 3 + 1] = others.tokens;
  __syncwarp();
  float(&all)[Rows<DV>::padded / 2] = reinterpret_cast<float(&)[Rows<DV>::padded / 2]>(output);
  const Merge merge = {sums, lane};
  merge.widen(all, maximum, sum, others);
#pragma unroll 1
  for (int s = others.begin; s < others.end; s++) {
    copy_wait<AHEAD - 1>();
    float weight[2];
    merge.weigh(weight, maximum, sum, s);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
      u32 both[4];
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(both[0]), "=r"(both[1]), "=r"(both[2]), "=r"(both[3])
                   : "r"(results + s % AHEAD * RESULT_BYTES + p * 512)
                   : "memory");
      add_piece(all, p, both, weight);
    }
    fetch(s + AHEAD);
  }
  copy_wait<0>();
  const Gates gates = {g_cmp, g_slc, g_swa, gates_f32, gate_kind};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int head = lane / 4 + half * 8;
    if (head >= own.count) continue;
    const i64 row = query * heads + own.first + head;
    const float gate = gate_of(gates, 1, row);
    write_row(o + row * DV, output[0], half, sum[half] > 0.0f ? gate / sum[half] : 0.0f, accumulate, lane);
  }
}
