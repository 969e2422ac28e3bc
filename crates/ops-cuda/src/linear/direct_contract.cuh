// Projections of a few rows (tokens) by weights in e4m3 or integers, bound by reading the weights, which are read once for all rows:
//
//   o = residual + scale * act(rms(x) W^T + bias)          act: none, swiglu = silu(gate) * up, or with SQUARED max(0, x)^2
//
// A block has a share of the columns, in tiles of 16 rows of w (swiglu: of 8 gates and their 8 ups). Its warps split the
// depth K. A lane loads just the 16-byte pieces of w that it multiplies itself, RING batches ahead, into registers: there is no
// shared memory pipeline, and all tiles' sums are reduced in shared memory at once. The MMA is mma.m16n8k16 with w as its
// 16 rows. Design and figures: README-direct.md.
//
// The first batches are loaded before griddepcontrol.wait (PDL), as are the column operands of direct_around.cuh: w and its scales, bias,
// conv_weight and conv_bias must not be written by the preceding kernel; x, residual, states and o may be, and are read past L1, in
// which a block of an earlier kernel may have left stale lines.
//
// x [tokens, inputs], f32 (X_F32) or bf16, or for several rows the output of direct_ready.cu; w [N, inputs] in e4m3, or with INTEGERS int8
// or (WEIGHT_BITS 4) uint4, the low nibble of a byte first, minus zero points w_zero u8 [G, N], or 8 if that is null; scales w_scale [G, N],
// f32 (factor_bits 32), f16 (16) or bf16 (17): per row, per 128 columns of a row with GROUPED, or per BLOCKS columns; with w_offset (f32
// [G, N] or null; 4 bits in BLOCKS of 32) a weight is value * scale - offset, without zero point; norm [inputs] (NORMED), bias [N]
// or null, f32 or bf16; residual f32 [tokens, columns] (RESIDUAL); N = columns, or 2 columns with SWIGLU. The columns from start1 on go
// to o1, those from start2 on to o2 and so on (start = columns where there is none); each output is [tokens, its columns], f32 or bf16.
// o0 may be the residual. inputs is a multiple of 16, of 32 for four bits; all tensors but scales, zero points and offsets 16-byte aligned.
// With TAPS above 0 the columns conv_first .. conv_first + conv_channels are convolved; each row of x is then the next token of
// a separate sequence (convolution.cuh).
//
// The sums of `held` tiles are in shared memory at once; if a block has more tiles, held * rounds is a multiple of RING.
// Launch: grid (any number of blocks up to `columns`; blocks * columns < 2^31); block (32 * WARPS); dynamic shared memory
//   Layout::bytes of x (direct_rows.cuh) + tokens * held * 4 * WARPS * SUM_STRIDE
//   + (GROUPED: 4 * (ceil(inputs / 128) * rows of w of a block + 2 * ROWS)).
// With THROUGH, x (bf16, without a norm) is read from global memory by each product and not staged in shared memory: for blocks of few
// tiles, and, except with BLOCKS, without zero points, for which there are no registers left.
//
// Macros: DTYPE (bf16), WEIGHT_BITS (8, 4), INTEGERS, GROUPED, BLOCKS (with INTEGERS: 0, 32, 16 of eight bits, or 128 of four
// bits for one row), OFFSET (for one row: whether w_offset is given; for more than eight whether that or w_zero is), TOKENS
// (1, 8, 16, 32: at least `tokens`), NORMED and X_F32 (of one row), THROUGH, RESIDUAL, SWIGLU, TAPS (0, 2, 3, 4), PARTS (1; more for
// several rows, without THROUGH, SWIGLU and TAPS).
//
// With PARTS above 1 (split-K), PARTS adjacent blocks have the same columns and one part of the depth each, whole rounds; the grid is
// a multiple of PARTS. They write their sums to partial [PARTS, tokens, columns], and the last one to finish adds them and finishes
// the columns. counters [grid / PARTS] are 0 before and after the kernel.
