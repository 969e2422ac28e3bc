// Sizes and offsets in shared memory of the Hopper attention backward kernel, from the macros described in
// hopper.cu.

#ifndef SOFTCAP
#define SOFTCAP 0
#endif
#ifndef D_STORED
#define D_STORED D
#endif
#define BLOCK_K (D == 256 ? 64 : 128)  // keys of a block
#define CONSUMERS 2
#define BLOCK_Q (D == 64 ? 128 : 64)  // queries of a tile
#define STAGES 2
#define SKEW 2  // tiles between the starts of the blocks of a head, without a mask
// Registers of a thread. With a cap the consumers of D 128 need more.
#define PRODUCER_REGISTERS (SOFTCAP ? 24 : 40)
#define CONSUMER_REGISTERS (SOFTCAP ? 240 : 232)

// TMA boxes are 64 channels (128 bytes, the swizzle) by all rows of a tile.
#define BOX_K_BYTES (BLOCK_K * 128)
#define BOX_Q_BYTES (BLOCK_Q * 128)
#define K_BYTES (BLOCK_K * D * 2)
#define Q_BYTES (BLOCK_Q * D * 2)
#define STATISTIC_BYTES (BLOCK_Q * 4)
// dS^T in boxes of 64 queries (128 bytes) by 128 keys.
#define BOX_DS_BYTES (BLOCK_K * 128)
#define DS_BYTES (BLOCK_K * BLOCK_Q * 2)
#define DS_STAGES 2
// Buffers of dQ of a consumer.
#define GRAD_Q_STAGES (D == 256 ? 1 : 2)
#define GRAD_Q_FLOATS (BLOCK_Q * D)
#define GRAD_Q_PART_BYTES (GRAD_Q_FLOATS * 4 / CONSUMERS)

// Shared memory, from a base aligned to 1024 bytes.
#define AT_K 0
#define AT_V (AT_K + K_BYTES)
#define AT_Q (AT_V + K_BYTES)
#define AT_GRAD_O (AT_Q + STAGES * Q_BYTES)
#define AT_DS (AT_GRAD_O + STAGES * Q_BYTES)
#define AT_GRAD_Q (AT_DS + DS_STAGES * DS_BYTES)
// D 256: the address of the sums of dQ instead of dQ, and weights from one consumer to the other, in the order of the accumulators.
#define P_BYTES (D == 256 ? BLOCK_K * BLOCK_Q * 2 : 0)
#define AT_P (AT_GRAD_Q + (D == 256 ? 128 : CONSUMERS * GRAD_Q_STAGES * GRAD_Q_PART_BYTES))
#define AT_LSE (AT_P + 2 * P_BYTES)
#define AT_DELTA (AT_LSE + STAGES * STATISTIC_BYTES)
#define AT_BARRIERS (AT_DELTA + STAGES * STATISTIC_BYTES)
#define AT_Q_FULL AT_BARRIERS
#define AT_Q_EMPTY (AT_Q_FULL + 8 * STAGES)
#define AT_GRAD_O_FULL (AT_Q_EMPTY + 8 * STAGES)
#define AT_GRAD_O_EMPTY (AT_GRAD_O_FULL + 8 * STAGES)
#define AT_KV_FULL (AT_GRAD_O_EMPTY + 8 * STAGES)
#define AT_KV_EMPTY (AT_KV_FULL + 8)
#define AT_GRAD_Q_FULL (AT_KV_EMPTY + 8)
#define AT_GRAD_Q_EMPTY (AT_GRAD_Q_FULL + 8 * CONSUMERS * GRAD_Q_STAGES)
#define AT_PLAN_FULL (AT_GRAD_Q_EMPTY + 8 * CONSUMERS * GRAD_Q_STAGES)
#define AT_PLAN_EMPTY (AT_PLAN_FULL + 16)
// D 256: weights and gradients of the scores.
#define AT_P_FULL (AT_PLAN_EMPTY + 16)
#define AT_P_EMPTY (AT_P_FULL + 16)
#define AT_DS_FULL (AT_P_EMPTY + 16)
#define AT_DS_EMPTY (AT_DS_FULL + 8 * DS_STAGES)
#define AT_PLANS ((AT_DS_EMPTY + 8 * DS_STAGES + 15) / 16 * 16)
#define PLAN_BYTES 80
// Room for the alignment; D 64 has none left, but the shared memory of a block starts at a multiple of 1024.
#define ALIGNMENT_BYTES (D == 64 ? 0 : 1024)
#define SHARED_BYTES (AT_PLANS + 2 * PLAN_BYTES + ALIGNMENT_BYTES)
static_assert(SHARED_BYTES <= 227 * 1024, "more shared memory than a block can have");
