// Gradients of the causal convolution over channel-first tokens (the tokens of a channel are contiguous), for every GPU from sm_80 on.
//
// x, do, dx [B, C, T]; the rest as in channel_last.cu, without packed sequences. A warp has `chunk` tokens of a channel of every sequence
// blockIdx.z + i gridDim.z, in strips of 32 VECTOR tokens from the last to the first: each needs du of the WIDTH - 1 tokens after it.
// A thread computes VECTOR adjacent tokens, and reads the WIDTH - 1 of x before them again (from L1). T % VECTOR == 0.
//
// Launch: grid (ceil(T / chunk), ceil(C / WARPS), up to B); block (32, WARPS). chunk is a multiple of 32 VECTOR.
// partial [gridDim.z, gridDim.x, C WIDTH + C].
//
// Macros: those of sequence.cuh, VECTOR (at most 16 bytes), WARPS.

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    conv1d_backward_channel_first(const char* __restrict__ x, const void* __restrict__ weight, const void* __restrict__ bias,
                                  const void* __restrict__ initial_state, const char* __restrict__ d_o,
                                  const void* __restrict__ dfinal, char* __restrict__ dx, float* __restrict__ partial, int sequences,
                                  int tokens, int channels, int state_len, int chunk, int weight_f32, int bias_f32, int state_f32) {
  const int channel = blockIdx.y * WARPS + threadIdx.y, lane = threadIdx.x;
  if (channel >= channels) return;
  float taps[WIDTH];
#pragma unroll
  for (int w = 0; w < WIDTH; w++) taps[w] = number(weight, (i64)channel * WIDTH + w, weight_f32);
  const float offset = bias != nullptr ? number(bias, channel, bias_f32) : 0.0f;
  const int begin = blockIdx.x * chunk, end = min(tokens, begin + chunk);
  constexpr int STRIP = 32 * VECTOR;

  float dweight[WIDTH] = {}, dbias = 0.0f;
  for (int sequence = blockIdx.z; sequence < sequences; sequence += gridDim.z) {
    const i64 row = (i64)sequence * channels + channel;
    const int width = state_f32 || STORAGE == STORED_f32 ? 4 : 2;
    const Sequence of = {x + row * tokens * ELEMENT_BYTES,
                         d_o + row * tokens * ELEMENT_BYTES,
                         initial_state == nullptr ? nullptr : (const char*)initial_state + row * state_len * width,
                         1,
                         tokens,
                         state_len,
                         state_f32};
    char* const to = dx + row * tokens * ELEMENT_BYTES;
    // du of token end + j is in lane j.
    const float beyond = lane < BEFORE ? of.gradient(end + lane, taps, offset) : 0.0f;
    float carry[BEFORE];
    int strip = begin + (end - begin - 1) / STRIP * STRIP;
#pragma unroll
    for (int j = 0; j < BEFORE; j++) {
      const int past = strip + STRIP + j - end;
      const float value = __shfl_sync(0xffffffff, beyond, min(past, 31));
      carry[j] = past < BEFORE ? value : 0.0f;
    }
    for (; strip >= begin; strip -= STRIP) {
      const int first = strip + lane * VECTOR;
      // du of this thread's tokens, and of those after them.
      float du[VECTOR + BEFORE];
      if (first < end) {
        float window[BEFORE + VECTOR];
        Stored<VECTOR> in, gradients;
        in.load(of.x + (i64)first * ELEMENT_BYTES);
        gradients.load(of.d_o + (i64)first * ELEMENT_BYTES);
#pragma unroll
        for (int b = 0; b < BEFORE; b++) window[b] = of.value(first - BEFORE + b);
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
          window[BEFORE + v] = in.get(v);
          float u = offset;
#pragma unroll
          for (int w = 0; w < WIDTH; w++) u = fmaf(taps[w], window[v + w], u);
          du[v] = gradients.get(v) * slope(u);
          dbias += du[v];
#pragma unroll
          for (int w = 0; w < WIDTH; w++) dweight[w] = fmaf(du[v], window[v + w], dweight[w]);
        }
      }
      // The first threads past the end have du of the tokens there.
#pragma unroll
      for (int v = 0; v < VECTOR; v++) {
        const int past = first + v - end;
        const float value = __shfl_sync(0xffffffff, beyond, past < 0 ? 0 : min(past, 31));
        if (first >= end) du[v] = past < BEFORE ? value : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < BEFORE; j++) {
        const int far = 1 + j / VECTOR, index = (lane + far - 32) * VECTOR + j % VECTOR;
        const float other = __shfl_down_sync(0xffffffff, du[j % VECTOR], far);
        float after = carry[0];
#pragma unroll
        for (int c = 1; c < BEFORE; c++) after = index == c ? carry[c] : after;
        du[VECTOR + j] = lane + far < 32 ? other : after;
      }
#pragma unroll
      for (int j = 0; j < BEFORE; j++) carry[j] = __shfl_sync(0xffffffff, du[j % VECTOR], j / VECTOR);
      if (first >= end) continue;
      float result[VECTOR];
#pragma unroll
      for (int v = 0; v < VECTOR; v++) {
        result[v] = 0.0f;
#pragma unroll
        for (int j = 0; j < WIDTH; j++) result[v] = fmaf(taps[BEFORE - j], du[v + j], result[v]);
        const int column = first + v - (tokens - state_len);
        if (dfinal != nullptr && column >= 0) result[v] += number(dfinal, row * state_len + column, state_f32);
      }
      Stored<VECTOR> out;
      out.set(result);
      out.store(to + (i64)first * ELEMENT_BYTES);
    }
  }
#pragma unroll
  for (int far = 16; far > 0; far /= 2) {
    dbias += __shfl_xor_sync(0xffffffff, dbias, far);
#pragma unroll
    for (int w = 0; w < WIDTH; w++) dweight[w] += __shfl_xor_sync(0xffffffff, dweight[w], far);
  }
  if (lane > 0) return;
  partial += ((i64)blockIdx.z * gridDim.x + blockIdx.x) * channels * (WIDTH + 1);
#pragma unroll
  for (int w = 0; w < WIDTH; w++) partial[(i64)channel * WIDTH + w] = dweight[w];
  partial[(i64)channels * WIDTH + channel] = dbias;
}
