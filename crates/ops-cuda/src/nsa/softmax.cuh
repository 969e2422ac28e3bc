// The softmax of a tile of scores in the registers of a warp: 16 rows, PAIRS x 16 keys. Requires call.cuh.
//
// Lane l has of each 16 x 8 result, of mma.sync or of wgmma, the rows l / 4 ([0], [1]) and that + 8 ([2], [3]),
// columns l % 4 * 2 and the next.

// A row's maximum and sum over the four lanes that share it.
DEVICE float row_max(float part) {
  part = fmaxf(part, __shfl_xor_sync(0xffffffff, part, 1));
  return fmaxf(part, __shfl_xor_sync(0xffffffff, part, 2));
}

DEVICE float row_sum(float part) {
  part += __shfl_xor_sync(0xffffffff, part, 1);
  return part + __shfl_xor_sync(0xffffffff, part, 2);
}

// Masks scores from column `limit` of this row tile on; column 0 of the tile is key 0.
template <int PAIRS>
DEVICE void mask_behind(float (&s)[PAIRS * 2][4], int limit, int lane) {
  const int here = limit - lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < PAIRS * 2; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      if (n * 8 + e % 2 >= here) s[n][e] = -INFINITE;
    }
  }
}

// The same for scores before `low` and from `high` on.
template <int PAIRS>
DEVICE void mask_outside(float (&s)[PAIRS * 2][4], int low, int high, int lane) {
  const int start = low - lane % 4 * 2, end = high - lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < PAIRS * 2; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      if (n * 8 + e % 2 < start || n * 8 + e % 2 >= end) s[n][e] = -INFINITE;
    }
  }
}

template <int PAIRS>
DEVICE void multiply_all(float (&s)[PAIRS * 2][4], float by) {
#pragma unroll
  for (int n = 0; n < PAIRS * 2; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) s[n][e] *= by;
  }
}

// Turns scores into weights 2^(s * factor - maximum * factor) and keeps maximum and sum (this lane's part) of each row;
// `fade` is what earlier sums and outputs of the row are multiplied by.
template <int PAIRS>
DEVICE void soften(float (&s)[PAIRS * 2][4], float (&maximum)[2], float (&sum)[2], float (&fade)[2], float factor) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float largest = maximum[half];
#pragma unroll
    for (int n = 0; n < PAIRS * 2; n++) largest = fmaxf(largest, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
    largest = row_max(largest);
    // A row that has seen nothing yet keeps weights of 0: -inf - 0, not -inf - -inf.
    const float center = largest == -INFINITE ? 0.0f : largest * factor;
    fade[half] = exp2_approximate(maximum[half] * factor - center);
    maximum[half] = largest;
    sum[half] *= fade[half];
#pragma unroll
    for (int n = 0; n < PAIRS * 2; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        s[n][half * 2 + e] = exp2_approximate(s[n][half * 2 + e] * factor - center);
        sum[half] += s[n][half * 2 + e];
      }
    }
  }
}
