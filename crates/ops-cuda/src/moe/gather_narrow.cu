// Gathers tokens in the order of the list of pairs, with channels permuted for products with quantized weights from registers:
// to[i] = x[pairs[i] / top_k], its channels by ordered_channel.
//
// Source: include/ampere.cuh, include/narrow.cuh, moe/order.cuh, then this file. sm_90a.
//
// x [tokens, hidden], to [pairs, hidden], bf16; hidden is a multiple of 64. tiles and pairs as in list.cuh.
//
// Launch: grid (ceil(most pairs hidden / 64 / 256)); block (256). May overlap the preceding kernel (PDL).
//
// Macros: WEIGHT_BITS, INTEGERS.

extern "C" __global__ void __launch_bounds__(256)
    moe_gather_narrow(const u16* x, const int* tiles, const int* pairs, u16* to, int hidden, int top_k) {
  const i64 piece = (i64)blockIdx.x * 256 + threadIdx.x;
  const int place = (int)(piece / (hidden / 64)), channel = (int)(piece % (hidden / 64)) * 64;
  wait_for_previous();
  let_next_start();
  if (place >= tiles[1]) return;
  const uint4* const from = reinterpret_cast<const uint4*>(x + (i64)(pairs[place] / top_k) * hidden + channel);
  u32 words[32];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const uint4 own = from[i];
    words[4 * i] = own.x, words[4 * i + 1] = own.y, words[4 * i + 2] = own.z, words[4 * i + 3] = own.w;
  }
  uint4* const into = reinterpret_cast<uint4*>(to + (i64)place * hidden + channel);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    u32 own[4];
#pragma unroll
    for (int w = 0; w < 4; w++) {
      // Both are the low halves of their words, or both the high halves.
      const int low = ordered_channel(8 * i + 2 * w), high = ordered_channel(8 * i + 2 * w + 1);
      own[w] = scaled_up(__byte_perm(words[low / 2], words[high / 2], low % 2 ? 0x7632 : 0x5410));
    }
    into[i] = make_uint4(own[0], own[1], own[2], own[3]);
  }
}
