// Epilogue operands of direct.cu, loaded early: for a block's first columns those that no kernel of a step writes, before the wait for
// the preceding kernel (PDL), and for its first outputs those that it may have written, together with x. Others are loaded when used.
//
// Follows direct_rows.cuh. Macros: those of direct.cu.

constexpr int PARK = READY && PARTS == 1 && COLUMNS == 1 ? 3 : 1;  // outputs of a thread
constexpr int PARKED = PARK * THREADS, KEPT = 96;                     // outputs of a block, and columns

#if TAPS == 0
struct Convolution {};
#endif

// Epilogue operands of an output that preceding kernels may have written.
struct Beside {
#if RESIDUAL
  float last;
#endif
#if TAPS > 0
  float past[TAPS - 1];
  int slot;
#endif

  // Reads those of a thread's outputs among the block's first `here`. `place` sets `token` and `column`, the row of x and the column.
  template <class Place>
  static DEVICE void read(Beside (&beside)[PARK], const Outputs& outputs, const Convolution& convolution, int first, int thread, int here,
                          const int& token, const int& column, Place place) {
#pragma unroll
    for (int o = 0; o < PARK; o++) {
      const int output = thread + o * THREADS;
      place(output);
      const bool there = PARTS == 1 && output < min(here, PARKED);
#if RESIDUAL
      beside[o].last = there ? load_current(outputs.residual + (i64)token * outputs.columns + first + column) : 0.0f;
#endif
#if TAPS > 0
      beside[o].slot = there ? convolution.slot(token) : -1;
#endif
    }
#if TAPS > 0
    // After all slots: a state is loaded once its slot has arrived.
#pragma unroll
    for (int o = 0; o < PARK; o++) {
      place(thread + o * THREADS);
      convolution.read_past(beside[o].past, beside[o].slot, convolution.channel(first + column));
    }
#endif
  }
};

// Epilogue operands of a column that preceding kernels do not write.
struct Column {
  char* to;  // output of the first row of x; the next row's is `row` bytes further
  int row;
  float low, factor;
#if SWIGLU
  float high, factor_of_up;
#endif
#if TAPS > 0
  float tap[TAPS], offset;
  int channel;
#endif

  DEVICE void around(Around& around, int token, const Beside& beside) const {
    around.of = {low, 0.0f, 0.0f, to + (i64)token * row}, around.factor = factor, around.factor_of_up = 0.0f;
#if RESIDUAL
    around.of.last = beside.last;
#endif
#if SWIGLU
    around.of.high = high, around.factor_of_up = factor_of_up;
#endif
#if TAPS > 0
    around.state.offset = offset, around.state.channel = channel, around.state.slot = beside.slot;
#pragma unroll
    for (int t = 0; t < TAPS; t++) around.state.tap[t] = tap[t];
#pragma unroll
    for (int t = 0; t < TAPS - 1; t++) around.state.past[t] = beside.past[t];
#endif
  }
};

// A column's operands as stored: all loads are issued before one is used.
struct StoredColumn {
  u32 factor, factor_of_up, low, high, offset, tap[TAPS + 1];

  // `factors`: scales of columns, or null.
  DEVICE void load(const Outputs& outputs, const Convolution& convolution, const void* factors, int factor_bits, int column) {
    if (factors != nullptr) factor = load_factor(factors, column, factor_bits);
    if (outputs.bias != nullptr) low = load_number(outputs.bias, column, outputs.bias_f32);
#if SWIGLU
    if (factors != nullptr) factor_of_up = load_factor(factors, outputs.columns + column, factor_bits);
    if (outputs.bias != nullptr) high = load_number(outputs.bias, outputs.columns + column, outputs.bias_f32);
#endif
#if TAPS > 0
    const int channel = max(convolution.channel(column), 0);
    if (convolution.bias != nullptr) offset = load_number(convolution.bias, channel, convolution.bias_f32);
#pragma unroll
    for (int t = 0; t < TAPS; t++) tap[t] = load_number(convolution.weight, (i64)channel * TAPS + t, convolution.weight_f32);
#endif
  }

  DEVICE Column column(const Outputs& outputs, const Convolution& convolution, bool factors, int factor_bits, int column) const {
    Column of;
    of.to = outputs.around(0, column, false).to, of.row = (int)(outputs.around(1, column, false).to - of.to);
    of.low = number_of(low, outputs.bias_f32), of.factor = factors ? factor_of(factor, factor_bits) * SUM_FACTOR : SUM_FACTOR;
#if SWIGLU
    of.high = number_of(high, outputs.bias_f32), of.factor_of_up = factors ? factor_of(factor_of_up, factor_bits) * SUM_FACTOR : SUM_FACTOR;
#endif
#if TAPS > 0
    of.channel = convolution.channel(column), of.offset = number_of(offset, convolution.bias_f32);
#pragma unroll
    for (int t = 0; t < TAPS; t++) of.tap[t] = number_of(tap[t], convolution.weight_f32);
#endif
    return of;
  }
};

// Stores the scales of the block's rows of w, [groups][w_rows]: one for each 128 columns of the block's part of the depth.
DEVICE void keep_factors(float* factors, const void* w_scale, int factor_bits, int part, int groups, int w_rows, int first, int count, int columns, int warp,
                         int lane) {
  for (int group = warp; group < groups; group += WARPS) {
    const i64 from = (i64)(part * groups + group) * (SWIGLU ? 2 * columns : columns) + first;
    for (int row = lane; row < w_rows; row += 4 * 32) {
      float value[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int here = min(row + 32 * i, w_rows - 1);
        value[i] = factor_at(w_scale, from + here + (here < count ? 0 : columns - count), factor_bits);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (row + 32 * i < w_rows) factors[group * w_rows + row + 32 * i] = value[i];
      }
    }
  }
}
