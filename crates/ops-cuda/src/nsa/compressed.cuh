// Shared by compressed.cu and compressed_hopper.cu: the queries and compressed tokens of a thread block, and the weights of its second
// pass and their sums. Requires call.cuh.

// Adjacent queries of a chunk, and the number of compressed tokens that the last of them sees.
struct Span {
  int first, end, first_position, high;

  DEVICE bool empty() const { return first >= end; }
};

template <int tokens>
DEVICE Span span_of(const Sequence& here, int chunk_first, int chunk_tokens, int block, int stride) {
  Span span;
  // Late queries see most: they start first.
  span.first = chunk_first + (gridDim.x - 1 - blockIdx.x) * tokens;
  span.end = min(here.queries, chunk_first + chunk_tokens);
  span.first_position = span.first + here.keys - here.queries;
  span.high = compressed_before(span.first_position + min(tokens, span.end - span.first) - 1, block, stride);
  return span;
}

// The exponent offset that the second pass subtracts in a row, from the first pass's maximum and sum. Rows without a head get infinity:
// weights of 0.
DEVICE float exponent_of(float maximum, float sum, float factor, int row, int heads) {
  return row < heads && sum > 0.0f ? maximum * factor + log2_approximate(sum) : INFINITE;
}

// Sums values[v] over the eight lanes that share lane % 4: afterwards a lane has count / 8 of the sums, starting at
// that of value first_of(lane). Every value is added up in the same order of lanes.
template <int count, int held = count / 2, int bit = 16>
DEVICE void sum_over_rows(float (&values)[count], int lane) {
  const bool upper = lane & bit;
#pragma unroll
  for (int v = 0; v < held; v++) {
    const float other = __shfl_xor_sync(0xffffffff, upper ? values[v] : values[v + held], bit);
    values[v] = (upper ? values[v + held] : values[v]) + other;
  }
  if constexpr (bit > 4) sum_over_rows<count, held / 2, bit / 2>(values, lane);
}

// Writes the weights of `keys` compressed tokens from `first` on, summed over the rows; the query sees `seen` compressed tokens.
template <int keys>
DEVICE void write_weights(float* row, float (&weights)[keys / 4], int first, int seen, int lane) {
  sum_over_rows<keys / 4>(weights, lane);
  if (row == nullptr) return;
  // The lane has keys / 32 sums from this one on.
  const int from = (lane >> 4 & 1) * keys / 8 + (lane >> 3 & 1) * keys / 16 + (lane >> 2 & 1) * keys / 32;
#pragma unroll
  for (int v = 0; v < keys / 32; v++) {
    const int key = first + (from + v) / 2 * 8 + lane % 4 * 2 + (from + v) % 2;
    if (key < seen) row[key] = weights[v];
  }
}
