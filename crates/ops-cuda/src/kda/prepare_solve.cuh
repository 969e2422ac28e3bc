// (I + B)^-1 of a chunk for B strictly lower triangular, 64 x 64, by 128 threads: 16 x 16 blocks by substitution in f32, a
// lane per column, and then (A 0; C D)^-1 = (A^-1 0; -D^-1 C A^-1, D^-1) twice by f16 MMAs. Not by (I + L)(I + L^2)...: with
// correlated keys and beta = 2 those powers reach 1e6 before they cancel.

constexpr int SOLVE_STRIDE = 68;  // floats from row to row: whole 16 bytes, and adjacent rows in different banks
constexpr int SOLVE_FLOATS = CHUNK * SOLVE_STRIDE;

DEVICE float4 four(const float* from) { return *(const float4*)from; }

// The barrier of all threads that call `solve`, if they are a whole block.
struct WholeBlock {
  static DEVICE int thread() { return threadIdx.x; }
  DEVICE void operator()() const { __syncthreads(); }
};

// The 16 x 16 tile at (row, column) of `from`, transposed, as an A fragment in f16.
DEVICE void transposed(u32 (&to)[4], const float* from, int row, int column, int lane) {
  from += (row + lane % 4 * 2) * SOLVE_STRIDE + column + lane / 4;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float* at = from + i / 2 * 8 * SOLVE_STRIDE + i % 2 * 8;
    to[i] = pack(at[0], at[SOLVE_STRIDE]);
  }
}

// The same tile, not transposed, as two B fragments whose columns are its rows.
DEVICE void rows(u32 (&to)[2][2], const float* from, int row, int column, int lane) {
  from += (row + lane / 4) * SOLVE_STRIDE + column + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 two = *(const float2*)(from + i / 2 * 8 * SOLVE_STRIDE + i % 2 * 8);
    to[i / 2][i % 2] = pack(two.x, two.y);
  }
}

// Converts accumulators of 16 x 16 to an A fragment.
DEVICE void chained(u32 (&to)[4], const float (&sums)[2][4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) to[i] = pack(sums[i / 2][i % 2 * 2], sums[i / 2][i % 2 * 2 + 1]);
}

// Writes the negative of transposed sums to the tile at (row, column).
DEVICE void put_negative(float* to, const float (&sums)[2][4], int row, int column, int lane) {
  to += (row + lane % 4 * 2) * SOLVE_STRIDE + column + lane / 4;
#pragma unroll
  for (int i = 0; i < 8; i++) to[(i / 4 * 8 + i % 2) * SOLVE_STRIDE + i / 2 % 2 * 8] = -sums[i / 4][i % 4];
}

DEVICE void store_negative(float* to, const u32 (&left)[4], const u32 (&right)[2][2], int row, int column, int lane) {
  float sums[2][4] = {};
  mma_m16n8k16(sums[0], left, right[0][0], right[0][1]);
  mma_m16n8k16(sums[1], left, right[1][0], right[1][1]);
  put_negative(to, sums, row, column, lane);
}

// `b` and `inverse` are 64 rows of SOLVE_STRIDE floats. The upper right 32 x 32 of `inverse` is not
// written. Every thread must have passed a barrier since `b` was written; the caller provides the last barrier.
template <class Barrier>
DEVICE void solve(const float* b, float* inverse, int thread, Barrier barrier) {
  const int warp = thread >> 5 & 3, lane = thread & 31;
  {
    const float* block = b + warp * 16 * (SOLVE_STRIDE + 1);
    float* to = inverse + warp * 16 * (SOLVE_STRIDE + 1);
    if (lane < 16) {
      // Four rows at a time: their updates from earlier rows are independent of each other.
      float x[16];
#pragma unroll
      for (int i = 0; i < 16; i += 4) {
#pragma unroll
        for (int r = 0; r < 4; r++) x[i + r] = i + r == lane ? 1.0f : 0.0f;
#pragma unroll
        for (int j = 0; j <= i; j += 4) {
          float4 row[4];
#pragma unroll
          for (int r = 0; r < 4; r++) row[r] = four(block + (i + r) * SOLVE_STRIDE + j);
#pragma unroll
          for (int c = 0; c < 4; c++) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
              const float factor = c == 0 ? row[r].x : c == 1 ? row[r].y : c == 2 ? row[r].z : row[r].w;
              if (j + c < i + r) x[i + r] -= factor * x[j + c];
            }
          }
        }
#pragma unroll
        for (int r = 0; r < 4; r++) to[(i + r) * SOLVE_STRIDE + lane] = x[i + r];
      }
    } else if (warp % 2 == 0) {  // Zeroes the block to the right, which the products below read.
#pragma unroll
      for (int i = 0; i < 16; i++) to[i * SOLVE_STRIDE + lane] = 0.0f;
    }
  }
  barrier();
  // -D^-1 C A^-1 transposed, in 16 x 16 tiles: the accumulators of A^-T C^T have the layout of the next A fragment.
  if (warp % 2 == 0) {
    const int low = warp * 16, high = low + 16;
    float sums[2][4] = {};
    u32 left[4], right[2][2];
    transposed(left, inverse, low, low, lane);
    rows(right, b, high, low, lane);
    mma_m16n8k16(sums[0], left, right[0][0], right[0][1]);
    mma_m16n8k16(sums[1], left, right[1][0], right[1][1]);
    chained(left, sums);
    rows(right, inverse, high, high, lane);
    store_negative(inverse, left, right, high, low, lane);
  }
  barrier();
  {
    const int low = warp % 2 * 16, high = 32 + warp / 2 * 16;
    float sums[2][2][4] = {};
    u32 left[4], right[2][2];
#pragma unroll
    for (int step = 0; step < 2; step++) {
      transposed(left, inverse, step * 16, low, lane);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        rows(right, b, 32 + half * 16, step * 16, lane);
        mma_m16n8k16(sums[half][0], left, right[0][0], right[0][1]);
        mma_m16n8k16(sums[half][1], left, right[1][0], right[1][1]);
      }
    }
    float last[2][4] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
      chained(left, sums[half]);
      rows(right, inverse, high, 32 + half * 16, lane);
      mma_m16n8k16(last[0], left, right[0][0], right[0][1]);
      mma_m16n8k16(last[1], left, right[1][0], right[1][1]);
    }
    put_negative(inverse, last, high, low, lane);
  }
}
