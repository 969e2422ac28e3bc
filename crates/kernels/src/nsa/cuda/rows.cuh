// Sums over the 16 rows of a product's result, for compressed.cu and compressed_hopper.cu. Stands behind call.cuh.

// Sums values[v] over the eight lanes that share lane % 4: afterwards a lane holds count / 8 of the sums, starting at
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
