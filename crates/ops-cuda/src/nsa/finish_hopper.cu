// finish.cu on Hopper (sm_90a): the same arguments and results.
//
// A thread block is one warpgroup and takes four adjacent queries with 16 heads each, a warp one of them. The forced blocks are
// computed by wgmma, TILE keys at a time; then each warp loads blocks_hopper.cu's results for its query's other blocks directly
// into registers, the next one while one is added. Three blocks share an SM, so that some load while others multiply.
//
// Launch: grid (ceil(chunk_tokens / 4), Hkv * slabs, B), block 128, dynamic shared memory
// 128 D + TILE * 2 (D + DV) + 256 n + 1024. Macros: D, DV (multiples of 64 up to 128), DTYPE, TILE (64).
//
// Source: hopper.cuh, call.cuh, hopper_tile.cuh, softmax.cuh, finish.cuh and this.

constexpr int THREADS = 128;
constexpr int TOKENS = 4;
constexpr int QUERY_BYTES = 64 * 2 * D;
constexpr int KEY_BYTES = TILE * 2 * D;
constexpr int SUMS_AT = QUERY_BYTES + KEY_BYTES + TILE * 2 * DV;
constexpr int PIECES = DV / 16;

// Loads one block's result for a query, in the order of the MMA's registers; read once.
DEVICE void read_result(u32 (&to)[PIECES][4], const uint4* from) {
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[p][0]), "=r"(to[p][1]), "=r"(to[p][2]), "=r"(to[p][3])
                 : "l"(from + p * 32));
  }
}

