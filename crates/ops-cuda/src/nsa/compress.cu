// Compressed tokens of nsa by the mean: K_cmp[i] = mean(k[i d .. i d + l)), V_cmp likewise.
//
// k [B, Tk, Hkv, D], v [B, Tk, Hkv, DV], or packed [total, ..] with cu_k [B + 1]. Compressed token i of a sequence that
// starts at token s is row s / d + i (rounded down) of each result: as d <= l, no two sequences share a row.
// k_cmp [rows, Hkv, D] is the mean rounded to storage, k_rest (or null) the rounding remainder, itself rounded to storage;
// v_cmp [rows, Hkv, DV], or null. The sum runs over the tokens in order, so equal blocks give equal bits.
//
// Launch: grid (most compressed tokens of a sequence, Hkv, B), block 128, no shared memory. Macros: D, DV, DTYPE.
// Arguments: k, v, k_cmp, k_rest, v_cmp, cu_k, tk, kv_heads, compress_block l, compress_stride d.

template <int channels>
DEVICE void mean(const u16* from, u16* to, u16* rest, i64 row_stride, int tokens, int thread, int threads) {
  constexpr int width = channels % 2 == 0 ? 2 : 1;
  for (int c = thread * width; c < channels; c += threads * width) {
    float low = 0.0f, high = 0.0f;
#pragma unroll 16
    for (int t = 0; t < tokens; t++) {
      if constexpr (width == 2) {
        const u32 both = *(const u32*)(from + t * row_stride + c);
        low += to_float((u16)both);
        high += to_float((u16)(both >> 16));
      } else {
        low += to_float(from[t * row_stride + c]);
      }
    }
    low /= (float)tokens;
    high /= (float)tokens;
    const u32 rounded = pack(low, high);
    const u32 lost = pack(low - to_float((u16)rounded), high - to_float((u16)(rounded >> 16)));
    if constexpr (width == 2) {
      *(u32*)(to + c) = rounded;
      if (rest != nullptr) *(u32*)(rest + c) = lost;
    } else {
      to[c] = (u16)rounded;
      if (rest != nullptr) rest[c] = (u16)lost;
    }
  }
}

extern "C" __global__ void __launch_bounds__(128)
    nsa_compress(const u16* __restrict__ k, const u16* __restrict__ v, u16* __restrict__ k_cmp,
                 u16* __restrict__ k_rest, u16* __restrict__ v_cmp, const int* __restrict__ cu_k, int tk, int kv_heads,
                 int block, int stride) {
  const Sequence here = sequence_at(blockIdx.z, nullptr, cu_k, 0, tk);
  const int i = blockIdx.x, head = blockIdx.y;
  if (i >= compressed_before(here.keys - 1, block, stride)) return;
  const i64 from = ((i64)here.k_start + (i64)i * stride) * kv_heads + head;
  const i64 to = ((i64)(here.k_start / stride) + i) * kv_heads + head;
  // Half of the threads take keys and half values, if both are requested.
  const int thread = threadIdx.x % 64, side = threadIdx.x / 64;
  if (side == 0) {
    mean<D>(k + from * D, k_cmp + to * D, k_rest != nullptr ? k_rest + to * D : nullptr, (i64)kv_heads * D, block,
            thread, 64);
  } else if (v_cmp != nullptr) {
    mean<DV>(v + from * DV, v_cmp + to * DV, nullptr, (i64)kv_heads * DV, block, thread, 64);
  }
}
