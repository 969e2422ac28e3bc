// The gradient of the initial states of conv1d, in either layout, for every GPU from sm_80 on: the gradient of the tokens before a sequence, of which
// the last WIDTH - 1 are read by its first tokens, and those that are in the final state have its gradient too.
//
// Tensors as in the other gradient kernels of conv1d; dinitial [Nseq, C, state_len] f32, or in storage. Elements of x are `apart` from one token to
// the next: C, or 1 if it is channel-first.
//
// Launch: grid (ceil(C / 128), min(Nseq, 65535)); block (128).
//
// Macros: those of sequence.cuh.

extern "C" __global__ void __launch_bounds__(128)
    conv1d_backward_states(const char* __restrict__ x, const void* __restrict__ weight, const void* __restrict__ bias,
                           const void* __restrict__ initial_state, const int* __restrict__ cu_seqlens, const char* __restrict__ d_o,
                           const void* __restrict__ dfinal, void* __restrict__ dinitial, int sequences, int tokens, int channels,
                           int state_len, int apart, int weight_f32, int bias_f32, int state_f32) {
  const int channel = blockIdx.x * 128 + threadIdx.x;
  if (channel >= channels) return;
  float taps[WIDTH];
#pragma unroll
  for (int w = 0; w < WIDTH; w++) taps[w] = number(weight, (i64)channel * WIDTH + w, weight_f32);
  const float offset = bias != nullptr ? number(bias, channel, bias_f32) : 0.0f;
  const bool wide = state_f32 || STORAGE == STORED_f32;
  for (int sequence = blockIdx.y; sequence < sequences; sequence += gridDim.y) {
    const int start = cu_seqlens != nullptr ? cu_seqlens[sequence] : sequence * tokens;
    const int length = cu_seqlens != nullptr ? cu_seqlens[sequence + 1] - start : tokens;
    const i64 row = (i64)sequence * channels + channel, state = row * state_len;
    const i64 from = (apart == 1 ? row * tokens : (i64)start * channels + channel) * ELEMENT_BYTES;
    const Sequence of = {x + from, d_o + from, (const char*)initial_state + state * (wide ? 4 : 2), apart, length, state_len, state_f32};
    float du[BEFORE];
#pragma unroll
    for (int j = 0; j < BEFORE; j++) du[j] = of.gradient(j, taps, offset);
    for (int column = 0; column < state_len; column++) {
      const int token = column - state_len, kept = token - (length - state_len);
      float result = dfinal != nullptr && kept >= 0 ? number(dfinal, state + kept, state_f32) : 0.0f;
      // Token + BEFORE - w is read by tap w.
#pragma unroll
      for (int w = 0; w < BEFORE; w++) {
#pragma unroll
        for (int j = 0; j < BEFORE; j++) result = token + BEFORE - w == j ? fmaf(taps[w], du[j], result) : result;
      }
      if (wide) {
        ((float*)dinitial)[state + column] = result;
      } else {
        ((u16*)dinitial)[state + column] = narrow_half(result);
      }
    }
  }
}
