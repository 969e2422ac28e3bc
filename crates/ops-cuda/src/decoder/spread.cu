// Prologue of an RMSNorm whose width is sharded over ranks: o[t] = x[t] * w, and squares[t] = x[t] . x[t]. The product of o with the
// weights is divided by the whole row's RMS once all ranks' squares are summed. x and o [T, width] in storage, w [width] and squares
// [T] f32. width % 8 == 0, all 16-byte aligned but squares.
// Launch: grid (T), 256 threads. Macros: DTYPE.

constexpr int THREADS = 256, WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS)
    decoder_spread(const char* x, const float* w, char* o, float* squares, int width) {
  let_next_start();
  wait_for_previous();
  x += (i64)blockIdx.x * width * ELEMENT_BYTES;
  o += (i64)blockIdx.x * width * ELEMENT_BYTES;
  float sum = 0;
  for (int i = threadIdx.x * 8; i < width; i += THREADS * 8) {
    Stored<8> values;
    values.load(x + (i64)i * ELEMENT_BYTES);
    float scaled[8];
#pragma unroll
    for (int e = 0; e < 8; e++) {
      const float value = values.get(e);
      sum += value * value;
      scaled[e] = value * w[i + e];
    }
    values.set(scaled);
    values.store(o + (i64)i * ELEMENT_BYTES);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  __shared__ float sums[WARPS];
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  float all = 0;
#pragma unroll
  for (int warp = 0; warp < WARPS; warp++) all += sums[warp];
  squares[blockIdx.x] = all;
}
