// Waits until another GPU's mark is at `turn`, so that the kernels behind this one can read what was copied before it.
//
// Launch: one block of any number of threads. The one block that waits keeps no multiprocessor from another kernel for long, and the
// other GPU's copy engine needs none of this GPU's: it cannot wait for what itself holds up. Source: cuda/order.cuh, decoder/mark.cuh,
// then this.

extern "C" __global__ void decoder_meet(const unsigned int* mark, int turn) {
  let_next_start();
  wait_for_previous();
  if (threadIdx.x == 0) wait_for_mark(mark, turn);
}
