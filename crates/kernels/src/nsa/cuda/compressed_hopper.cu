// The compressed branch of nsa on Hopper (sm_90a): compressed.cu's arguments and results, by warpgroup products.
//
// A block of threads takes 8 neighbouring queries against one key head, two warpgroups of four queries with 16 heads each:
// the 64 rows of a product, of which a warp has the 16 of one query. Tiles of KEYS compressed tokens lie in shared memory in
// columns of 64, rows of 128 bytes whose pieces of 16 are permuted by the row as wgmma wants them. Two blocks share a
// multiprocessor, so that one's products run under the other's exponentials.
//
// Launch: grid (ceil(chunk_tokens / 8), Hkv * slabs, B), block 256, dynamic shared memory
// 256 D + 2 * KEYS * (2 D + 2 max(D, DV)) + 1024. Macros: D, DV (multiples of 64 up to 128; D up to 192), DTYPE, KEYS (64).
//
// Source: hopper.cuh, call.cuh, rows.cuh and this.

constexpr int THREADS = 256;
constexpr int TOKENS = 8;
constexpr int QUERY_BYTES = 128 * 2 * D;
constexpr int KEY_BYTES = KEYS * 2 * D;
constexpr int STAGE_BYTES = KEY_BYTES + KEYS * 2 * (D > DV ? D : DV);

