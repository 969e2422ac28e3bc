// Sizes and offsets in shared memory of the Hopper attention kernel, from the macros described in hopper.cu.

#define BLOCK_Q (64 * CONSUMERS)
#ifndef STAGES
#define STAGES 2
#endif
#ifndef PINGPONG
#define PINGPONG (D <= 64)
#endif

// Channels in a box and bytes in its rows, which is also the swizzle.
#define QK_WIDTH (D % 64 == 0 ? 64 : 32)
#define V_WIDTH (DV % 64 == 0 ? 64 : 32)
#define QK_SWIZZLE (2 * QK_WIDTH)
#define V_SWIZZLE (2 * V_WIDTH)
// Bytes of one consumer's part of Q and of one stage.
#define Q_BYTES (64 * D * 2)
#define K_BYTES (BLOCK_K * D * 2)
#define V_BYTES (BLOCK_K * DV * 2)
#define BOX_K_BYTES (BLOCK_K * QK_SWIZZLE)
#define BOX_V_BYTES (BLOCK_K * V_SWIZZLE)

// Shared memory, from a base aligned to 1024 bytes.
#define AT_Q 0
#define AT_K (AT_Q + CONSUMERS * Q_BYTES)
#define AT_V (AT_K + STAGES * K_BYTES)
#define AT_BARRIERS (AT_V + STAGES * V_BYTES)
#define AT_K_FULL AT_BARRIERS
#define AT_K_EMPTY (AT_K_FULL + 8 * STAGES)
#define AT_V_FULL (AT_K_EMPTY + 8 * STAGES)
#define AT_V_EMPTY (AT_V_FULL + 8 * STAGES)
#define AT_Q_FULL (AT_V_EMPTY + 8 * STAGES)
#define AT_Q_EMPTY (AT_Q_FULL + 8 * CONSUMERS)
#define AT_PLAN_FULL (AT_Q_EMPTY + 8 * CONSUMERS)
#define AT_PLAN_EMPTY (AT_PLAN_FULL + 16)
#define AT_PLANS ((AT_PLAN_EMPTY + 16 + 15) / 16 * 16)
