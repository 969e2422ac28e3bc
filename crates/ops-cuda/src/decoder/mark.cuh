// A mark that another GPU sets after its copies to this GPU have arrived.

// Waits until the mark is at `turn`: what was copied before it can then be read.
__device__ __forceinline__ void wait_for_mark(const unsigned int* mark, int turn) {
  unsigned int met;
  do {
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(met) : "l"(mark) : "memory");
  } while (met != (unsigned int)turn);
}
