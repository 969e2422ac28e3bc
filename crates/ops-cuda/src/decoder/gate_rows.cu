// A gate for each token, in place: x[t] *= sigmoid(w . h[t]). x [T, width] and h [T, hidden] in storage; w [hidden] f32.
// width and hidden % 8 == 0, all 16-byte aligned.
// Launch: grid (T), 256 threads. Macros: DTYPE.

constexpr int THREADS = 256, WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS)
    decoder_gate_rows(char* x, const char* h, const float* w, int width, int hidden) {
  let_next_start();
  wait_for_previous();
  h += (i64)blockIdx.x * hidden * ELEMENT_BYTES;
  x += (i64)blockIdx.x * width * ELEMENT_BYTES;
  float sum = 0;
  for (int i = threadIdx.x * 8; i < hidden; i += THREADS * 8) {
    Stored<8> values;
    values.load(h + (i64)i * ELEMENT_BYTES);
#pragma unroll
    for (int e = 0; e < 8; e++) sum += values.get(e) * w[i + e];
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  __shared__ float sums[WARPS];
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  float logit = 0;
#pragma unroll
  for (int warp = 0; warp < WARPS; warp++) logit += sums[warp];
  const float factor = sigmoid(logit);
  for (int i = threadIdx.x * 8; i < width; i += THREADS * 8) {
    Stored<8> values;
    values.load(x + (i64)i * ELEMENT_BYTES);
    float gated[8];
#pragma unroll
    for (int e = 0; e < 8; e++) gated[e] = values.get(e) * factor;
    values.set(gated);
    values.store(x + (i64)i * ELEMENT_BYTES);
  }
}
