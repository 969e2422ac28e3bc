// Products of tiles in shared memory, by MMA, and sums over the lanes of a warp for gradient_chunk.cu. Requires ampere.cuh, gradient.cuh and
// gradient_mma.cuh.
//
// Macros: P (64), N (128).

static_assert(P == 64 && N == 128, "the tiling of warps is for P 64, N 128");

typedef Rows<P> Values;
typedef Rows<N> Projection;  // rows of B, C; of the states too
typedef Rows<Q> Mix;

// W and S are computed in pieces of one tile of 16 rows and up to 3 of 8 columns, on and below the diagonal, one per warp.
DEVICE int piece_row(int piece) { return piece < 3 ? 3 : piece < 5 ? 2 : piece < 7 ? 1 : 0; }
DEVICE int piece_index(int piece) { return piece < 3 ? piece : piece < 5 ? piece - 3 : piece < 7 ? piece - 5 : 0; }
DEVICE int piece_column(int piece) { return piece_index(piece) * (piece < 5 ? 3 : 2); }
DEVICE int piece_count(int piece) { return piece == 2 || piece >= 5 ? 2 : 3; }

DEVICE float quad_sum(float v) {
  v += __shfl_xor_sync(0xffffffff, v, 1);
  return v + __shfl_xor_sync(0xffffffff, v, 2);
}
DEVICE float octet_sum(float v) {  // over lane / 4
  v += __shfl_xor_sync(0xffffffff, v, 4);
  v += __shfl_xor_sync(0xffffffff, v, 8);
  return v + __shfl_xor_sync(0xffffffff, v, 16);
}
DEVICE float warp_sum(float v) { return octet_sum(quad_sum(v)); }

// rows (16 x 24) = left (16 x K) right^T (24 x K) of a piece.
template <class Tile, int depth>
DEVICE void multiply_piece(float (&s)[3][4], u32 left, u32 right, int row_tile, int column, int count, int lane) {
  const u32 left_lane = left + Tile::lane_offset(lane);
  const u32 right_lane = right + Tile::offset(lane % 8, lane / 8);  // 8 rows, 32 columns
#pragma unroll
  for (int k = 0; k < depth / 32; k++) {
    u32 a0[4], a1[4];
    load_matrix_x4(a0, row_tile * 16 * Tile::stride + Tile::advance(left_lane, 2 * k));
    load_matrix_x4(a1, row_tile * 16 * Tile::stride + Tile::advance(left_lane, 2 * k + 1));
#pragma unroll
    for (int n = 0; n < 3; n++) {
      if (n == 2 && count < 3) continue;
      u32 b[4];
      load_matrix_x4(b, (column + n) * 8 * Tile::stride + Tile::advance(right_lane, 2 * k));
      multiply(s[n], a0, b[0], b[1]);
      multiply(s[n], a1, b[2], b[3]);
    }
  }
}

// acc (32 x 32) = left (32 rows from `left_row`, 64 columns) right (64 x 32 columns from 16 * right_step).
DEVICE void multiply_state(float (&acc)[2][4][4], u32 left, u32 right, int left_row, int right_step, int lane) {
  const u32 left_lane = left + left_row * Values::stride + Values::lane_offset(lane);
  const u32 right_lane = right + Projection::lane_offset(lane);
#pragma unroll
  for (int k = 0; k < P / 16; k++) {
    u32 a[2][4];
#pragma unroll
    for (int m = 0; m < 2; m++) load_matrix_x4(a[m], m * 16 * Values::stride + Values::advance(left_lane, k));
#pragma unroll
    for (int n = 0; n < 2; n++) {
      u32 b[4];
      load_matrix_x4_transposed(b, k * 16 * Projection::stride + Projection::advance(right_lane, right_step + n));
#pragma unroll
      for (int m = 0; m < 2; m++) {
        multiply(acc[m][n * 2], a[m], b[0], b[1]);
        multiply(acc[m][n * 2 + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// acc (16 x 32) = projection (16 rows from 16 * row_tile, N columns) state^T (32 rows from `state_row`, N columns).
DEVICE void multiply_projection(float (&acc)[4][4], u32 projection, u32 state, int row_tile, int state_row, int lane) {
  const u32 left_lane = projection + row_tile * 16 * Projection::stride + Projection::lane_offset(lane);
  const u32 right_lane = state + state_row * Projection::stride + Projection::lane_offset_right(lane);
#pragma unroll
  for (int k = 0; k < N / 16; k++) {
    u32 a[4];
    load_matrix_x4(a, Projection::advance(left_lane, k));
#pragma unroll
    for (int n = 0; n < 2; n++) {
      u32 b[4];
      load_matrix_x4(b, n * 16 * Projection::stride + Projection::advance(right_lane, k));
      multiply(acc[n * 2], a, b[0], b[1]);
      multiply(acc[n * 2 + 1], a, b[2], b[3]);
    }
  }
}

// acc (32 x 32) += E (32 x Q) right (Q x 32 columns), or with `transposed` E^T; E is lower triangular, in tiles of 16.
template <bool transposed>
DEVICE void multiply_triangle(float (&acc)[2][4][4], u32 mix, u32 right, int half, int right_step, int lane) {
  const u32 right_lane = right + Projection::lane_offset(lane);
  const u32 mix_lane = mix + (transposed ? Mix::lane_offset_right(lane) : Mix::lane_offset(lane));
#pragma unroll
  for (int k = 0; k < Q / 16; k++) {
    u32 b[2][4];
#pragma unroll
    for (int n = 0; n < 2; n++) {
      load_matrix_x4_transposed(b[n], k * 16 * Projection::stride + Projection::advance(right_lane, right_step + n));
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
      const int row_tile = half * 2 + m;
      if (transposed ? k < row_tile : k > row_tile) continue;
      u32 a[4];
      if (transposed) {
        load_matrix_x4_transposed(a, k * 16 * Mix::stride + Mix::advance(mix_lane, row_tile));
      } else {
        load_matrix_x4(a, row_tile * 16 * Mix::stride + Mix::advance(mix_lane, k));
      }
#pragma unroll
      for (int n = 0; n < 2; n++) {
        multiply(acc[m][n * 2], a, b[n][0], b[n][1]);
        multiply(acc[m][n * 2 + 1], a, b[n][2], b[n][3]);
      }
    }
  }
}

// Writes a lane's accumulators of a 32 x 32 tile, whose columns are permuted: 8 adjacent columns of N per row.
DEVICE void write_projection(const float (&acc)[2][4][4], u16* to, float* partial, i64 row_stride, int row, int valid) {
#pragma unroll
  for (int m = 0; m < 2; m++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int t = row + m * 16 + half * 8;
      if (t >= valid) continue;
      const float(&v)[4][4] = acc[m];
      const int e = half * 2;
      if (partial == nullptr) {
        *(uint4*)(to + t * row_stride) = make_uint4(pack(v[0][e], v[0][e + 1]), pack(v[1][e], v[1][e + 1]),
                                                    pack(v[2][e], v[2][e + 1]), pack(v[3][e], v[3][e + 1]));
      } else {
        float4* const four = (float4*)(partial + t * row_stride);
        four[0] = make_float4(v[0][e], v[0][e + 1], v[1][e], v[1][e + 1]);
        four[1] = make_float4(v[2][e], v[2][e + 1], v[3][e], v[3][e + 1]);
      }
    }
  }
}
