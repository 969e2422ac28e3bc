// Two kernels in a row, for kernels without ampere.cuh (from sm_90 on; before that the second starts when the first has
// ended).

// Lets the next kernel of the stream, if it was launched so as to overlap, start as blocks become free.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until the previous kernel has ended and what it wrote can be read.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The same pointer, of which the compiler does not know that: what is read through it is read after this, though it is
// said to be constant.
template <class T>
__device__ __forceinline__ T read_from_now_on(T pointer) {
  asm volatile("" : "+l"(pointer)::"memory");
  return pointer;
}
