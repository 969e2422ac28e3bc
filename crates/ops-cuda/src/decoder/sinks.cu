// Attention sinks: one logit per head that takes part in the softmax and has no value. Attention computed without it becomes
// o * sigmoid(lse - sink).
//
// o [count, heads, dim] in storage, updated in place; lse f32 [heads, count], or [count, heads] with TOKENS_FIRST; sinks f32 [heads].
// dim is a multiple of 8.
// Launch: grid (ceil(count heads dim / 2048)), 256 threads. Macros: DTYPE, TOKENS_FIRST.

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
    decoder_sinks(char* o, const float* lse, const float* __restrict__ sinks, int count, int heads, int dim) {
  let_next_start();
  wait_for_previous();
  const i64 first = ((i64)blockIdx.x * THREADS + threadIdx.x) * 8;
  if (first >= (i64)count * heads * dim) return;
  const i64 row = first / dim;
  const int token = (int)(row / heads), head = (int)(row % heads);
  const i64 at = TOKENS_FIRST ? row : (i64)head * count + token;
  Stored<8> values;
  values.load(o + first * ELEMENT_BYTES);
  const float factor = sigmoid(lse[at] - sinks[head]);
  float scaled[8];
#pragma unroll
  for (int e = 0; e < 8; e++) scaled[e] = values.get(e) * factor;
  values.set(scaled);
  values.store(o + first * ELEMENT_BYTES);
}
