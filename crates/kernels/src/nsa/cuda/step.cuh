// What the two kernels of a decode step of nsa share: a block of threads attends one query, 16 heads of it, over a list of
// tokens, TILE to a warp at a time, and leaves one result: sums of weights and weighted values, not yet divided.
//
// Stands behind common.cuh. Macros: TILE (16, 32), WARPS.

constexpr int THREADS = WARPS * 32;
constexpr int PAIRS = TILE / 16;
constexpr int QUERY_BYTES = 16 * Rows<D>::stride;
constexpr int COLUMNS = Rows<DV>::padded;
constexpr int MERGE_BYTES = 16 * COLUMNS * 4;
constexpr int TILE_BYTES = TILE * (KEY_COPIES * Rows<D>::stride + Rows<DV>::stride);
constexpr int WARP_BYTES = TILE_BYTES > MERGE_BYTES ? TILE_BYTES : MERGE_BYTES;

// Results of parts: values [.., 16, COLUMNS], sums [.., 16, 2] (maximum in base 2, sum of weights).
struct Partial {
  float *values, *sums;
};

// Reads from the L2 cache: another block of threads wrote it.
DEVICE float2 read_pair(const float* from) {
  float2 x;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(from));
  return x;
}

DEVICE float4 read_four(const float* from) {
  float4 x;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from));
  return x;
}

// Whether this block is the last of `blocks` to get here; what the others wrote before is then to be seen. The counter goes
// back to 0.
DEVICE bool last_of(u32* counter, u32 blocks, int* flag) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const bool last = atomicAdd(counter, 1) == blocks - 1;
    if (last) *counter = 0;
    *flag = last;
    __threadfence();
  }
  __syncthreads();
  return *flag != 0;
}

// Starts copying the query's rows.
DEVICE void load_query(u32 base, const u16* q, const u16* q_here, int slab_heads) {
  Rows<D>::template copy<16, THREADS, false, 1>(base, threadIdx.x, q, [&](int row) {
    return row < slab_heads ? q_here + row * D : nullptr;
  });
  copy_commit();
}

// Tokens first .. end of the list: key_of(n), rest_of(n) and value_of(n) point to their rows (rest_of and value_of may give
// null for all); on_scores(s, n) sees the scores, in base 2, of tile n ...
template <class KeyOf, class RestOf, class ValueOf, class OnScores>
DEVICE void attend(u32 base, unsigned char* shared, const u16* any, int first, int end, bool rest, bool values, float scale,
                   const Partial& to, i64 part, KeyOf key_of, RestOf rest_of, ValueOf value_of, OnScores on_scores) {
  __shared__ float warp_sums[WARPS][16][2], warp_weights[WARPS][16];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 mine = base + QUERY_BYTES + warp * WARP_BYTES;
  const u32 value_at = mine + KEY_COPIES * TILE * Rows<D>::stride;
  float maximum[1][2] = {{-INFINITE, -INFINITE}}, sum[1][2] = {};
  float output[1][COLUMNS / 8][4] = {};
  const float factor = scale * TO_BASE2;
  bool waited = false;
#pragma unroll 1
  for (int at = first + warp * TILE; at < end || !waited; at += WARPS * TILE) {
    if (at < end) {
      Rows<D>::template copy<TILE, 32, false, 2>(mine, lane, any, [&](int row) {
        return at + row < end ? key_of(at + row) : nullptr;
      });
      if (KEY_COPIES == 2 && rest) {
        Rows<D>::template copy<TILE, 32, false, 2>(mine + TILE * Rows<D>::stride, lane, any, [&](int row) {
          return at + row < end ? rest_of(at + row) : nullptr;
        });
      }
      if (values) {
        Rows<DV>::template copy<TILE, 32, false, 2>(value_at, lane, any, [&](int row) {
          return at + row < end ? value_of(at + row) : nullptr;
        });
      }
    }
    copy_commit();
    copy_wait<0>();
    if (!waited) __syncthreads();  // the query has come, of which each warp copied a part
    waited = true;
    __syncwarp();
    if (at >= end) break;
    float s[1][PAIRS * 2][4] = {}, fade[1][2];
    add_scores<1, PAIRS>(s, base + Rows<D>::lane_offset(lane), mine + Rows<D>::lane_offset_right(lane));
    if (KEY_COPIES == 2 && rest) {
      add_scores<1, PAIRS>(s, base + Rows<D>::lane_offset(lane), mine + TILE * Rows<D>::stride + Rows<D>::lane_offset_right(lane));
    }
    multiply_all<PAIRS>(s[0], factor);
    if (at + TILE > end) mask_behind<PAIRS>(s[0], end - at, lane);
    on_scores(s[0], at);
    soften<PAIRS>(s[0], maximum[0], sum[0], fade[0], 1.0f);
    if (values) add_output<1, PAIRS>(output, s, fade, value_at + Rows<DV>::lane_offset(lane));
    __syncwarp();  // everyone has left the tile before it is overwritten
  }
  // ---- One result of the warps'.
  __syncthreads();
  float* merge = (float*)(shared + QUERY_BYTES) + warp * (WARP_BYTES / 4);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = lane / 4 + half * 8;
    const float all = row_sum(sum[0][half]);
    if (lane % 4 == 0) {
      warp_sums[warp][row][0] = maximum[0][half];
      warp_sums[warp][row][1] = all;
    }
    if (values) {
#pragma unroll
      for (int n = 0; n < COLUMNS / 8; n++) {
        *(float2*)(merge + row * COLUMNS + n * 8 + lane % 4 * 2) = make_float2(output[0][n][half * 2], output[0][n][half * 2 + 1]);
      }
    }
  }
  __syncthreads();
  // How much of each warp's a row takes.
  for (int r = threadIdx.x; r < WARPS * 16; r += THREADS) {
    const int row = r % 16;
    float largest = -INFINITE, weights = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, warp_sums[w][row][0]);
    const float center = largest == -INFINITE ? 0.0f : largest;
    if (r < 16) {
#pragma unroll
      for (int w = 0; w < WARPS; w++) weights += exp2_approximate(warp_sums[w][row][0] - center) * warp_sums[w][row][1];
      *(float2*)(to.sums + (part * 16 + row) * 2) = make_float2(largest, weights);
    }
    warp_weights[r / 16][row] = exp2_approximate(warp_sums[r / 16][row][0] - center);
  }
  __syncthreads();
  if (!values) return;
  const unsigned char* all = shared + QUERY_BYTES;
  for (int e = threadIdx.x; e < 4 * COLUMNS; e += THREADS) {
    const int row = e * 4 / COLUMNS;
    float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float weight = warp_weights[w][row];
      const float4 x = ((const float4*)(all + w * WARP_BYTES))[e];
      value.x += weight * x.x;
      value.y += weight * x.y;
      value.z += weight * x.z;
      value.w += weight * x.w;
    }
    ((float4*)(to.values + part * 16 * COLUMNS))[e] = value;
  }
}