DEVICE void add_result(float (&output)[DV / 2], const u32 (&result)[PIECES][4], const float (&weight)[2]) {
#pragma unroll
  for (int p = 0; p < PIECES; p++) add_piece(output, p, result[p], weight);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    nsa_finish_hopper(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v,
                      const uint4* __restrict__ partial, const float* __restrict__ lse, u16* __restrict__ o,
                      const int* __restrict__ indices, int* __restrict__ reads, u32* __restrict__ bits,
                      const void* __restrict__ g_cmp, const void* __restrict__ g_slc, const void* __restrict__ g_swa,
                      int gates_f32, int gate_kind, const int* __restrict__ cu_q, const int* __restrict__ cu_k, int tq,
                      int tk, int heads, int kv_heads, int select_block, int select_count, int chunk_first,
                      int chunk_tokens, int initial_blocks, int local_blocks, int bit_words, int accumulate, float scale) {
  extern __shared__ unsigned char unaligned[];
  const u32 base = (shared_address(unaligned) + 1023) / 1024 * 1024;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  clear_bits(bits, bit_words);
  const Sequence here = sequence_at(blockIdx.z, cu_q, cu_k, tq, tk);
  const HeadSlab own = head_slab(blockIdx.y, heads, kv_heads);
  const int first_token = chunk_first + blockIdx.x * TOKENS, end_token = min(here.queries, chunk_first + chunk_tokens);
  if (first_token >= end_token) return;
  const int first_position = first_token + here.keys - here.queries;
  const int last_position = first_position + min(TOKENS, end_token - first_token) - 1;

  // ---- Tiles of forced keys.
  const Forced forced = forced_keys(first_position, last_position, select_block, initial_blocks, local_blocks);
  const i64 key_row = (i64)here.k_start * kv_heads + own.kv_head;
  const u32 keys_at = base + QUERY_BYTES, values_at = keys_at + KEY_BYTES;
  auto load_keys = [&](int tile) {
    if (tile < forced.tiles) {
      const int valid = forced.valid_of(tile);
      const u16* from = k + (key_row + (i64)forced.first_of(tile) * kv_heads) * D;
      load_tile<TILE, D, THREADS>(keys_at, q, thread, [&](int row) { return row < valid ? from + row * kv_heads * D : nullptr; });
    }
    copy_commit();
  };
  auto load_values = [&](int tile) {
    if (tile < forced.tiles) {
      const int valid = forced.valid_of(tile);
      const u16* from = v + (key_row + (i64)forced.first_of(tile) * kv_heads) * DV;
      load_tile<TILE, DV, THREADS>(values_at, q, thread, [&](int row) { return row < valid ? from + row * kv_heads * DV : nullptr; });
    }
    copy_commit();
  };
  if (forced.tiles > 0) {
    const u16* q_here = q + ((i64)(here.q_start + first_token) * heads + own.first) * D;
    load_tile<64, D, THREADS>(base, q, thread, [&](int row) {
      return first_token + row / 16 < end_token && row % 16 < own.count ? q_here + ((i64)(row / 16) * heads + row % 16) * D
                                                                         : nullptr;
    });
  }
  load_keys(0);
  load_values(0);

  // ---- The other blocks: loads their log-sum-exps.
  const int token = first_token + warp, position = first_position + warp;
  const i64 query = here.q_start + token;
  const int* blocks = indices + (query * kv_heads + own.kv_head) * select_count;
  const Others others = token < end_token
                            ? other_blocks(blocks, select_count, position, select_block, initial_blocks, local_blocks)
                            : Others{};
  const i64 item = (((i64)blockIdx.z * chunk_tokens + token - chunk_first) * (kv_heads * own.slabs) + blockIdx.y) * select_count;
  const uint4* from = partial + item * (PIECES * 32) + lane;
  float* sums = (float*)(unaligned + (base - shared_address(unaligned)) + SUMS_AT) + warp * 16 * select_count;
  for (int i = others.begin * 16 + lane; i < others.end * 16; i += 32) sums[i] = lse[item * 16 + i];

  const u64 queries = descriptor_k_major<128>(base);
  float maximum[2] = {-INFINITE, -INFINITE}, sum[2] = {};
  float output[DV / 2] = {};
#pragma unroll 1
  for (int tile = 0; tile < forced.tiles; tile++) {
    copy_wait<1>();
    fence_async_shared();
    __syncthreads();  // the keys have arrived
    float s[TILE / 2];
    wgmma_fence();
    issue_scores<64, TILE>(s, queries, keys_at, false);
    wgmma_commit();
    wgmma_wait<0>();
    keep(s);
    __syncthreads();  // no warp reads them any more
    load_keys(tile + 1);
    float(&scores)[TILE / 8][4] = reinterpret_cast<float(&)[TILE / 8][4]>(s);
    multiply_all<TILE / 16>(scores, scale * TO_BASE2);
    forced.mask<TILE / 16>(scores, tile, position, lane);
    float fade[2];
    soften<TILE / 16>(scores, maximum, sum, fade, 1.0f);
#pragma unroll
    for (int i = 0; i < DV / 2; i++) output[i] *= fade[i / 2 % 2];
    copy_wait<1>();
    fence_async_shared();
    __syncthreads();  // the values have arrived
    multiply_values<TILE>(output, s, values_at, true);
    __syncthreads();
    load_values(tile + 1);
  }
  copy_wait<0>();
  if (token >= end_token) return;
  if (own.slab == 0 && lane == 0) reads[(query * kv_heads + own.kv_head) * 3 + 1] = others.tokens;
  __syncwarp();
  const Merge merge = {sums, lane};
  merge.widen(output, maximum, sum, others);
  u32 even[PIECES][4], odd[PIECES][4];
  if (others.begin < others.end) read_result(even, from + (i64)others.begin * (PIECES * 32));
#pragma unroll 1
  for (int s = others.begin; s < others.end; s += 2) {
    float weight[2];
    if (s + 1 < others.end) read_result(odd, from + (i64)(s + 1) * (PIECES * 32));
    merge.weigh(weight, maximum, sum, s);
    add_result(output, even, weight);
    if (s + 1 >= others.end) break;
    if (s + 2 < others.end) read_result(even, from + (i64)(s + 2) * (PIECES * 32));
    merge.weigh(weight, maximum, sum, s + 1);
    add_result(output, odd, weight);
  }
  const Gates gates = {g_cmp, g_slc, g_swa, gates_f32, gate_kind};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int head = lane / 4 + half * 8;
    if (head >= own.count) continue;
    const i64 row = query * heads + own.first + head;
    const float by = sum[half] > 0.0f ? gate_of(gates, 1, row) / sum[half] : 0.0f;
#pragma unroll
    for (int i = half * 2; i < DV / 2; i += 4) {
      u32* to = (u32*)(o + row * DV + i / 4 * 8 + lane % 4 * 2);
      float low = output[i] * by, high = output[i + 1] * by;
      if (accumulate) {
        low += to_float((u16)*to);
        high += to_float((u16)(*to >> 16));
      }
      *to = pack(low, high);
    }
  }
}
