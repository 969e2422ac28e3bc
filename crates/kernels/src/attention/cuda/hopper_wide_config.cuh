// The names under which hopper_tile.cuh and hopper_softmax.cuh read the tiles of the wide Hopper kernels; comes first.

#ifndef DV
#define DV D
#endif
// Rows of a tile are those of one cluster: 64 for each block that has rows of its own.
#ifndef SHARE
#define SHARE 1
#endif
#define CONSUMERS SHARE
// Keys whose scores one warpgroup computes.
#ifndef BLOCK_K
#define BLOCK_K 64
#endif
