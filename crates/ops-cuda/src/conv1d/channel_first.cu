// Causal convolution over channel-first tokens (the tokens of a channel are contiguous), for every GPU from sm_80 on.
//
// x, o [B, C, T]; the rest as in channel_last.cu, without packed sequences. A thread computes VECTOR adjacent tokens of
// one channel, and reads the WIDTH - 1 before them again (from L1). T % VECTOR == 0.
//
// Launch: grid (max(1, ceil(T / VECTOR / 32)), ceil(C / WARPS), min(B, 65535)); block (32, WARPS).
//
// Macros: DTYPE, WIDTH (2 .. 4), VECTOR (at most 16 bytes), WARPS.

#ifndef WARPS
#define WARPS 4
#endif

constexpr int BEFORE = WIDTH - 1;

DEVICE int state_column(int t, int seen, int state_len, const int* positions, int sequence) {
  if (positions == nullptr) return state_len - seen + t;
  const int column = (positions[sequence] % state_len + t % state_len) % state_len;
  return column < 0 ? column + state_len : column;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    conv1d_channel_first(const char* __restrict__ x, const void* __restrict__ weight, const void* __restrict__ bias,
                 const float* __restrict__ initial_state, const int* __restrict__ state_indices,
                 const int* __restrict__ state_positions, char* __restrict__ o, float* __restrict__ final_state,
                 int sequences, int tokens, int channels, int state_len, int weight_f32, int bias_f32, int use_silu) {
  const int channel = blockIdx.y * WARPS + threadIdx.y;
  const int first = (blockIdx.x * 32 + threadIdx.x) * VECTOR;
  if (channel >= channels || (first >= tokens && first > 0)) return;

  float taps[WIDTH];
#pragma unroll
  for (int w = 0; w < WIDTH; w++) taps[w] = number(weight, (i64)channel * WIDTH + w, weight_f32);
  const float offset = bias != nullptr ? number(bias, channel, bias_f32) : 0.0f;

  for (int sequence = blockIdx.z; sequence < sequences; sequence += gridDim.z) {
    const int slot = state_indices != nullptr ? state_indices[sequence] : sequence;
    const i64 row = ((i64)sequence * channels + channel) * tokens;
    const i64 state = ((i64)slot * channels + channel) * state_len;
    // Token t of this channel; tokens before the sequence are read from the state.
    auto value = [&](int t) {
      if (t >= 0) return number(x, row + t, false);
      if (initial_state == nullptr) return 0.0f;
      return initial_state[state + state_column(t, 0, state_len, state_positions, sequence)];
    };
    Stored<VECTOR> out;
    out.clear();
    if (first < tokens) {
      if (slot >= 0) {
        float window[BEFORE + VECTOR], result[VECTOR];
        Stored<VECTOR> in;
        in.load(x + (row + first) * ELEMENT_BYTES);
#pragma unroll
        for (int b = 0; b < BEFORE; b++) window[b] = value(first - BEFORE + b);
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
          window[BEFORE + v] = in.get(v);
          float sum = offset;
#pragma unroll
          for (int w = 0; w < WIDTH; w++) sum = fmaf(taps[w], window[v + w], sum);
          result[v] = use_silu ? silu(sum) : sum;
        }
        out.set(result);
      }
      out.store(o + (row + first) * ELEMENT_BYTES);
    }
    if (slot >= 0 && first + VECTOR >= tokens) {
      for (int t = tokens - state_len; t < tokens; t++) {
        final_state[state + state_column(t, tokens, state_len, state_positions, sequence)] = value(t);
      }
    }
  }
}
