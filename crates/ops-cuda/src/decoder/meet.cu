// Waits until another GPU's mark is at `turn`, so that the kernels behind this one can read what was copied before it.
//
// Launch: one block of any number of threads. What stands behind it starts when the mark is there, not before: however the driver makes
// copies, those that the other GPU waits for find room on this one. Source: include/order.cuh, decoder/mark.cuh, then this.

extern "C" __global__ void decoder_meet(const unsigned int* mark, int turn) {
  wait_for_previous();
  if (threadIdx.x == 0) wait_for_mark(mark, turn);
  let_next_start();
}