DEVICE void copy_piece(u32 to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEVICE void copy_wait_all() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// Copies `rows` rows of `columns` elements, from_of(row) or zeros where that is null, into columns of 64.
template <int rows, int columns, class FromOf>
DEVICE void load_tile(u32 to, const u16* any, FromOf from_of) {
  // Eight threads take the eight pieces of a row of 128 bytes.
  const int piece = threadIdx.x % 8;
#pragma unroll
  for (int first = 0; first < rows; first += THREADS / 8) {
    const int row = first + threadIdx.x / 8;
    const u16* from = from_of(row);
    const bool there = from != nullptr;
    from = (there ? from : any) + piece * 8;
    const u32 at = to + row * 128 + ((piece ^ (row & 7)) << 4);
#pragma unroll
    for (int box = 0; box < columns / 64; box++) copy_piece(at + box * rows * 128, from + box * 64, there);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    nsa_compressed_hopper(const u16* __restrict__ q, const u16* __restrict__ k_cmp, const u16* __restrict__ k_rest,
                          const u16* __restrict__ v_cmp, u16* __restrict__ o, float* __restrict__ p_sum,
                          int* __restrict__ reads, const void* __restrict__ g_cmp, const void* __restrict__ g_slc,
                          const void* __restrict__ g_swa, int gates_f32, int gate_kind, const int* __restrict__ cu_q,
                          const int* __restrict__ cu_k, int tq, int tk, int heads, int kv_heads, int block, int stride,
                          int rows_each, int chunk_first, int chunk_tokens, int p_stride, float scale) {
  extern __shared__ unsigned char unaligned[];
  const u32 base = (shared_address(unaligned) + 1023) / 1024 * 1024;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, group_of_warps = thread / 128;
  const Sequence here = sequence_at(blockIdx.z, cu_q, cu_k, tq, tk);
  const int group = heads / kv_heads, slabs = (group + HEAD_ROWS - 1) / HEAD_ROWS;
  const int kv_head = blockIdx.y / slabs, slab = blockIdx.y % slabs;
  const int first_head = kv_head * group + slab * HEAD_ROWS, slab_heads = min(HEAD_ROWS, group - slab * HEAD_ROWS);
  // Late queries see most: they start first.
  const int first_token = chunk_first + (gridDim.x - 1 - blockIdx.x) * TOKENS;
  const int end_token = min(here.queries, chunk_first + chunk_tokens);
  if (first_token >= end_token) return;
  const int first_position = first_token + here.keys - here.queries;
  const int high = compressed_before(first_position + min(TOKENS, end_token - first_token) - 1, block, stride);

  const u16* q_here = q + ((i64)(here.q_start + first_token) * heads + first_head) * D;
  load_tile<128, D>(base, q, [&](int row) {
    return first_token + row / 16 < end_token && row % 16 < slab_heads ? q_here + ((i64)(row / 16) * heads + row % 16) * D
                                                                       : nullptr;
  });
  const int key_stride = kv_heads * D, value_stride = kv_heads * DV;
  const i64 key_row = compressed_row(here, blockIdx.z, stride, rows_each) * kv_heads + kv_head;
  const u16* keys = k_cmp + key_row * D;
  const u16* rest = k_rest != nullptr ? k_rest + key_row * D : nullptr;
  const u16* values = v_cmp != nullptr ? v_cmp + key_row * DV : nullptr;
  auto load = [&](int first, int stage, bool weights) {
    const u32 to = base + QUERY_BYTES + stage * STAGE_BYTES;
    if (first < high) {
      load_tile<KEYS, D>(to, q, [&](int row) { return first + row < high ? keys + (i64)(first + row) * key_stride : nullptr; });
      if (weights && rest != nullptr) {
        load_tile<KEYS, D>(to + KEY_BYTES, q,
                           [&](int row) { return first + row < high ? rest + (i64)(first + row) * key_stride : nullptr; });
      } else if (!weights && values != nullptr) {
        load_tile<KEYS, DV>(to + KEY_BYTES, q,
                            [&](int row) { return first + row < high ? values + (i64)(first + row) * value_stride : nullptr; });
      }
    }
    copy_commit();
  };
  // Scores of 64 rows against the keys at `key_tile`, added to s where `add` is set; issued, not waited for.
  const u64 queries = descriptor_k_major<128>(base + group_of_warps * 64 * 128);
  auto issue_scores = [&](float(&s)[KEYS / 2], u32 key_tile, bool add) {
    const u64 tile = descriptor_k_major<128>(key_tile);
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
      wgmma_ss<0>(s, queries + (i / 4 * 128 * 128 >> 4) + i % 4 * 2, tile + (i / 4 * KEYS * 128 >> 4) + i % 4 * 2, add || i > 0);
    }
  };

  const bool negative = scale <= 0.0f;
  const float before = negative ? scale * TO_BASE2 : 1.0f, factor = negative ? 1.0f : scale * TO_BASE2;
  const int token = first_token + warp;
  const int seen = compressed_before(first_position + warp, block, stride);
  float maximum[2] = {-INFINITE, -INFINITE}, sum[2] = {};
  int walked = 0;

  // ---- First pass.
  {
    float output[DV / 2] = {};
    load(0, 0, false);
#pragma unroll 1
    for (int first = 0, stage = 0; first < high; first += KEYS, stage ^= 1) {
      copy_wait_all();
      fence_async_shared();
      __syncthreads();  // this tile has come; everyone has left the previous one
      load(first + KEYS, stage ^ 1, false);
      const u32 key_tile = base + QUERY_BYTES + stage * STAGE_BYTES;
      float s[KEYS / 2];
      wgmma_fence();
      issue_scores(s, key_tile, false);
      wgmma_commit();
      wgmma_wait<0>();
      keep(s);
      if (negative) {
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) s[i] *= before;
      }
      if (first + KEYS > seen) {
        const int limit = seen - first - lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
          if (i / 4 * 8 + i % 2 >= limit) s[i] = -INFINITE;
        }
      }
      float fade[2];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float largest = maximum[half];
#pragma unroll
        for (int i = half * 2; i < KEYS / 2; i += 4) largest = fmaxf(largest, fmaxf(s[i], s[i + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 2));
        // A row that has seen nothing yet keeps weights of 0: -inf - 0, not -inf - -inf.
        const float center = largest == -INFINITE ? 0.0f : largest * factor;
        fade[half] = exp2_approximate(maximum[half] * factor - center);
        maximum[half] = largest;
        sum[half] *= fade[half];
#pragma unroll
        for (int i = half * 2; i < KEYS / 2; i += 4) {
#pragma unroll
          for (int e = 0; e < 2; e++) {
            s[i + e] = exp2_approximate(s[i + e] * factor - center);
            sum[half] += s[i + e];
          }
        }
      }
      walked += min(KEYS, high - first);
      if (values != nullptr) {
        u32 p[KEYS / 4];
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) p[i] = pack(s[i * 2], s[i * 2 + 1]);
        if (__any_sync(0xffffffff, fade[0] != 1.0f || fade[1] != 1.0f)) {
#pragma unroll
          for (int i = 0; i < DV / 2; i++) output[i] *= fade[i / 2 % 2];
        }
        const u64 tile = descriptor_mn_major<128>(key_tile + KEY_BYTES, KEYS * 128);
        keep(output);
        keep(p);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) {
          wgmma_rs<1>(output, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], tile + i * 128, 1);
        }
        wgmma_commit();
        wgmma_wait<0>();
        keep(output);
      }
    }
    copy_wait_all();
    const Gates gates = {g_cmp, g_slc, g_swa, gates_f32, gate_kind};
