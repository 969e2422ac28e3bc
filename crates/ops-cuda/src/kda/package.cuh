// Intermediate results of a chunk of 64 tokens from prepare.cu or prepare_head.cu for the state recurrence: a package per value head.
//
// Its matrices are f16, rows of 128 bytes whose 16-byte pieces are swizzled (piece ^ row % 8) for ldmatrix and wgmma:
//   kd   [KP / 64][64 tokens][64 channels]  k e^G                G: sum of g from the chunk's start, the token's included
//   qd   the same                           scale q e^G
//   ke   the same                           k e^{G_end - G}
//   m    [64][64]                           (I - L)^-1 Diag(beta): U = m (V - kd S)
//   aq   [64][64]                           Tril(A^q)
// and, in f32, decay [KP], e^{G_end}. KP is KD padded to a multiple of 64; what is padding is 0, decays then 1.
//
// With one decay per head (PER_HEAD), kd and ke are k scaled per token, and qd is q: value heads of a key head share
//   k    [KP / 64][64 tokens][64 channels]  normalized if requested
//   q    the same, times scale
// before the packages of their chunk, and a package is m, aq and, in f32, from_start [64], e^G, to_end [64], e^{G_end - G}, and
// e^{G_end} four times.
//
// f16 rather than bf16, whatever the inputs: all of these are bounded by the keys' and queries' size, and with three more
// mantissa bits the error is 6e-4 where bf16 gives 5e-3 with slow gates (README.md).
//
// Packages are in the order of (chunk slot, value head). The packed sequence i that starts at token s has chunk slots from
// s / 64 + i on: no two chunks share one, and there are at most total / 64 + N.
//
// Macros: KD, the key channels; PER_HEAD (0 if not given).

#ifndef PER_HEAD
#define PER_HEAD 0
#endif

constexpr int CHUNK = 64;
constexpr int KP = (KD + 63) / 64 * 64;
constexpr int BOX_BYTES = CHUNK * 128;  // 64 rows of 64 channels
constexpr int KEY_BYTES = KP / 64 * BOX_BYTES;
// Bytes of a key head's matrices, which precede a chunk's packages.
constexpr int OF_KEYS = PER_HEAD ? 2 * KEY_BYTES : 0;
// Offsets of the matrices that the recurrence reads of a chunk, those of the key head first.
constexpr int QD_AT = KEY_BYTES, KE_AT = PER_HEAD ? 0 : 2 * KEY_BYTES, M_AT = (PER_HEAD ? 2 : 3) * KEY_BYTES, AQ_AT = M_AT + BOX_BYTES;
constexpr int MATRIX_BYTES = AQ_AT + BOX_BYTES;
// A package: matrices, followed by f32 vectors.
constexpr int NUMBERS_AT = MATRIX_BYTES - OF_KEYS;
constexpr int TO_END_AT = CHUNK * 4, DECAY_AT = PER_HEAD ? 2 * CHUNK * 4 : 0;
constexpr int NUMBER_BYTES = DECAY_AT + (PER_HEAD ? 4 : KP) * 4;
constexpr int PACKAGE_BYTES = NUMBERS_AT + NUMBER_BYTES;

DEVICE i64 chunk_bytes(int heads, int value_heads) { return (i64)heads * OF_KEYS + (i64)value_heads * PACKAGE_BYTES; }

// Byte offset of a 16-byte piece (8 channels) of a row in its matrix.
DEVICE int piece_at(int row, int piece) { return (piece >> 3) * BOX_BYTES + row * 128 + (((piece ^ row) & 7) << 4); }

struct Sequence {
  int first, count, chunk_slot;  // its first token, token count, and first chunk slot
};

DEVICE Sequence find_sequence(const int* offsets, int sequence, int tokens) {
  Sequence found;
  found.first = offsets ? offsets[sequence] : sequence * tokens;
  found.count = offsets ? offsets[sequence + 1] - found.first : tokens;
  found.chunk_slot = offsets ? found.first / CHUNK + sequence : sequence * ((tokens + CHUNK - 1) / CHUNK);
  return found;
}

// Marks of prepare_rest.cu: index of the packages' first mark, and chunks per mark. Polling one takes
// the recurrence 0.2 us, a sixth of its time per chunk.
constexpr int MARKS_AT = 32, MARK_CHUNKS = 8;

// Orders global memory accesses of ordinary instructions and of TMA (generic and async proxy).
DEVICE void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
