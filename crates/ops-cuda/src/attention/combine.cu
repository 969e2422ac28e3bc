// Combine kernel of split-KV decode attention: merges the partial results that decode.cu wrote for each query row.
//
//   weight[s] = 2^(partial_lse[s] - max), o = sum_s weight[s] partial_o[s] / sum_s weight[s],
//   lse = (max + log2 sum_s weight[s]) ln 2,
// summed in an order that depends on DV and splits only, so that the same parts always give the same bits. A part
// that saw no key has partial_lse = -inf and is not read (it was not written); a row whose parts all saw none has
// o = 0, lse = -inf.
//
// partial_o [splits, rows, Dv] f32, each part already divided by its own sum; partial_lse [splits, rows] f32, base 2;
// o [rows, Dv] in storage type; lse f32 [B, H, Tq], or [H, total] when cu_q is given, or null.
// Row indices are those of o seen as [rows, Dv]: (query row) * H + head.
//
// Launch: grid (rows, DV / COLUMNS), block (256), no dynamic shared memory. From sm_90 on it may be launched with
// programmatic dependent launch (PDL): its start then overlaps the end of decode.cu.
// Macros: DV, COLUMNS (of a block: a divisor of DV, which it is by default), DTYPE (bf16, f16).
// Args: as named below; splits at most 256; rows = q rows * H; tq = queries of a sequence when dense.

#ifndef COLUMNS
#define COLUMNS DV
#endif

constexpr int THREADS = 256;
// A thread sums VECTOR adjacent columns of every GROUPS-th part; the groups' sums are then added up in order.
constexpr int VECTOR = DV % 4 == 0 && COLUMNS % 4 == 0 ? 4 : 1;
constexpr int PIECES = COLUMNS / VECTOR;
constexpr int GROUPS = PIECES < THREADS ? THREADS / PIECES : 1;
constexpr int AT_ONCE = 8;  // parts that a thread has in flight
static_assert(DV % COLUMNS == 0, "columns");

// A load in program order: without volatile asm the compiler sinks each load below the test of its weight, which serializes them.
DEVICE void load_now(float (&to)[4], const float* from) {
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "l"(from));
}

DEVICE void load_now(float (&to)[1], const float* from) {
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(to[0]) : "l"(from));
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    attention_combine(const float* __restrict__ partial_o, const float* __restrict__ partial_lse, u16* __restrict__ o,
                      float* __restrict__ lse, const int* __restrict__ cu_q, int splits, int rows, int heads, int tq) {
  __shared__ float weights[THREADS];
  __shared__ __align__(16) float sums[GROUPS * COLUMNS];
  const int row = blockIdx.x, first_column = blockIdx.y * COLUMNS, thread = threadIdx.x;
  let_next_start();
  wait_for_previous();
  const float own = thread < splits ? partial_lse[(i64)thread * rows + row] : -INFINITE;
  weights[thread] = own;
  __syncthreads();
  // Each warp reduces all parts, in the same order; entries past the last part are -inf.
  float seen[THREADS / 32], largest = -INFINITE, sum = 0.0f;
#pragma unroll
  for (int i = 0; i < THREADS / 32; i++) {
    seen[i] = weights[i * 32 + thread % 32];
    largest = fmaxf(largest, seen[i]);
  }
#pragma unroll
  for (int far = 16; far > 0; far /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, far));
  const float center = largest == -INFINITE ? 0.0f : largest;
#pragma unroll
  for (int i = 0; i < THREADS / 32; i++) sum += exp2_approximate(seen[i] - center);
#pragma unroll
  for (int far = 16; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffff, sum, far);
  const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
  __syncthreads();
  weights[thread] = exp2_approximate(own - center) * inverse;
  __syncthreads();

  for (int at = thread; at < GROUPS * PIECES; at += THREADS) {
    const int group = at / PIECES, column = at % PIECES * VECTOR;
    float values[VECTOR] = {};
    const float* const first = partial_o + (i64)row * DV + first_column + column;
#pragma unroll 1
    for (int s = group; s < splits; s += AT_ONCE * GROUPS) {
      // Loads without a branch, so that all of them are in flight together: past the last part, part 0 is loaded instead.
      float parts[AT_ONCE][VECTOR];
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        const int from = s + i * GROUPS < splits ? s + i * GROUPS : 0;
        load_now(parts[i], first + (i64)from * rows * DV);
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        const float weight = s + i * GROUPS < splits ? weights[s + i * GROUPS] : 0.0f;
        // A part without weight may not have been written.
#pragma unroll
        for (int e = 0; e < VECTOR; e++) values[e] += weight != 0.0f ? weight * parts[i][e] : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sums[group * COLUMNS + column + i] = values[i];
  }
  __syncthreads();
  for (int column = thread; column < COLUMNS; column += THREADS) {
    float value = sums[column];
#pragma unroll
    for (int group = 1; group < GROUPS; group++) value += sums[group * COLUMNS + column];
    o[(i64)row * DV + first_column + column] = (u16)pack(value, 0.0f);
  }

  if (thread == 0 && blockIdx.y == 0 && lse != nullptr) {
    const int query = row / heads, head = row % heads;
    const i64 at = cu_q != nullptr ? (i64)head * (rows / heads) + query
                                   : ((i64)(query / tq) * heads + head) * tq + query % tq;
    lse[at] = sum > 0.0f ? (largest + log2_approximate(sum)) * 0.693147181f : -INFINITE;
  }
}
