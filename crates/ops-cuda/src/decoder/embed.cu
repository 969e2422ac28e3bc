// Rows of the embedding: x[t] = multiplier * table[tokens[t]].
//
// table [vocabulary, hidden] in storage, tokens [T], x [T, hidden] f32; hidden % 8 == 0, rows 16-byte aligned.
// Launch: grid (T), any number of threads. Macros: DTYPE.

extern "C" __global__ void decoder_embed(const char* __restrict__ table, const int* __restrict__ tokens,
                                         float* __restrict__ x, int hidden, float multiplier) {
  let_next_start();
  wait_for_previous();
  tokens = read_from_now_on(tokens);
  const char* const from = table + (i64)tokens[blockIdx.x] * hidden * ELEMENT_BYTES;
  float* const to = x + (i64)blockIdx.x * hidden;
  for (int i = threadIdx.x * 8; i < hidden; i += blockDim.x * 8) {
    Stored<8> row;
    row.load(from + i * ELEMENT_BYTES);
#pragma unroll
    for (int v = 0; v < 8; v++) to[i + v] = multiplier * row.get(v);
  }
}
