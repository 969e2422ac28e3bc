// Second kernel of a decode step of nsa: parts of the selected and the window branch of one query; the last block of
// threads to finish merges all three branches, gated.
//
// Block (part, key head and slab of 16 heads, query): the first selected_parts take the concatenated tokens of the query's
// blocks, `share` each, the others those of its window. Compressed parts (score_parts of them, or 0) come from
// step_score.cu. Partial results as in step.cuh. counters [queries, Hkv * slabs], 0 before and after.
//
// Launch: grid (selected_parts + window_parts, at least 1; Hkv * slabs; B * tq), block 32 * WARPS, dynamic shared memory
// the larger of ATTEND_BYTES (step.cuh) and 128 times all parts. Macros: D, DV, DTYPE, TILE, WARPS, KEY_COPIES.
//
// Source: ampere.cuh, call.cuh, softmax.cuh, common.cuh, step.cuh and this.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    nsa_step_attend(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v,
                    u16* __restrict__ o, const int* indices, int* __restrict__ reads,
                    const float* __restrict__ score_values, const float* __restrict__ score_sums,
                    float* __restrict__ values, float* __restrict__ sums, u32* __restrict__ counters,
                    const void* __restrict__ g_cmp, const void* __restrict__ g_slc, const void* __restrict__ g_swa,
                    int gates_f32, int gate_kind, const int* __restrict__ cu_q, const int* __restrict__ cu_k, int tq,
                    int tk, int heads, int kv_heads, int select_block, int select_count, int window, int score_parts,
                    int selected_parts, int share, float scale) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ int flag, chosen[1024];
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, lane = thread % 32;
  const int sequence = blockIdx.z / tq, token = blockIdx.z % tq, parts = gridDim.x;
  const Sequence here = sequence_at(sequence, cu_q, cu_k, tq, tk);
  if (token >= here.queries) return;
  const HeadSlab own = head_slab(blockIdx.y, heads, kv_heads);
  const int position = token + here.keys - here.queries;
  const i64 query = here.q_start + token;
  const i64 item = (i64)blockIdx.z * gridDim.y + blockIdx.y;
  load_query(base, q, q + (query * heads + own.first) * D, own.count);
  wait_for_previous();

  const bool selected = (int)blockIdx.x < selected_parts;
  const int* blocks = indices + (query * kv_heads + own.kv_head) * select_count;
  int total = 0, window_first = 0;
  if (selected) {
    int count = 0;
    for (int s = thread; s - thread < select_count; s += THREADS) {
      const int block = s < select_count ? blocks[s] : -1;
      if (s < select_count) chosen[s] = block;
      count += __syncthreads_count(block >= 0);
    }
    if (count > 0) total = (count - 1) * select_block + min(select_block, position + 1 - chosen[count - 1] * select_block);
  } else if (g_swa != nullptr) {
    window_first = max(0, position + 1 - window);
    total = max(0, position + 1 - window_first);
  }
  const int first = (selected ? blockIdx.x : blockIdx.x - selected_parts) * share;
  const i64 key_row = (i64)here.k_start * kv_heads + own.kv_head;
  auto token_at = [&](int at) {
    return selected ? chosen[at / select_block] * select_block + at % select_block : window_first + at;
  };
  Totals result;
  attend(
      base, Source{k + key_row * D, nullptr, v + key_row * DV, kv_heads}, first, min(total, first + share), scale, result, token_at,
      [](const float(&s)[PAIRS * 2][4], int at) {});
  leave(result, Partial{values, sums}, item * parts + blockIdx.x);
  if (first == 0 && own.slab == 0 && thread == 0) {
    reads[(query * kv_heads + own.kv_head) * 3 + (selected ? 1 : 2)] = total;
    // Without a window no part sets its count.
    if (g_swa == nullptr) reads[(query * kv_heads + own.kv_head) * 3 + 2] = 0;
  }
  if (!last_of(counters + item, parts, &flag)) return;

  // ---- Merge of all branches. First the weight of each part in a row, gates and divisions included.
  const Gates gates = {g_cmp, g_slc, g_swa, gates_f32, gate_kind};
  const int window_parts = g_swa != nullptr ? parts - selected_parts : 0, all_parts = score_parts + selected_parts + window_parts;
  float2* part_sums = (float2*)shared;
  float* weights = (float*)shared;  // overwrites the parts' maxima
  for (int r = thread; r < all_parts * 16; r += THREADS) {
    const int part = r / 16;
    part_sums[r] = read_pair(part < score_parts ? score_sums + (item * score_parts * 16 + r) * 2
                                                : sums + (item * parts * 16 + r - score_parts * 16) * 2);
  }
  __syncthreads();
  const int warp = thread / 32;
  for (int task = warp; task < 3 * own.count; task += WARPS) {
    const int branch = task / own.count, row = task % own.count;
    const int begin = branch == 0 ? 0 : branch == 1 ? score_parts : score_parts + selected_parts;
    const int count = branch == 0 ? score_parts : branch == 1 ? selected_parts : window_parts;
    if (count == 0) continue;
    float largest = -INFINITE, sum = 0.0f;
    for (int p = lane; p < count; p += 32) largest = fmaxf(largest, part_sums[(begin + p) * 16 + row].x);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
    const float center = largest == -INFINITE ? 0.0f : largest;
    for (int p = lane; p < count; p += 32) {
      const float2 part = part_sums[(begin + p) * 16 + row];
      sum += exp2_approximate(part.x - center) * part.y;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    const float by = sum > 0.0f ? gate_of(gates, branch, query * heads + own.first + row) / sum : 0.0f;
    for (int p = lane; p < count; p += 32) {
      const int at = (begin + p) * 16 + row;
      weights[at * 2] = by * exp2_approximate(part_sums[at].x - center);
    }
  }
  __syncthreads();
  for (int e = thread; e < 4 * COLUMNS; e += THREADS) {
    const int row = e * 4 / COLUMNS, column = e * 4 % COLUMNS;
    if (row >= own.count || column >= DV) continue;
    float4 result = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float* score_from = score_values + item * score_parts * 16 * COLUMNS + e * 4;
    const float* from = values + item * parts * 16 * COLUMNS + e * 4;
#pragma unroll 8
    for (int p = 0; p < all_parts; p++) {
      const float4 x = read_four(p < score_parts ? score_from + (i64)p * 16 * COLUMNS : from + (i64)(p - score_parts) * 16 * COLUMNS);
      const float weight = weights[(p * 16 + row) * 2];
      result.x += weight * x.x;
      result.y += weight * x.y;
      result.z += weight * x.z;
      result.w += weight * x.w;
    }
    u16* to = o + (query * heads + own.first + row) * DV + column;
    if (DV % 4 == 0) {
      *(uint2*)to = make_uint2(pack(result.x, result.y), pack(result.z, result.w));
    } else {
      to[0] = to_storage(result.x);
      if (column + 1 < DV) to[1] = to_storage(result.y);
      if (column + 2 < DV) to[2] = to_storage(result.z);
      if (column + 3 < DV) to[3] = to_storage(result.w);
    }
  }
}
