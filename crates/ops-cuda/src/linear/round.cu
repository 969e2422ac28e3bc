// Rounds f32 to storage: x for the kernels for many rows, if it is neither normalized nor already in storage.
//
// x f32 [count], o [count] in storage, both 16-byte aligned.
//
// Launch: grid ceil(count / 2048); block 256. Source: include/storage.cuh, then this. Macros: DTYPE (bf16, f16).

extern "C" __global__ void __launch_bounds__(256)
    linear_round(const float* __restrict__ x, char* __restrict__ o, i64 count) {
  const i64 from = ((i64)blockIdx.x * 256 + threadIdx.x) * 8;
  if (from + 8 <= count) {
    float values[8];
    numbers<8>(values, x, from, true);
    Stored<8> rounded;
    rounded.set(values);
    rounded.store(o + from * ELEMENT_BYTES);
  } else {
    for (i64 i = from; i < count; i++) ((u16*)o)[i] = narrow_half(x[i]);
  }
}
