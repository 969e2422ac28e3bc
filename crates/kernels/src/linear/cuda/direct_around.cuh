// What stands around the outputs of direct.cu, read before it is wanted: of a block's first columns what no kernel of a step writes, ahead of
// the wait for the kernel ahead, and of the first outputs what that one may have written, beside x. Others are read where they are finished.
//
// Stands behind direct_rows.cuh. Macros: those of direct.cu.

constexpr int PARK = READY && PARTS == 1 && COLUMNS == 1 ? 3 : 1;  // outputs of a thread
constexpr int PARKED = PARK * THREADS, KEPT = 96;                     // of a block, and columns

// What kernels ahead may have written of what stands around an output.
struct Beside {
#if RESIDUAL
  float last;
#endif
#if TAPS > 0
  float past[TAPS - 1];
  int slot;
#endif
};

// And what they have not, of a column.
struct Column {
  char* to;  // of the first row of x; the next one's is so many bytes on
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

// A column's, as it is stored: all is asked for before any of it is looked at.
struct StoredColumn {
  u32 factor, factor_of_up, low, high, offset, tap[TAPS + 1];

  DEVICE void load(const Outputs& outputs, const void* factors, int factor_bits, int column) {
    if (factors != nullptr) factor = load_factor(factors, column, factor_bits);
    if (outputs.bias != nullptr) low = load_number(outputs.bias, column, outputs.bias_f32);
#if SWIGLU
    if (factors != nullptr) factor_of_up = load_factor(factors, outputs.columns + column, factor_bits);
    if (outputs.bias != nullptr) high = load_number(outputs.bias, outputs.columns + column, outputs.bias_f32);
#endif
  }
#if TAPS > 0
  DEVICE void load(const Convolution& of, int column) {
    const int channel = max(of.channel(column), 0);
    if (of.bias != nullptr) offset = load_number(of.bias, channel, of.bias_f32);
#pragma unroll
    for (int t = 0; t < TAPS; t++) tap[t] = load_number(of.weight, (i64)channel * TAPS + t, of.weight_f32);
  }
  DEVICE void taps(Column& of, const Convolution& convolution, int column) const {
    of.channel = convolution.channel(column), of.offset = number_of(offset, convolution.bias_f32);
#pragma unroll
    for (int t = 0; t < TAPS; t++) of.tap[t] = number_of(tap[t], convolution.weight_f32);
  }
#endif

  // `factors`: whether there is one for a whole column.
  DEVICE Column column(const Outputs& outputs, bool factors, int factor_bits, int column) const {
    Column of;
    of.to = outputs.around(0, column, false).to, of.row = (int)(outputs.around(1, column, false).to - of.to);
    of.low = number_of(low, outputs.bias_f32), of.factor = factors ? factor_of(factor, factor_bits) * SUM_FACTOR : SUM_FACTOR;
#if SWIGLU
    of.high = number_of(high, outputs.bias_f32), of.factor_of_up = factors ? factor_of(factor_of_up, factor_bits) * SUM_FACTOR : SUM_FACTOR;
#endif
    return of;
  }
};
