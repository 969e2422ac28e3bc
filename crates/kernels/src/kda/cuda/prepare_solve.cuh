// (I + B)^-1 of a chunk for B strictly lower triangular, 64 x 64, in f32, by 128 threads: 16 x 16 blocks by substitution,
// a column a lane, and then (A 0; C D)^-1 = (A^-1 0; -D^-1 C A^-1, D^-1) twice. Not by (I + L)(I + L^2)...: with
// correlated keys and beta = 2 those powers reach 1e6 before they cancel.

constexpr int SOLVE_STRIDE = 68;  // floats from row to row: whole 16 bytes, and neighbouring rows in other banks
constexpr int SOLVE_FLOATS = CHUNK * SOLVE_STRIDE;

DEVICE float4 four(const float* from) { return *(const float4*)from; }

DEVICE void add_product(float4& sum, float a, const float4& b) {
  sum.x += a * b.x;
  sum.y += a * b.y;
  sum.z += a * b.z;
  sum.w += a * b.w;
}

// `b` and `inverse` are 64 rows of SOLVE_STRIDE floats, `between` 32. The upper right 32 x 32 of `inverse` is left as it
// is. Every thread must have passed a barrier since `b` was written; the last barrier is the caller's.
DEVICE void solve(const float* b, float* inverse, float* between, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  {
    const float* block = b + warp * 16 * (SOLVE_STRIDE + 1);
    float* to = inverse + warp * 16 * (SOLVE_STRIDE + 1);
    if (lane < 16) {
      float x[16];
#pragma unroll
      for (int i = 0; i < 16; i++) {
        float sum = i == lane ? 1.0f : 0.0f;
#pragma unroll
        for (int j = 0; j < i; j += 4) {
          const float4 row = four(block + i * SOLVE_STRIDE + j);
          sum -= row.x * x[j];
          if (j + 1 < i) sum -= row.y * x[j + 1];
          if (j + 2 < i) sum -= row.z * x[j + 2];
          if (j + 3 < i) sum -= row.w * x[j + 3];
        }
        x[i] = sum;
        to[i * SOLVE_STRIDE + lane] = sum;
      }
    } else if (warp % 2 == 0) {  // The block to the right is 0: the products below read it.
#pragma unroll
      for (int i = 0; i < 16; i++) to[i * SOLVE_STRIDE + lane] = 0.0f;
    }
  }
  __syncthreads();
  {
    const int low = warp / 2 * 32, high = low + 16, row = thread % 64 / 4, column = thread % 4 * 4;
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 16; j++) {
      add_product(sum, b[(high + row) * SOLVE_STRIDE + low + j], four(inverse + (low + j) * SOLVE_STRIDE + low + column));
    }
    *(float4*)(between + row * SOLVE_STRIDE + low + column) = sum;
    __syncthreads();
    sum = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 16; j++) {
      add_product(sum, -inverse[(high + row) * SOLVE_STRIDE + high + j], four(between + j * SOLVE_STRIDE + low + column));
    }
    *(float4*)(inverse + (high + row) * SOLVE_STRIDE + low + column) = sum;
  }
  __syncthreads();
  {
    const int row = thread / 8 * 2, column = thread % 8 * 4;
    float4 sums[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll 8
    for (int j = 0; j < 32; j++) {
      const float4 right = four(inverse + j * SOLVE_STRIDE + column);
      add_product(sums[0], b[(32 + row) * SOLVE_STRIDE + j], right);
      add_product(sums[1], b[(33 + row) * SOLVE_STRIDE + j], right);
    }
    *(float4*)(between + row * SOLVE_STRIDE + column) = sums[0];
    *(float4*)(between + (row + 1) * SOLVE_STRIDE + column) = sums[1];
    __syncthreads();
    sums[0] = sums[1] = {0, 0, 0, 0};
#pragma unroll 8
    for (int j = 0; j < 32; j++) {
      const float4 right = four(between + j * SOLVE_STRIDE + column);
      add_product(sums[0], -inverse[(32 + row) * SOLVE_STRIDE + 32 + j], right);
      add_product(sums[1], -inverse[(33 + row) * SOLVE_STRIDE + 32 + j], right);
    }
    *(float4*)(inverse + (32 + row) * SOLVE_STRIDE + column) = sums[0];
    *(float4*)(inverse + (33 + row) * SOLVE_STRIDE + column) = sums[1];
  }
}
