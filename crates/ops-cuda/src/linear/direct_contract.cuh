// Projections of a few rows (tokens) by weights in e4m3 or integers, bound by reading the weights, which are read once for all rows:
//
//   o = residual + scale * act(rms(x) W^T + bias)          act: none, swiglu = silu(gate) * up, or with SQUARED max(0, x)^2
//
// A block has a share of the columns, in tiles of 16 rows of w (swiglu: of 8 gates and their 8 ups). Its warps share the
// depth. A lane loads just the 16-byte pieces of w that it multiplies itself, RING batches ahead, into registers: there is no
// ring in shared memory to step through, and all tiles' sums meet there at once. The matrix product is mma.m16n8k16 with w as its
// 16 rows. Design and figures: README-direct.md.
//
// The first batches are loaded before griddepcontrol.wait, and what direct_around.cuh keeps of columns: w and its factors, bias, conv_weight
// and conv_bias must not be written by the kernel ahead; x, residual, states and o may be, and are read past the first cache, in which a
// block of an earlier kernel may have left what stood there before.
//
// x [tokens, inputs], f32 (X_F32) or bf16, or of several rows what direct_ready.cu makes of it; w [N, inputs] in e4m3, or with INTEGERS in i8 or (WEIGHT_BITS 4) in numbers of four bits, the
// first of a byte in its lower half, less their zeros: w_zero u8 [G, N], or 8 where that is null; factors of w w_scale [G, N], f32
// (factor_bits 32), f16 (16) or bf16 (17): of whole rows, or of each 128 columns of a row with GROUPED, or each BLOCKS; with w_offset
// (f32 [G, N] or null, of four bits in BLOCKS of 32) numbers have no zeros, and from them times their factors that is subtracted; norm [inputs] (NORMED), bias [N]
// or null, f32 or bf16; residual f32 [tokens, columns] (RESIDUAL); N = columns, or 2 columns with SWIGLU. The columns from start1 on go
// to o1, those from start2 on to o2 and so on (start = columns where there is none); each output is [tokens, its columns], f32 or bf16.
// o0 may be the residual. inputs is a multiple of 16, of 32 for four bits; all tensors but factors, zeros and offsets 16-byte aligned.
// With TAPS above 0 the columns conv_first .. conv_first + conv_channels are convolved, each row of x being the next token of
// a sequence of its own (convolution.cuh).
//
// The sums of `held` tiles lie in shared memory at once; where a block has more, they are whole times RING batches of a warp.
// Launch: grid (any number of blocks up to `columns`, of which the product is below 2^31); block (32 * WARPS); dynamic shared memory
//   Layout::bytes of x (direct_rows.cuh) + tokens * held * 4 * WARPS * SUM_STRIDE
//   + (GROUPED: 4 * (ceil(inputs / 128) * rows of w of a block + 2 * ROWS)).
// With THROUGH, x, as it is, in bf16 and without a norm, is read where it is multiplied and not kept in shared memory: for blocks of few tiles, and,
// but for BLOCKS, without zeros, for which there are no registers left.
//
// Macros: DTYPE (bf16), WEIGHT_BITS (8, 4), INTEGERS, GROUPED, BLOCKS (with INTEGERS: 0, 32, 16 of eight bits, or 128 of four
// bits for one row), OFFSET (for one row: whether w_offset is given; for more than eight whether that or w_zero is), TOKENS
// (1, 8, 16, 32: at least `tokens`), NORMED and X_F32 (of one row), THROUGH, RESIDUAL, SWIGLU, TAPS (0, 2, 3, 4), PARTS (1; more for
// several rows, without THROUGH, SWIGLU and TAPS).
//
// With PARTS above 1 so many neighbouring blocks have the same columns, and a part of the depth each, which is whole rounds; the grid is
// a multiple of it. They leave their sums in partial [PARTS, tokens, columns], and the last one to have done so adds them up and finishes
// the columns. counters [grid / PARTS] are 0 before and behind the kernel.