#pragma unroll
    for (int half = 0; half < 2; half++) {
      sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 1);
      sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 2);
      const int head = lane / 4 + half * 8;
      if (values == nullptr || token >= end_token || head >= slab_heads) continue;
      const i64 row = (i64)(here.q_start + token) * heads + first_head + head;
      const float by = sum[half] > 0.0f ? gate_of(gates, 0, row) / sum[half] : 0.0f;
#pragma unroll
      for (int i = half * 2; i < DV / 2; i += 4) {
        *(u32*)(o + row * DV + i / 4 * 8 + lane % 4 * 2) = pack(output[i] * by, output[i + 1] * by);
      }
    }
    // What this query read of the tiles that the block walked over.
    if (slab == 0 && lane == 0 && token < end_token) {
      reads[((i64)(here.q_start + token) * kv_heads + kv_head) * 3] = min(walked, seen);
    }
  }
  if (p_sum == nullptr) return;

  // ---- Second pass. Rows of no head get an infinite exponent to subtract: weights of 0.
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const bool counts = lane / 4 + half * 8 < slab_heads && sum[half] > 0.0f;
    maximum[half] = counts ? maximum[half] * factor + log2_approximate(sum[half]) : INFINITE;
  }
  __syncthreads();
  load(0, 0, true);
#pragma unroll 1
  for (int first = 0, stage = 0; first < high; first += KEYS, stage ^= 1) {
    copy_wait_all();
    fence_async_shared();
    __syncthreads();
    load(first + KEYS, stage ^ 1, true);
    const u32 key_tile = base + QUERY_BYTES + stage * STAGE_BYTES;
    float s[KEYS / 2];
    wgmma_fence();
    issue_scores(s, key_tile, false);
    if (rest != nullptr) issue_scores(s, key_tile + KEY_BYTES, true);
    wgmma_commit();
    wgmma_wait<0>();
    keep(s);
    float weights[KEYS / 4];
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
      const int at = i / 2 * 4 + i % 2;
      weights[i] = exp2_approximate(s[at] * before * factor - maximum[0]) + exp2_approximate(s[at + 2] * before * factor - maximum[1]);
    }
    sum_over_rows<KEYS / 4>(weights, lane);
    if (token < end_token) {
      float* row = p_sum + ((((i64)blockIdx.z * chunk_tokens + token - chunk_first) * kv_heads + kv_head) * slabs + slab) * p_stride;
      // The lane holds KEYS / 32 sums from this one on.
      const int from = (lane >> 4 & 1) * KEYS / 8 + (lane >> 3 & 1) * KEYS / 16 + (lane >> 2 & 1) * KEYS / 32;
#pragma unroll
      for (int v = 0; v < KEYS / 32; v++) {
        const int key = first + (from + v) / 2 * 8 + lane % 4 * 2 + (from + v) % 2;
        if (key < seen) row[key] = weights[v];
      }
    }
  }
  copy_wait_all();
}
