// What a kernel whose blocks stay is told of one phase, and how its blocks share the work. Stands behind ampere.cuh and storage.cuh.
//
// Macros: WORKING, warps that multiply; WEIGHT_BITS (8 or 4); INTEGERS, weights are i8 or u4 and not e4m3; BLOCKS, columns of w that share a factor (128 or 32; 0: a whole
// row does), FACTOR_BITS of such a factor (32, 16 of f16, 17 of bf16) and OFFSET, whether they have an offset too; RING_BYTES, of weights on
// their way; FACTOR_BYTES, of the factors of half a phase; SUM_STAGES, whose sums a block holds; MOST_PHASES, of a launch; PHASE_BYTES, of
// a record as the host writes it.

constexpr int WARPS = 8, CONSUMERS = 32 * WARPS;
constexpr int THREADS = CONSUMERS + (BLOCKS ? 64 : 32);  // and warps that bring weights and factors
constexpr int COLS = 128 / WEIGHT_BITS;                  // columns of a lane's 16 bytes of w
constexpr int SUB = 4 * COLS, SUBS = 2;                  // columns that a warp loads of a row at once, and such loads
constexpr int OF_WARP = SUB * SUBS, CHUNK = WORKING * OF_WARP;
constexpr int STAGE = 16 * CHUNK * WEIGHT_BITS / 8;      // bytes of 16 chunks of rows
constexpr int STAGES = RING_BYTES / STAGE;
constexpr int X_BYTES = 16384;                           // of x in f16
constexpr int SUM_BYTES = SUM_STAGES * WARPS * 16 * 4;
constexpr int FACTOR_SIZE = FACTOR_BITS == 32 ? 4 : 2;
constexpr int HALF_BYTES = FACTOR_BYTES * (OFFSET ? 2 : 1);  // of the factors of half a phase, and behind them its offsets
constexpr int TAPS = 4;         // of a convolution
constexpr int STATE = 128;      // width of a scan's state
constexpr int SCAN_ROWS = 4;    // of a state that a warp takes at once
constexpr int SHARERS = 2;      // neighbouring threads that sum up one column

// A product of one row of x, and what stands around it: see the op `linear`. Packets are null where the phase ahead does not make x, and where
// none behind takes the columns.
struct Linear {
  const char* x;           // [inputs], f32 or storage
  const char* w;           // [columns, inputs], of gates and then of ups [2 columns, inputs]
  const char* w_scale;     // [columns], [2 columns], or [inputs / BLOCKS, as many]
  const char* w_offset;    // [inputs / 32, as many] in f32, where OFFSET
  const float* norm;       // [inputs], or null
  const float* residual;   // [columns], or null
  char *o0, *o1, *o2, *o3, *o4, *o5;
  const float* conv_weight;  // [conv_channels, TAPS]
  const float* conv_bias;    // [conv_channels], or null
  const float* initial_state;  // [slots, conv_channels, TAPS - 1], the newest token last
  float* final_state;        // likewise; may be the same
  const int* state_indices;  // [1] slot, negative for padding, or null: slot 0
  const u64* x_packets;
  u64* packets;
  int form;                // of x: see FORM
  int inputs, start1, start2, start3, start4, start5, columns, swiglu, out_f32, stored, factor_bits;
  float scale, eps;
  int conv_silu, conv_first, conv_channels;  // no channels where nothing is convolved
};

// A step of Mamba-2's scan for one sequence: see the op `ssd`.
struct Scan {
  const char *x, *z;            // [heads, head_dim]; no z: null
  const char* dt;               // [heads]
  const char *b, *c;            // [groups, STATE]
  const float *rate, *d, *dt_bias;  // [heads]; no d or bias: null
  const float* initial_state;   // [slots, heads, head_dim, STATE]
  float* final_state;           // likewise; may be the same
  const int* state_indices;     // as above
  char* o;                      // like x
  const u64 *x_packets, *z_packets, *dt_packets, *b_packets, *c_packets;
  u64* packets;
  int heads, head_dim, head_magic, heads_of_group, softplus, stored;  // head_magic: 2^32 / head_dim, rounded up
  float dt_min, dt_max;
};

enum Kind { LINEAR, SCAN };

struct __align__(16) Phase {
  int kind, unused;
  union {
    Linear linear;
    Scan scan;
  };
};
static_assert(sizeof(Phase) == PHASE_BYTES, "the host writes records of another size");
constexpr int PHASE_WORDS = sizeof(Phase) / 16;
static_assert(PHASE_WORDS <= CONSUMERS, "a thread brings 16 bytes of a record");

// A form of x: whether it is in f32, how often a lane loads a part of it, and whether there is a norm.
#define FORM(F32, LOADS, NORMED) ((LOADS) * 4 + (F32) * 2 + (NORMED))

// The neighbouring columns of this block, always an even number: two of them are one packet.
struct Columns {
  int first, count;

  static DEVICE Columns of(int columns) {
    const u32 pairs = columns / 2;
    const int first = pairs * blockIdx.x / gridDim.x * 2;
    return {first, (int)(pairs * (blockIdx.x + 1) / gridDim.x * 2) - first};
  }
};

// What the warps have to know of a phase ahead that bring its weights.
struct Source {
  const char *w, *w_scale, *w_offset;
  int inputs, columns, swiglu;  // no columns where the phase has no weights
  Columns own;

  static DEVICE Source of(const Phase& phase) {
    if (phase.kind != LINEAR) return {nullptr, nullptr, nullptr, 0, 0, 0, {0, 0}};
    const Linear& of = phase.linear;
    return {of.w, of.w_scale, of.w_offset, of.inputs, of.columns, of.swiglu, Columns::of(of.columns)};
  }
};

// A factor in f32 (32 bits), f16 (16) or bf16 (17).
DEVICE float factor_of(u32 stored, int bits) {
  float value;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}" : "=f"(value) : "r"(stored));
  return bits == 32 ? __uint_as_float(stored) : bits == 17 ? __uint_as_float(stored << 16) : value;
}
DEVICE float factor_at(const char* from, int index, int bits) {
  return factor_of(bits == 32 ? __ldg((const u32*)from + index) : __ldg((const u16*)from + index), bits);
}
