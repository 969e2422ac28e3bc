// The names under which hopper_tile.cuh and hopper_softmax.cuh read the tiles of the wide Hopper kernels; first in the source.

#ifndef DV
#define DV D
#endif
// A tile is the 64 query rows of one block.
#define CONSUMERS 1
#define BLOCK_Q (64 * CONSUMERS)
// Keys whose scores one warpgroup computes. With accumulators of 320 channels the registers permit only 48.
#ifndef BLOCK_K
#define BLOCK_K (SPLIT == 1 && DV > 512 ? 48 : 64)
#endif
