// Gathers tokens in the order of the list of pairs: to[i] = x[pairs[i] / top_k].
//
// Source: include/ampere.cuh, then this file. sm_80 and later.
//
// x [tokens, hidden], to [pairs, hidden], 16-bit elements; hidden is a multiple of 8. tiles and pairs as in list.cuh.
//
// Launch: grid (ceil(most pairs hidden / 8 / 256)); block (256). May overlap the preceding kernel (PDL).
//
// Macros: none.

extern "C" __global__ void __launch_bounds__(256)
    moe_gather(const u16* x, const int* tiles, const int* pairs, u16* to, int hidden, int top_k) {
  const i64 piece = (i64)blockIdx.x * 256 + threadIdx.x;
  const int place = (int)(piece / (hidden / 8)), channel = (int)(piece % (hidden / 8)) * 8;
  wait_for_previous();
  let_next_start();
  if (place >= tiles[1]) return;
  *reinterpret_cast<uint4*>(to + (i64)place * hidden + channel) =
      *reinterpret_cast<const uint4*>(x + (i64)(pairs[place] / top_k) * hidden + channel);
}
