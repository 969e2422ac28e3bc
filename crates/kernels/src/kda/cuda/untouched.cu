// Copies the slots of a pool that no sequence uses from the initial to the final state, to the bit.
//
// Launch: grid (slots, any number of blocks per slot), 256 threads.
// Arguments: slots are the `sequences` state indices; `elements` are those of a slot. types: gates.cuh.
extern "C" __global__ void kda_untouched(const void* initial, float* final_state, const int* slots, int sequences,
                                         int types, i64 elements) {
  const int slot = blockIdx.x;
  int used = 0;
  for (int n = threadIdx.x; n < sequences; n += blockDim.x) used |= slots[n] == slot;
  if (__syncthreads_or(used)) return;
  for (i64 i = blockIdx.y * (i64)blockDim.x + threadIdx.x; i < elements; i += (i64)gridDim.y * blockDim.x) {
    const i64 at = slot * elements + i;
    final_state[at] = types & NARROW_STATE ? bf16_element(initial, at) : ((const float*)initial)[at];
  }
}
