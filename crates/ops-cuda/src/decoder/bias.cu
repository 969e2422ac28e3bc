// Adds to logits: logits[places[i]] += values[i], float32. Places are distinct.
// Launch: grid (ceil(count / threads)), any number of threads.

extern "C" __global__ void decoder_bias(float* __restrict__ logits, const int* __restrict__ places,
                                        const float* __restrict__ values, int count) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) {
    float* const logit = logits + read_from_now_on(places)[i];
    *logit = __fadd_rn(*logit, read_from_now_on(values)[i]);
  }
}
