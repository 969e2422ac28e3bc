// Programmatic dependent launch (PDL), for kernels without ampere.cuh (sm_90 and later; before that the second kernel starts
// when the first has ended).

// PDL: lets the next kernel of the stream, if it was launched with overlap, start as SMs become free.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// PDL: waits until the previous kernel has ended and its writes are visible.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Returns the same pointer, opaque to the compiler: loads through it are not moved above this call, although the data is
// const __restrict__.
template <class T>
__device__ __forceinline__ T read_from_now_on(T pointer) {
  asm volatile("" : "+l"(pointer)::"memory");
  return pointer;
}
