// Weights in e4m3 times their factors, rounded to bf16: what the kernels for many rows multiply.
//
// w [rows, inputs] in e4m3; w_scale f32 [groups, rows], groups 1 (whole rows) or ceil(inputs / 128); o [rows, inputs] in bf16; w and o
// 16-byte aligned.
//
// Launch: grid ceil(rows * inputs / 4096); block 256. Source: cuda/storage.cuh, then this. Macros: DTYPE (bf16).

// Exactly: sign, exponent and mantissa where float32 has them, whose exponents' bias is 120 more; also below the smallest exponent.
DEVICE float e4m3(u32 bits) {
  const float value = __uint_as_float((bits & 0x80) << 24 | (bits & 0x7f) << 20) * 1.329227995784916e36f;
  return (bits & 0x7f) == 0x7f ? __uint_as_float(0x7fffffff) : value;
}

extern "C" __global__ void __launch_bounds__(256)
    linear_expand(const unsigned char* __restrict__ w, const float* __restrict__ w_scale, u16* __restrict__ o, int rows,
                  int inputs, int groups) {
  const i64 count = (i64)rows * inputs, from = ((i64)blockIdx.x * 256 + threadIdx.x) * 16;
  if (from >= count) return;
  const int row = from / inputs, column = from - (i64)row * inputs;
  const auto factor = [&](int row, int column) { return __ldg(w_scale + (groups == 1 ? 0 : (i64)(column / 128) * rows) + row); };
  if (inputs % 16 == 0) {
    const uint4 piece = __ldg((const uint4*)(w + from));
    const u32 word[4] = {piece.x, piece.y, piece.z, piece.w};
    const float scale = factor(row, column);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float values[8];
#pragma unroll
      for (int i = 0; i < 8; i++) values[i] = e4m3(word[half * 2 + i / 4] >> i % 4 * 8 & 0xff) * scale;
      Stored<8> rounded;
      rounded.set(values);
      rounded.store(o + from + half * 8);
    }
    return;
  }
  int here = row, k = column;
  for (i64 i = from; i < min(from + 16, count); i++) {
    o[i] = narrow_half(e4m3(w[i]) * factor(here, k));
    if (++k == inputs) k = 0, here++;
  }
}
