// The steps of an online softmax over tiles in shared memory (scores, weights, output), with 16 heads of one query as the
// 16 rows of an MMA.
//
// Requires ampere.cuh and call.cuh. Macros: D, DV, DTYPE.

// ---- Tiles. A warp owns TILES x 16 rows; a tile in shared memory has PAIRS x 16 keys.
//
// Lane l has of a 16 x 8 result the rows l / 4 ([0], [1]) and that + 8 ([2], [3]), columns l % 4 * 2 and the next.

// s += q k^T.
template <int TILES, int PAIRS>
DEVICE void add_scores(float (&s)[TILES][PAIRS * 2][4], u32 query_lane, u32 key_lane) {
#pragma unroll
  for (int step = 0; step < Rows<D>::padded / 16; step++) {
    u32 a[TILES][4];
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      load_matrix_x4(a[m], m * 16 * Rows<D>::stride + Rows<D>::advance(query_lane, step));
    }
#pragma unroll
    for (int n = 0; n < PAIRS; n++) {
      u32 b[4];
      load_matrix_x4(b, n * 16 * Rows<D>::stride + Rows<D>::advance(key_lane, step));
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        multiply(s[m][n * 2], a[m], b[0], b[1]);
        multiply(s[m][n * 2 + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// output = output * fade + weights v.
template <int TILES, int PAIRS>
DEVICE void add_output(float (&output)[TILES][Rows<DV>::padded / 8][4], const float (&s)[TILES][PAIRS * 2][4],
                       const float (&fade)[TILES][2], u32 value_lane) {
#pragma unroll
  for (int m = 0; m < TILES; m++) {
#pragma unroll
    for (int n = 0; n < Rows<DV>::padded / 8; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) output[m][n][e] *= fade[m][e / 2];
    }
  }
#pragma unroll
  for (int step = 0; step < PAIRS; step++) {
    u32 a[TILES][4];
#pragma unroll
    for (int m = 0; m < TILES; m++) {
      a[m][0] = pack(s[m][step * 2][0], s[m][step * 2][1]);
      a[m][1] = pack(s[m][step * 2][2], s[m][step * 2][3]);
      a[m][2] = pack(s[m][step * 2 + 1][0], s[m][step * 2 + 1][1]);
      a[m][3] = pack(s[m][step * 2 + 1][2], s[m][step * 2 + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < Rows<DV>::padded / 16; n++) {
      u32 b[4];
      load_matrix_x4_transposed(b, step * 16 * Rows<DV>::stride + Rows<DV>::advance(value_lane, n));
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        multiply(output[m][n * 2], a[m], b[0], b[1]);
        multiply(output[m][n * 2 + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Writes this lane's part of a row of o, times `by`, or adds it to the stored values.
DEVICE void write_row(u16* row, const float (&output)[Rows<DV>::padded / 8][4], int half, float by, bool add, int lane) {
#pragma unroll
  for (int n = 0; n < Rows<DV>::padded / 8; n++) {
    const int column = n * 8 + lane % 4 * 2;
    if (Rows<DV>::padded != DV && column >= DV) continue;
    float low = output[n][half * 2] * by, high = output[n][half * 2 + 1] * by;
    if (DV % 2 == 0) {
      if (add) {
        const u32 there = *(const u32*)(row + column);
        low += to_float((u16)there);
        high += to_float((u16)(there >> 16));
      }
      *(u32*)(row + column) = pack(low, high);
    } else {
      row[column] = to_storage(low + (add ? to_float(row[column]) : 0.0f));
      if (column + 1 < DV) row[column + 1] = to_storage(high + (add ? to_float(row[column + 1]) : 0.0f));
    }
  }
}
