// The online softmax of the Hopper attention kernel, on the 64 x BLOCK_K scores of a warpgroup in registers.
//
// A thread has parts of two rows (0 and 1); four threads share a row. `factor` = scale * log2(e) is folded into the
// exponent's multiply-add, so a weight costs one multiply-add and one 2^x. All logarithms here are of base 2 until lse
// is written.
//
// The usual online softmax finds the maximum of every block before it can start with the exponents, and that wait, a
// chain of comparisons and shuffles, cost an eighth of the time at D = 128. Any reference near the maximum will do,
// so only a row's first block, and blocks that a mask cuts, have their maxima taken. Elsewhere the weights are computed
// with the current reference, and their sum, which is needed anyway, shows afterwards whether they grew too
// large: then they are shrunk, or, where 2^x overflowed, the scores are recomputed and their maxima taken.
// Weights much smaller than 1 are no loss: the reference was the score of a key that the row sees.

#define NEGATIVE_INFINITY __int_as_float(0xff800000)

// A thread's weights of a block may sum up to this before its row gets a new reference: far inside f32 and bf16, and
// finite in f16.
#define SUM_LIMIT 32768.0f
// Above this, 2^100, weights may have overflowed or be too large to shrink by one power of 2.
#define SUM_LOST 1.2676506e30f

// Running softmax state of a thread's two rows.
struct Rows {
  float reference[2];  // of the exponents; -inf until the first visible key
  float sum[2];        // this thread's part of the sum of weights
};

DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// Scores of keys that a row does not see become -inf. `column` is the key of this thread's first score.
DEVICE void mask_scores(float (&s)[BLOCK_K / 2], int column, const Visible (&visible)[2]) {
#pragma unroll
  for (int i = 0; i < BLOCK_K / 8; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int key = column + 8 * i + j % 2;
      const Visible& row = visible[j / 2];
#if MASK
      const bool seen = key >= row.first && key <= row.last;
#else
      const bool seen = key <= row.last;
#endif
      s[4 * i + j] = seen ? s[4 * i + j] : NEGATIVE_INFINITY;
    }
  }
}

#if SOFTCAP
// s becomes cap tanh(scale s / cap), times log2(e); `inner` = 2 log2(e) scale / cap and `outer` = cap log2(e).
// tanh(x) = 1 - 2 / (1 + e^2x): right to 2^-22 of the cap, where tanh.approx is right to 2^-11 only.
DEVICE void cap_scores(float (&s)[BLOCK_K / 2], float inner, float outer) {
#pragma unroll
  for (int i = 0; i < BLOCK_K / 2; i++) {
    const float e = exp2_approximate(s[i] * inner);
    s[i] = outer - 2.0f * outer * reciprocal_approximate(1.0f + e);
  }
}
#endif

// The greatest score of each row, times the factor.
DEVICE void row_maxima(const float (&s)[BLOCK_K / 2], float factor, float (&most)[2]) {
  // Two partial maxima a row: one chain of dependent instructions would be as long as the scores.
  float top[4];
#pragma unroll
  for (int j = 0; j < 4; j++) top[j] = s[j];
#pragma unroll
  for (int i = 1; i < BLOCK_K / 8; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) top[j] = fmaxf(top[j], s[4 * i + j]);
  }
#pragma unroll
  for (int r = 0; r < 2; r++) most[r] = quad_max(fmaxf(top[2 * r], top[2 * r + 1])) * factor;
}

// Moves a row's reference up to `most`; what was summed so far must be multiplied by `rescale`.
DEVICE void raise_reference(Rows& rows, int r, float most, float (&rescale)[2]) {
  // From -inf this gives 0, and there was nothing to rescale.
  const float factor = rows.reference[r] == NEGATIVE_INFINITY ? 0.0f : exp2_approximate(rows.reference[r] - most);
  rows.reference[r] = most;
  rows.sum[r] *= factor;
  rescale[r] *= factor;
}

// Raises the references to the maxima of the scores, where these are higher.
DEVICE void raise_to_maxima(const float (&s)[BLOCK_K / 2], Rows& rows, float factor, float (&rescale)[2]) {
  float most[2];
  row_maxima(s, factor, most);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    if (most[r] > rows.reference[r]) raise_reference(rows, r, most[r], rescale);
  }
}

