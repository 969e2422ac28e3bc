// Compressed tokens of nsa by a learned matrix: the concatenated l tokens of a block, plus positions, times a matrix.
//
// x [B, Tk, Hkv, C] (keys or values), or packed with cu_k; weight [Hkv, l C, C]; position [Hkv, l, C] or null; each
// f32 where its flag says so, otherwise stored like x. Rows of the results as in compress.cu; `rest` may be null.
//
// Launch: grid (ceil(most compressed tokens of a sequence / ROWS), Hkv, B), block 128, no dynamic shared memory.
// Macros: D = DV = C, DTYPE. Arguments: x, weight, position, to, rest, cu_k, tk, kv_heads, l, d, weight_f32, position_f32.

constexpr int ROWS = 8;      // compressed tokens that read the matrix together
constexpr int CHUNK = 128;   // elements of the concatenated block that pass through shared memory at once

extern "C" __global__ void __launch_bounds__(128)
    nsa_learned(const u16* __restrict__ x, const void* __restrict__ weight, const void* __restrict__ position,
                u16* __restrict__ to, u16* __restrict__ rest, const int* __restrict__ cu_k, int tk, int kv_heads,
                int block, int stride, int weight_f32, int position_f32) {
  __shared__ float part[ROWS][CHUNK];
  const Sequence here = sequence_at(blockIdx.z, nullptr, cu_k, 0, tk);
  const int first = blockIdx.x * ROWS, head = blockIdx.y, thread = threadIdx.x;
  const int count = compressed_before(here.keys - 1, block, stride);
  if (first >= count) return;
  const int flat = block * D;
  for (int c0 = 0; c0 < D; c0 += 128) {
    const int c = c0 + thread;
    float sum[ROWS] = {};
    for (int e0 = 0; e0 < flat; e0 += CHUNK) {
      __syncthreads();
      const int e = e0 + thread, token = e / D, channel = e % D;
      const float shift =
          position != nullptr && e < flat ? number_at(position, (i64)head * flat + e, position_f32) : 0.0f;
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        const bool there = e < flat && first + r < count;
        const i64 row = (i64)here.k_start + (i64)(first + r) * stride + token;
        part[r][thread] = there ? to_float(x[(row * kv_heads + head) * D + channel]) + shift : 0.0f;
      }
      __syncthreads();
      if (c < D) {
        const int elements = min(CHUNK, flat - e0);
#pragma unroll 4
        for (int j = 0; j < elements; j++) {
          const float w = number_at(weight, ((i64)head * flat + e0 + j) * D + c, weight_f32);
#pragma unroll
          for (int r = 0; r < ROWS; r++) sum[r] += part[r][j] * w;
        }
      }
    }
    if (c < D) {
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        if (first + r >= count) break;
        const i64 at = (((i64)(here.k_start / stride) + first + r) * kv_heads + head) * D + c;
        const u16 rounded = to_storage(sum[r]);
        to[at] = rounded;
        if (rest != nullptr) rest[at] = to_storage(sum[r] - to_float(rounded));
      }
    }
  }
}
