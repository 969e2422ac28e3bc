// The channel order of tokens for products with quantized weights from registers (hopper_narrow.cu). Requires include/narrow.cuh.

// The channel, of each 64, at a position: product s of depth 16 has at 2 q and 2 q + 1, and 8 further, two pairs of the 16 channels from
// 16 q on that lane q of four reads. Pairs have elements PAIRS apart (take_apart).
DEVICE int ordered_channel(int place) {
  const int s = place / 16, second = place / 8 % 2, q = place / 2 % 4, high = place % 2;
  const int pair = 2 * s + second;  // of the lane's eight
  return 16 * q + pair / PAIRS * (2 * PAIRS) + pair % PAIRS + high * PAIRS;
}
