// The online softmax of the Hopper attention kernel, on the 64 x BLOCK_K scores of a warpgroup in registers.
//
// A thread has parts of two rows (0 and 1), four threads in a row share a row. Scores are kept as the product left
// them; `factor` = scale * log2(e) is folded into the exponent's multiply-add, so exp(scale s - m) costs one
// multiply-add and one 2^x. All logarithms here are of base 2 until lse is written.

#define NEGATIVE_INFINITY __int_as_float(0xff800000)

// Growth of the row maximum, in powers of 2, up to which o and the sum keep their old reference. A weight is then at
// most 2^8, far inside bf16, f16 and the f32 sums, and the accumulator is seldom rescaled: only when a row meets a
// score that is 8 above all before, where every new maximum would do it in the usual form.
#ifndef RESCALE_ABOVE
#define RESCALE_ABOVE 8.0f
#endif

// What a thread knows of its two rows.
struct Rows {
  float reference[2];  // of the exponents; -inf until a visible key was met
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

// Brings the reference of both rows up to the scores. Gives whether o must be multiplied by `rescale` (the same
// answer in a whole warp).
template <bool first>
DEVICE bool update_reference(const float (&s)[BLOCK_K / 2], Rows& rows, float factor, float (&rescale)[2]) {
  // Two partial maxima a row: one chain of dependent instructions would be as long as the scores.
  float top[4];
#pragma unroll
  for (int j = 0; j < 4; j++) top[j] = s[j];
#pragma unroll
  for (int i = 1; i < BLOCK_K / 8; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) top[j] = fmaxf(top[j], s[4 * i + j]);
  }
  const float most[2] = {fmaxf(top[0], top[1]) * factor, fmaxf(top[2], top[3]) * factor};
  // Seldom is a thread's own maximum that high, so the threads of a row need not compare theirs before they go on.
  const bool high = most[0] > rows.reference[0] + RESCALE_ABOVE || most[1] > rows.reference[1] + RESCALE_ABOVE;
  if (!first && !__any_sync(0xffffffff, high)) return false;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const float row_most = quad_max(most[r]);
    rescale[r] = 1.0f;
    if (first) {
      rows.reference[r] = row_most;
    } else if (row_most > rows.reference[r] + RESCALE_ABOVE) {
      // From -inf this gives 0, and there was nothing to rescale.
      rescale[r] = exp2_approximate(rows.reference[r] - row_most);
      rows.reference[r] = row_most;
      rows.sum[r] *= rescale[r];
    }
  }
  return !first;
}

// Scores become weights, and the weights are added to the sums.
DEVICE void weigh(float (&s)[BLOCK_K / 2], Rows& rows, float factor) {
  float sum[4] = {rows.sum[0], 0.0f, rows.sum[1], 0.0f};
  float minus[2];
#pragma unroll
  for (int r = 0; r < 2; r++) minus[r] = rows.reference[r] == NEGATIVE_INFINITY ? 0.0f : -rows.reference[r];
#pragma unroll
  for (int i = 0; i < BLOCK_K / 8; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      s[4 * i + j] = exp2_approximate(fmaf(s[4 * i + j], factor, minus[j / 2]));
      sum[j] += s[4 * i + j];
    }
  }
  rows.sum[0] = sum[0] + sum[1];
  rows.sum[1] = sum[2] + sum[3];
}

// Weights in the storage type, laid out as the left operand of the second product: the accumulator of the first
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

// Writes the thread's part of o and lse; rows beyond the sequence are not written.
DEVICE void write_rows(const float (&o)[DV / 2], const Rows& rows, const Tile& tile, int row, int t, int heads,
                       u16* output, float* lse) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const float sum = quad_sum(rows.sum[r]);
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    const int at = row + 8 * r;
    const bool inside = at < tile.rows;
    u16* to = output + ((i64)(tile.token + at) * heads + tile.head) * DV + 8 * t;
#pragma unroll
    for (int i = 0; i < DV / 32; i++) {
      u32 w[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int from = 4 * (4 * i + j) + 2 * r;
        w[j] = pack(o[from] * inverse, o[from + 1] * inverse);
      }
      transpose_quad(w, t);
      if (inside) *reinterpret_cast<uint4*>(to + 32 * i) = make_uint4(w[0], w[1], w[2], w[3]);
    }
    if (inside && t == 0 && lse) {
      const float value = (rows.reference[r] + log2_approximate(sum)) * 0.69314718056f;
      lse[(i64)tile.lse_start + at] = sum == 0.0f ? NEGATIVE_INFINITY : value;
    }
  }
}
