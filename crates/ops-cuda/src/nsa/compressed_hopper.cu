// The compressed branch of nsa on Hopper (sm_90a): compressed.cu's arguments and results, by wgmma.
//
// A thread block takes 8 adjacent queries and one key head, two warpgroups of four queries with 16 heads each:
// the 64 rows of a wgmma, of which a warp has the 16 of one query. Tiles of KEYS compressed tokens are in shared memory in
// columns of 64, rows of 128 bytes whose 16-byte pieces are swizzled by the row for wgmma. Two blocks share
// an SM, so that one's products run during the other's exponentials.
//
// Launch: grid (ceil(chunk_tokens / 8), Hkv * slabs, B), block 256, dynamic shared memory
// 256 D + 2 * KEYS * (2 D + 2 max(D, DV)) + 1024. Macros: D, DV (multiples of 64 up to 128; D up to 192), DTYPE, KEYS (64).
//
// Source: hopper.cuh, call.cuh, hopper_tile.cuh, softmax.cuh, compressed.cuh and this.

constexpr int THREADS = 256;
constexpr int TOKENS = 8;
constexpr int QUERY_BYTES = 128 * 2 * D;
constexpr int KEY_BYTES = KEYS * 2 * D;
constexpr int STAGE_BYTES = KEY_BYTES + KEYS * 2 * (D > DV ? D : DV);

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
  const HeadSlab own = head_slab(blockIdx.y, heads, kv_heads);
  const Span span = span_of<TOKENS>(here, chunk_first, chunk_tokens, block, stride);
  if (span.empty()) return;

  const u16* q_here = q + ((i64)(here.q_start + span.first) * heads + own.first) * D;
  load_tile<128, D, THREADS>(base, q, thread, [&](int row) {
    return span.first + row / 16 < span.end && row % 16 < own.count ? q_here + ((i64)(row / 16) * heads + row % 16) * D
                                                                    : nullptr;
  });
  const i64 key_row = compressed_row(here, blockIdx.z, stride, rows_each) * kv_heads + own.kv_head;
  const u16* keys = k_cmp + key_row * D;
  const u16* rest = k_rest != nullptr ? k_rest + key_row * D : nullptr;
  const u16* values = v_cmp != nullptr ? v_cmp + key_row * DV : nullptr;
  auto load = [&](int first, int stage, bool weights) {
    const u32 to = base + QUERY_BYTES + stage * STAGE_BYTES;
    if (first < span.high) {
      auto row_of = [&](const u16* from, int columns, int row) {
        return first + row < span.high ? from + (i64)(first + row) * kv_heads * columns : nullptr;
      };
      load_tile<KEYS, D, THREADS>(to, q, thread, [&](int row) { return row_of(keys, D, row); });
      if (weights && rest != nullptr) {
        load_tile<KEYS, D, THREADS>(to + KEY_BYTES, q, thread, [&](int row) { return row_of(rest, D, row); });
      } else if (!weights && values != nullptr) {
        load_tile<KEYS, DV, THREADS>(to + KEY_BYTES, q, thread, [&](int row) { return row_of(values, DV, row); });
      }
    }
    copy_commit();
  };
  const u64 queries = descriptor_k_major<128>(base + group_of_warps * 64 * 128);
  const bool negative = scale <= 0.0f;
  const float before = negative ? scale * TO_BASE2 : 1.0f, factor = negative ? 1.0f : scale * TO_BASE2;
  const int token = span.first + warp;
  const int seen = compressed_before(span.first_position + warp, block, stride);
  float maximum[2] = {-INFINITE, -INFINITE}, sum[2] = {};
  int walked = 0;

  // ---- First pass.
  {
    float output[DV / 2] = {};
    load(0, 0, false);
#pragma unroll 1
    for (int first = 0, stage = 0; first < span.high; first += KEYS, stage ^= 1) {
      copy_wait<0>();
      fence_async_shared();
      __syncthreads();  // this tile has arrived; no warp reads the previous one
      load(first + KEYS, stage ^ 1, false);
      const u32 key_tile = base + QUERY_BYTES + stage * STAGE_BYTES;
      float s[KEYS / 2];
      wgmma_fence();
      issue_scores<128, KEYS>(s, queries, key_tile, false);
      wgmma_commit();
      wgmma_wait<0>();
      keep(s);
      float(&scores)[KEYS / 8][4] = reinterpret_cast<float(&)[KEYS / 8][4]>(s);
      if (negative) multiply_all<KEYS / 16>(scores, before);
      if (first + KEYS > seen) mask_behind<KEYS / 16>(scores, seen - first, lane);
      float fade[2];
      soften<KEYS / 16>(scores, maximum, sum, fade, factor);
      walked += min(KEYS, span.high - first);
      if (values != nullptr) {
        if (__any_sync(0xffffffff, fade[0] != 1.0f || fade[1] != 1.0f)) {
#pragma unroll
          for (int i = 0; i < DV / 2; i++) output[i] *= fade[i / 2 % 2];
        }
        multiply_values<KEYS>(output, s, key_tile + KEY_BYTES, true);
      }
    }
    copy_wait<0>();
    const Gates gates = {g_cmp, g_slc, g_swa, gates_f32, gate_kind};
#pragma unroll
    for (int half = 0; half < 2; half++) {
      sum[half] = row_sum(sum[half]);
      const int head = lane / 4 + half * 8;
      if (values == nullptr || token >= span.end || head >= own.count) continue;
      const i64 row = (i64)(here.q_start + token) * heads + own.first + head;
      const float by = sum[half] > 0.0f ? gate_of(gates, 0, row) / sum[half] : 0.0f;
#pragma unroll
      for (int i = half * 2; i < DV / 2; i += 4) {
        *(u32*)(o + row * DV + i / 4 * 8 + lane % 4 * 2) = pack(output[i] * by, output[i + 1] * by);
      }
    }
    // Compressed tokens that this query read, of the tiles that the block processed.
    if (own.slab == 0 && lane == 0 && token < span.end) {
      reads[((i64)(here.q_start + token) * kv_heads + own.kv_head) * 3] = min(walked, seen);
    }
  }
  if (p_sum == nullptr) return;

  // ---- Second pass.
#pragma unroll
  for (int half = 0; half < 2; half++) maximum[half] = exponent_of(maximum[half], sum[half], factor, lane / 4 + half * 8, own.count);
  const i64 query = ((i64)blockIdx.z * chunk_tokens + token - chunk_first) * kv_heads + own.kv_head;
  float* row = token < span.end ? p_sum + (query * own.slabs + own.slab) * p_stride : nullptr;
  const float both = before * factor;
  __syncthreads();
  load(0, 0, true);
#pragma unroll 1
  for (int first = 0, stage = 0; first < span.high; first += KEYS, stage ^= 1) {
    copy_wait<0>();
    fence_async_shared();
    __syncthreads();
    load(first + KEYS, stage ^ 1, true);
    const u32 key_tile = base + QUERY_BYTES + stage * STAGE_BYTES;
    float s[KEYS / 2];
    wgmma_fence();
    issue_scores<128, KEYS>(s, queries, key_tile, false);
    if (rest != nullptr) issue_scores<128, KEYS>(s, queries, key_tile + KEY_BYTES, true);
    wgmma_commit();
    wgmma_wait<0>();
    keep(s);
    float weights[KEYS / 4];
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
      const int at = i / 2 * 4 + i % 2;
      weights[i] = exp2_approximate(s[at] * both - maximum[0]) + exp2_approximate(s[at + 2] * both - maximum[1]);
    }
    write_weights<KEYS>(row, weights, first, seen, lane);
  }
  copy_wait<0>();
}
