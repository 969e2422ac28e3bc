// Second kernel of a decode step of nsa: parts of the selected and the window branch of one query, and in the last block of
// threads to finish all three branches, gated.
//
// Block (part, key head and slab of 16 heads, query): the first selected_parts take the tokens of the query's blocks laid
// end to end, `share` each, the others those of its window. Compressed parts (score_parts of them, or 0) come from
// step_score.cu. Partial results as in step.cuh. counters [queries, Hkv * slabs], 0 before and after.
//
// Launch: grid (selected_parts + window_parts, at least 1; Hkv * slabs; B * tq), block 32 * WARPS, dynamic shared memory
// 16 row(D) + WARPS * max(TILE (row(D) + row(DV)), 64 DV padded to 16). Macros: D, DV, DTYPE, TILE, WARPS.

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
  __shared__ int flag;
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, lane = thread % 32;
  const int sequence = blockIdx.z / tq, token = blockIdx.z % tq, parts = gridDim.x;
  const Sequence here = sequence_at(sequence, cu_q, cu_k, tq, tk);
  if (token >= here.queries) return;
  const int group = heads / kv_heads, slabs = gridDim.y / kv_heads;
  const int kv_head = blockIdx.y / slabs, slab = blockIdx.y % slabs;
  const int first_head = kv_head * group + slab * HEAD_ROWS, slab_heads = min(HEAD_ROWS, group - slab * HEAD_ROWS);
  const int position = token + here.keys - here.queries;
  const i64 query = here.q_start + token;
  const i64 item = (i64)blockIdx.z * gridDim.y + blockIdx.y;
  load_query(base, q, q + (query * heads + first_head) * D, slab_heads);
  wait_for_previous();

  const bool selected = (int)blockIdx.x < selected_parts;
  const int* blocks = indices + (query * kv_heads + kv_head) * select_count;
  int total = 0, window_first = 0;
  if (selected) {
    int count = 0;
    for (int s = lane; s - lane < select_count; s += 32) {
      count += __popc(__ballot_sync(0xffffffff, s < select_count && blocks[s] >= 0));
    }
    if (count > 0) total = (count - 1) * select_block + min(select_block, position + 1 - blocks[count - 1] * select_block);
  } else if (g_swa != nullptr) {
    window_first = max(0, position + 1 - window);
    total = max(0, position + 1 - window_first);
  }
  const int first = (selected ? blockIdx.x : blockIdx.x - selected_parts) * share;
  const i64 key_row = (i64)here.k_start * kv_heads + kv_head;
  auto token_at = [&](int at) {
    return selected ? blocks[at / select_block] * select_block + at % select_block : window_first + at;
  };
  const u16* none = nullptr;
  attend(
      base, shared, q, first, min(total, first + share), false, true, scale, Partial{values, sums}, item * parts + blockIdx.x,
      [&](int n) { return k + (key_row + (i64)token_at(n) * kv_heads) * D; }, [&](int n) { return none; },
      [&](int n) { return v + (key_row + (i64)token_at(n) * kv_heads) * DV; }, [](const float(&s)[PAIRS * 2][4], int at) {});
  if (first == 0 && slab == 0 && thread == 0) {
    reads[(query * kv_heads + kv_head) * 3 + (selected ? 1 : 2)] = total;
    // Without a window there is no part of it to say so.
    if (g_swa == nullptr) reads[(query * kv_heads + kv_head) * 3 + 2] = 0;
  }
  if (!last_of(counters + item, parts, &flag)) return;

  // ---- All branches.
  const Gates gates = {g_cmp, g_slc, g_swa, gates_f32, gate_kind};
  for (int e = thread; e < 16 * COLUMNS; e += THREADS) {
    const int row = e / COLUMNS, column = e % COLUMNS;
    if (row >= slab_heads || column >= DV) continue;
    const i64 head = query * heads + first_head + row;
    float result = 0.0f;
    auto add = [&](int branch, const float* part_values, const float* part_sums, i64 part, int count) {
      if (count == 0) return;
      float largest = -INFINITE, sum = 0.0f, value = 0.0f;
#pragma unroll 8
      for (int p = 0; p < count; p++) largest = fmaxf(largest, read_through(part_sums + ((part + p) * 16 + row) * 2));
      if (largest == -INFINITE) return;
#pragma unroll 8
      for (int p = 0; p < count; p++) {
        const float weight = exp2_approximate(read_through(part_sums + ((part + p) * 16 + row) * 2) - largest);
        sum += weight * read_through(part_sums + ((part + p) * 16 + row) * 2 + 1);
        value += weight * read_through(part_values + (part + p) * 16 * COLUMNS + e);
      }
      result += gate_of(gates, branch, head) * value / sum;
    };
    add(0, score_values, score_sums, item * score_parts, score_parts);
    add(1, values, sums, item * parts, selected_parts);
    add(2, values, sums, item * parts + selected_parts, g_swa != nullptr ? parts - selected_parts : 0);
    o[head * DV + column] = to_storage(result);
  }
}
