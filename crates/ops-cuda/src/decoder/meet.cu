// Waits until another GPU's mark is at `turn`: later kernels in the stream can then read what was copied before it.
//
// Launch: one block of any number of threads. Dependent kernels (PDL) start only when the mark has arrived: however the driver
// implements copies, those that the other GPU waits for find free SMs on this one. Source: include/order.cuh, decoder/mark.cuh, then this.

extern "C" __global__ void decoder_meet(const unsigned int* mark, int turn) {
  wait_for_previous();
  if (threadIdx.x == 0) wait_for_mark(mark, turn);
  let_next_start();
}
