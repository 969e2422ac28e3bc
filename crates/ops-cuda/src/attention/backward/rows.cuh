// Rows, keys and masks shared by the attention backward kernels. It follows ampere.cuh, hopper.cuh or storage.cuh in a source.
//
// Row statistics (log-sum-exp and delta) are f32 [H, padded]: row i of sequence b is at padded_start(b) + i, where
// padded = padded_start(B). Each sequence starts at a multiple of 128 and has room for its rows rounded up to 128, so a
// tile of up to 128 rows may be read whole; rows past the end have log-sum-exp +inf and delta 0.

#define POSITIVE_INFINITY __int_as_float(0x7f800000)
#define LOG2_E 1.44269504089f

constexpr int NO_LIMIT = 1 << 29;  // a window that no sequence reaches

// First row of a sequence, packed (offsets given) or dense.
DEVICE int first_row_of(int sequence, const int* offsets, int length) {
  return offsets != nullptr ? offsets[sequence] : sequence * length;
}

DEVICE int padded_start(int sequence, int first_row) { return (first_row + sequence * 128) / 128 * 128; }

// Windows are keys visible before and after the query's own position; negative ones are unlimited.
DEVICE int window_limit(int window) { return window < 0 ? NO_LIMIT : min(window, NO_LIMIT); }
