// Weights and their gradients in registers, for the mma.sync attention backward kernels (mma_kv.cu and
// mma_q.cu). It follows ampere.cuh and rows.cuh.

#ifndef DV
#define DV D
#endif

// The logits' factor and cap. Weights are 2^(logit log2(e) - row_lse).
struct Logits {
  float factor;           // scale log2(e); with a cap: scale / cap
  float softcap_log2;     // cap log2(e), or 0
  DEVICE Logits(float scale, float softcap) {
    factor = softcap > 0.0f ? scale / softcap : scale * LOG2_E;
    softcap_log2 = softcap > 0.0f ? softcap * LOG2_E : 0.0f;
  }
  // The weight of the product q k; `slope` becomes d logit / d (scale q k).
  DEVICE float weight(float product, float row_lse, float& slope) const {
    if (softcap_log2 > 0.0f) {
      const float capped = tanh_exact(product * factor);
      slope = 1.0f - capped * capped;
      return exp2_approximate(capped * softcap_log2 - row_lse);
    }
    slope = 1.0f;
    return exp2_approximate(product * factor - row_lse);
  }
};

// c (16 x 8 COLUMNS) = rows a (16 rows at the lane's address) times the transpose of rows b (8 COLUMNS rows), over
// `depth` channels.
template <int depth, int columns>
DEVICE void multiply_rows(float (&c)[columns][4], u32 a_lane, u32 b_lane) {
#pragma unroll
  for (int j = 0; j < columns; j++) {
#pragma unroll
    for (int e = 0; e < 4; e++) c[j][e] = 0.0f;
  }
#pragma unroll
  for (int step = 0; step < Rows<depth>::padded / 16; step++) {
    u32 a[4];
    load_matrix_x4(a, Rows<depth>::advance(a_lane, step));
#pragma unroll
    for (int n = 0; n < columns / 2; n++) {
      u32 b[4];
      load_matrix_x4(b, n * 16 * Rows<depth>::stride + Rows<depth>::advance(b_lane, step));
      multiply(c[2 * n], a, b[0], b[1]);
      multiply(c[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Accumulates c (16 x 16 pairs) += a (16 x 8 columns, accumulators of a product, rounded to the storage type) times
// rows b, from pair `first` of 16 channels on. Pairs from `limit` on do not exist.
template <int depth, int columns, int pairs>
DEVICE void accumulate_rows(float (&c)[pairs * 2][4], const float (&a)[columns][4], u32 b_lane, int first, int limit) {
#pragma unroll
  for (int step = 0; step < columns / 2; step++) {
    const u32 packed[4] = {pack(a[2 * step][0], a[2 * step][1]), pack(a[2 * step][2], a[2 * step][3]),
                           pack(a[2 * step + 1][0], a[2 * step + 1][1]), pack(a[2 * step + 1][2], a[2 * step + 1][3])};
#pragma unroll
    for (int n = 0; n < pairs; n++) {
      if (first + n < limit) {
        u32 b[4];
        load_matrix_x4_transposed(b, step * 16 * Rows<depth>::stride + Rows<depth>::advance(b_lane, first + n));
        multiply(c[2 * n], packed, b[0], b[1]);
        multiply(c[2 * n + 1], packed, b[2], b[3]);
      }
    }
  }
}

// Writes two adjacent channels of a row of `channels`.
template <int channels>
DEVICE void store_pair(u16* row, int channel, float low, float high) {
  if (channel < channels) *(u32*)(row + channel) = pack(low, high);
}
