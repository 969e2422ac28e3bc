// Copies the states that no sequence uses: final_state[slot] = initial_state[slot] for every slot that is not among
// `indices`. For ops whose states are pools.
//
// initial_state [slots, length] f32 (`wide`) or bf16; final_state likewise (`final_wide`), f32 where initial_state is; indices
// [sequences], negative ones are no slot.
//
// Launch: grid (blocks, min(slots, 65535)); block (256). Macros: none.

typedef long long i64;

extern "C" __global__ void __launch_bounds__(256)
    copy_unused_slots(const void* __restrict__ initial_state, void* __restrict__ final_state,
                      const int* __restrict__ indices, int sequences, int slots, int wide, int final_wide,
                      i64 length) {
  for (int slot = blockIdx.y; slot < slots; slot += gridDim.y) {
    int used = 0;
    for (int s = threadIdx.x; s < sequences; s += blockDim.x) used |= indices[s] == slot;
    if (__syncthreads_or(used)) continue;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < length; i += (i64)gridDim.x * blockDim.x) {
      const i64 at = slot * length + i;
      if (!final_wide) {
        ((unsigned short*)final_state)[at] = ((const unsigned short*)initial_state)[at];
        continue;
      }
      ((float*)final_state)[at] = wide ? ((const float*)initial_state)[at]
                                       : __uint_as_float((unsigned)((const unsigned short*)initial_state)[at] << 16);
    }
  }
}
