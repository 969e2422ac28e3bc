// Clamped SwiGLU of experts with biases, for many tokens:
// made = g sigmoid(alpha g) (u + 1), g = min(gate, limit), u the up between -limit and limit, both with their biases.
//
// Source: include/ampere.cuh, include/storage.cuh, include/narrow.cuh, moe/order.cuh, then this file. sm_80 and later.
//
// both [pairs as listed, 2 inner]: gates, then ups; made [pairs as listed, inner], storage, with ORDERED in hopper_narrow.cu's channel order:
// inner is a multiple of 8, or of 64. bias f32 [experts that are here, 2 inner]; tiles and pairs as in list.cuh; chosen i32
// [tokens, top_k], indices among all experts.
//
// Launch: grid (ceil(most pairs inner / 8 / 256)); block (256). May overlap the preceding kernel (PDL).
//
// Macros: DTYPE, ORDERED, WEIGHT_BITS, INTEGERS.

DEVICE float clamped(float gate, float up, float limit, float alpha) {
  // Not fminf: NaN stays NaN.
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
  return gate / (1.0f + exp2_approximate(gate * alpha * -1.44269504f)) * (up + 1.0f);
}

extern "C" __global__ void __launch_bounds__(256)
    moe_clamp(const u16* both, const float* __restrict__ bias, const int* tiles, const int* pairs, const int* chosen, u16* made,
              int inner, int first_held, float limit, float alpha) {
  const i64 piece = (i64)blockIdx.x * 256 + threadIdx.x;
  const int place = (int)(piece / (inner / 8)), first = (int)(piece % (inner / 8)) * 8;
  wait_for_previous();
  let_next_start();
  if (place >= tiles[1]) return;
  const u16* const own = both + (i64)place * 2 * inner;
  const float* const own_bias = bias + (i64)(chosen[pairs[place]] - first_held) * 2 * inner;
  auto value = [&](int at) {
    const int channel = ORDERED ? first / 64 * 64 + ordered_channel(first % 64 + at) : first + at;
    return clamped(widen_half(own[channel]) + own_bias[channel], widen_half(own[inner + channel]) + own_bias[inner + channel], limit,
                   alpha);
  };
  u32 words[4];
#pragma unroll
  for (int w = 0; w < 4; w++) {
    const u32 word = narrow_pair(value(2 * w), value(2 * w + 1));
    words[w] = ORDERED ? scaled_up(word) : word;
  }
  *reinterpret_cast<uint4*>(made + (i64)place * inner + first) = make_uint4(words[0], words[1], words[2], words[3]);
}
