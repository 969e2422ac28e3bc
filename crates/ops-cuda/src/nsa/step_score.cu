// First kernel of a decode step of nsa: scores of one query against compressed keys, the parts of its compressed branch, and, in
// the last thread block to finish, the selection of its blocks.
//
// Block (split, key head and slab of 16 heads, query) takes compressed tokens split * share .. + share. scores
// [queries, Hkv * slabs, 16, score_stride] f32 in base 2; partial values and sums [queries, Hkv * slabs, splits, ..] as in step.cuh.
// The last block of a (query, key head), if `select` is not 0: weights from scores and all parts' sums, and the selection by these.
//
// Queries are B * tq, or for packed sequences B * (longest tq), some of which do not exist. k_cmp, k_rest, v_cmp as in
// compressed.cu; k_rest null: no rounding remainder; v_cmp null: no branch. counters [queries, Hkv], 0 before and after.
//
// Launch: grid (splits, Hkv * slabs, B * tq), block 32 * WARPS, dynamic shared memory the larger of ATTEND_BYTES (step.cuh) and
// 128 slabs splits + 4 (tokens + blocks + n), of the longest sequence's compressed tokens and select blocks. Macros: D, DV, DTYPE,
// TILE, WARPS, KEY_COPIES. n is at most 1024.
//
// Source: ampere.cuh, call.cuh, softmax.cuh, common.cuh, step.cuh, importance.cuh, step_select.cuh and this.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    nsa_step_score(const u16* __restrict__ q, const u16* __restrict__ k_cmp, const u16* __restrict__ k_rest,
                   const u16* __restrict__ v_cmp, float* __restrict__ scores, float* __restrict__ values,
                   float* __restrict__ sums, u32* __restrict__ counters, int* __restrict__ indices,
                   int* __restrict__ reads, const int* __restrict__ cu_q, const int* __restrict__ cu_k, int tq, int tk,
                   int heads, int kv_heads, int block, int stride, int rows_each, int share, int score_stride,
                   int select, int select_block, int select_count, int initial_blocks, int local_blocks, float scale) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float lse[64];
  __shared__ int flag;
  let_next_start();
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int sequence = blockIdx.z / tq, token = blockIdx.z % tq;
  const Sequence here = sequence_at(sequence, cu_q, cu_k, tq, tk);
  if (token >= here.queries) return;
  const int group = heads / kv_heads, splits = gridDim.x;
  const HeadSlab own = head_slab(blockIdx.y, heads, kv_heads);
  const int position = token + here.keys - here.queries;
  const Selecting selecting = selecting_at(position, block, stride, select_block, select_count, initial_blocks, local_blocks);
  const int seen = selecting.seen;
  const i64 query = here.q_start + token;
  const i64 item = (i64)blockIdx.z * gridDim.y + blockIdx.y;
  const i64 row0 = compressed_row(here, sequence, stride, rows_each) * kv_heads + own.kv_head;
  float* my_scores = scores + item * 16 * score_stride;
  load_query(base, q, q + (query * heads + own.first) * D, own.count);
  wait_for_previous();
  const int first = blockIdx.x * share;
  Totals result;
  const Source source = {k_cmp + row0 * D, k_rest != nullptr ? k_rest + row0 * D : nullptr,
                         v_cmp != nullptr ? v_cmp + row0 * DV : nullptr, kv_heads};
  attend(
      base, source, first, min(seen, first + share), scale, result, [](int i) { return i; },
      [&](const float(&s)[PAIRS * 2][4], int at) {
        if (!select) return;
#pragma unroll
        for (int n = 0; n < PAIRS * 2; n++) {
#pragma unroll
          for (int e = 0; e < 4; e++) {
            const int row = lane / 4 + e / 2 * 8, key = at + n * 8 + lane % 4 * 2 + e % 2;
            if (row < own.count && key < seen) my_scores[row * score_stride + key] = s[n][e];
          }
        }
      });
  leave(result, Partial{values, sums}, item * splits + blockIdx.x);
  if (own.slab == 0 && blockIdx.x == 0 && thread == 0) reads[(query * kv_heads + own.kv_head) * 3] = seen;
  if (!select) return;
  if (!last_of(counters + (i64)blockIdx.z * kv_heads + own.kv_head, splits * own.slabs, &flag)) return;

  // ---- Selection, by the last block of this key head.
  const i64 item0 = (i64)blockIdx.z * gridDim.y + own.kv_head * own.slabs;
  const int rows = own.slabs * 16;
  float2* part_sums = (float2*)shared;
  float* p = (float*)(part_sums + rows * splits);
  u32* keys = (u32*)p + seen;
  int* list = (int*)keys + selecting.blocks;
  int* to = indices + (query * kv_heads + own.kv_head) * select_count;
  for (int r = thread; r < rows * splits; r += THREADS) {
    // [slab][split][row] in memory.
    const int row = r / (splits * 16) * 16 + r % 16, split = r / 16 % splits;
    part_sums[row * splits + split] = read_pair(sums + (item0 * splits * 16 + r) * 2);
  }
  __syncthreads();
  for (int r = warp; r < rows; r += WARPS) {
    float largest = -INFINITE, sum = 0.0f;
    for (int s = lane; s < splits; s += 32) largest = fmaxf(largest, part_sums[r * splits + s].x);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
    const float center = largest == -INFINITE ? 0.0f : largest;
    for (int s = lane; s < splits; s += 32) {
      const float2 part = part_sums[r * splits + s];
      sum += exp2_approximate(part.x - center) * part.y;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (lane == 0) lse[r] = r < group && sum > 0.0f ? largest + log2_approximate(sum) : INFINITE;
  }
  __syncthreads();
  const float* all = scores + item0 * 16 * score_stride;
  for (int i = thread * 4; i < seen; i += THREADS * 4) {
    float4 weight = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 16
    for (int r = 0; r < group; r++) {
      const float4 s = read_four(all + (i64)r * score_stride + i);
      weight.x += exp2_approximate(s.x - lse[r]);
      weight.y += exp2_approximate(s.y - lse[r]);
      weight.z += exp2_approximate(s.z - lse[r]);
      weight.w += exp2_approximate(s.w - lse[r]);
    }
    p[i] = weight.x;
    if (i + 1 < seen) p[i + 1] = weight.y;
    if (i + 2 < seen) p[i + 2] = weight.z;
    if (i + 3 < seen) p[i + 3] = weight.w;
  }
  __syncthreads();
  select_blocks(selecting, p, keys, list);
  for (int s = thread; s < select_count; s += THREADS) to[s] = s < selecting.blocks ? (int)keys[s] : -1;
}