// Whether every row of the warp has seen a visible key; the same answer in the whole warp.
DEVICE bool is_settled(const Rows& rows) {
  return __all_sync(0xffffffff, rows.reference[0] > NEGATIVE_INFINITY && rows.reference[1] > NEGATIVE_INFINITY);
}

// Scores become weights, and `sum` this thread's sums of them.
DEVICE void weigh(float (&s)[BLOCK_K / 2], const Rows& rows, float factor, float (&sum)[2]) {
  float minus[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    minus[r] = rows.reference[r] == NEGATIVE_INFINITY ? 0.0f : -rows.reference[r];
    sum[r] = 0.0f;
  }
#pragma unroll
  for (int i = 0; i < BLOCK_K / 8; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      s[4 * i + j] = exp2_approximate(fmaf(s[4 * i + j], factor, minus[j / 2]));
      sum[j / 2] += s[4 * i + j];
    }
  }
}

// Whether some sum of the warp is above the limit, infinite or NaN.
DEVICE bool is_above(const float (&sum)[2], float limit) {
  return __any_sync(0xffffffff, !(sum[0] <= limit && sum[1] <= limit));
}

// Weights up to SUM_LOST, and their sums, are divided by a power of 2, which is exact, and the references
// grow by as much.
DEVICE void shrink_weights(float (&s)[BLOCK_K / 2], Rows& rows, float (&sum)[2], float (&rescale)[2]) {
  float by[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int exponent = max(0, (__float_as_int(quad_max(sum[r])) >> 23) - 127);
    by[r] = __int_as_float((127 - exponent) << 23);
    rows.reference[r] += exponent;
    rows.sum[r] *= by[r];
    sum[r] *= by[r];
    rescale[r] *= by[r];
  }
#pragma unroll
  for (int i = 0; i < BLOCK_K / 2; i++) s[i] *= by[i / 2 % 2];
}

// Weights in the storage type as the A fragment of the second product: the accumulator of the first
// product and that operand have the same rows and columns in the same threads.
DEVICE void pack_weights(const float (&s)[BLOCK_K / 2], u32 (&p)[BLOCK_K / 4]) {
#pragma unroll
  for (int i = 0; i < BLOCK_K / 4; i++) p[i] = pack(s[2 * i], s[2 * i + 1]);
}

DEVICE void rescale_output(float (&o)[DV / 2], const float (&rescale)[2]) {
#pragma unroll
  for (int i = 0; i < DV / 2; i++) o[i] *= rescale[i / 2 % 2];
}

// Four threads hold, of a row, words 0..3 of four groups: group i has its word t in thread t. After this, thread t
// holds the four words of group t, which it can store at once.
DEVICE void transpose_quad(u32 (&w)[4], int t) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const u32 got = __shfl_xor_sync(0xffffffff, t & 1 ? w[i] : w[i + 1], 1);
    if (t & 1) w[i] = got; else w[i + 1] = got;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const u32 got = __shfl_xor_sync(0xffffffff, t & 2 ? w[i] : w[i + 2], 2);
    if (t & 2) w[i] = got; else w[i + 2] = got;
  }
}

// Channels of a row of o in memory; those up to DV are padding.
#ifndef DV_STORED
#define DV_STORED DV
#endif

// Writes the thread's part of o and lse; rows beyond the sequence are not written.
DEVICE void write_rows(const float (&o)[DV / 2], const Rows& rows, const Tile& tile, int row, int t, int heads,
                       u16* output, float* lse) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const float sum = quad_sum(rows.sum[r]);
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    const int at = row + 8 * r;
    const bool inside = at < tile.rows;
    u16* to = output + ((i64)(tile.token + at) * heads + tile.head) * DV_STORED + 8 * t;
#pragma unroll
    for (int i = 0; i < DV / 32; i++) {
      u32 w[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int from = 4 * (4 * i + j) + 2 * r;
        w[j] = pack(o[from] * inverse, o[from + 1] * inverse);
      }
      transpose_quad(w, t);
      const bool stored = DV_STORED == DV || 32 * i + 8 * t < DV_STORED;
      if (inside && stored) *reinterpret_cast<uint4*>(to + 32 * i) = make_uint4(w[0], w[1], w[2], w[3]);
    }
    if (inside && t == 0 && lse) {
      const float value = (rows.reference[r] + log2_approximate(sum)) * 0.69314718056f;
      lse[(i64)tile.lse_start + at] = sum == 0.0f ? NEGATIVE_INFINITY : value;
    }
  }
}
