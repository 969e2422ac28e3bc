// Elementwise gates: o = x * sigmoid(gate), or x * gate with PLAIN. x, gate and o [length] in storage, length % 8 == 0, all 16-byte
// aligned; o may be x.
// Launch: grid (ceil(length / 2048)), 256 threads. Macros: DTYPE, PLAIN (0 where it is not defined).

#ifndef PLAIN
#define PLAIN 0
#endif

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
    decoder_gate(const char* x, const char* gate, char* o, i64 length) {
  let_next_start();
  wait_for_previous();
  const i64 first = ((i64)blockIdx.x * THREADS + threadIdx.x) * 8;
  if (first >= length) return;
  Stored<8> values, logits;
  values.load(x + first * ELEMENT_BYTES);
  logits.load(gate + first * ELEMENT_BYTES);
  float gated[8];
#pragma unroll
  for (int e = 0; e < 8; e++) gated[e] = values.get(e) * (PLAIN ? logits.get(e) : sigmoid(logits.get(e)));
  values.set(gated);
  values.store(o + first * ELEMENT_BYTES);
}
