// A decode step of a depthwise causal convolution over output columns: the thread that finishes a column owns its state.
// Requires storage.cuh; TAPS is the width W, 2 to 4.

#if TAPS > 0
struct Convolution {
  const void *weight, *bias;   // [channels, TAPS], and [channels] or null; f32 or storage
  const float* initial_state;  // [slots, channels, TAPS - 1], the newest token last
  float* final_state;          // likewise; may be the same
  const int* state_indices;    // [tokens] slots, negative for padding, or null: token n has slot n
  int weight_f32, bias_f32, use_silu, first, channels;

  // Operands of a column, read while its product is computed.
  struct Held {
    float past[TAPS - 1], tap[TAPS], offset;
    int slot, channel;  // negative: padding; no channel
  };

  DEVICE Held held(int token, int column, bool there) const {
    Held held = {};
    held.channel = there ? channel(column) : -1;
    if (held.channel < 0) return held;
    held.slot = slot(token);
    if (held.slot < 0) return held;
    numbers<TAPS>(held.tap, weight, (i64)held.channel * TAPS, weight_f32);
    if (bias != nullptr) held.offset = number(bias, held.channel, bias_f32);
    read_past(held.past, held.slot, held.channel);
    return held;
  }

  // Negative where the column is not convolved.
  DEVICE int channel(int column) const { return column - first < channels ? column - first : -1; }
  DEVICE int slot(int token) const { return state_indices != nullptr ? __ldg(state_indices + token) : token; }
  // The last TAPS - 1 values of a channel, or zeros without a slot or channel.
  DEVICE void read_past(float (&past)[TAPS - 1], int slot, int channel) const {
    const bool there = slot >= 0 && channel >= 0;
    const float* const from = initial_state + (there ? state_at(slot, channel) : 0);
#pragma unroll
    for (int t = 0; t < TAPS - 1; t++) past[t] = there ? __ldcg(from + t) : 0.0f;
  }

  DEVICE float step(const Held& held, float value) const {
    if (held.channel < 0) return value;
    if (held.slot < 0) return 0.0f;
    float* const to = final_state + state_at(held.slot, held.channel);
    float sum = fmaf(held.tap[TAPS - 1], value, held.offset);
#pragma unroll
    for (int t = 0; t < TAPS - 1; t++) {
      sum = fmaf(held.tap[t], held.past[t], sum);
      to[t] = t + 2 < TAPS ? held.past[t + 1] : value;
    }
    return use_silu ? silu(sum) : sum;
  }

  DEVICE i64 state_at(int slot, int channel) const { return ((i64)slot * channels + channel) * (TAPS - 1); }
};
#endif
