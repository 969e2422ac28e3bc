// Rounds to bfloat16: to[i] = from[i], f32 to bf16, 16-byte aligned, count % 8 == 0.
// Launch: any number of blocks, 256 threads. Source: include/order.cuh, include/storage.cuh, then this. Macro: DTYPE (bf16).

extern "C" __global__ void __launch_bounds__(256) decoder_narrow(const void* from, void* to, i64 count) {
  let_next_start();
  wait_for_previous();
  for (i64 at = blockIdx.x * 256 + threadIdx.x; at < count / 8; at += gridDim.x * 256) {
    const float4 low = ((const float4*)from)[2 * at], high = ((const float4*)from)[2 * at + 1];
    ((uint4*)to)[at] = make_uint4(narrow_pair(low.x, low.y), narrow_pair(low.z, low.w), narrow_pair(high.x, high.y), narrow_pair(high.z, high.w));
  }
}
