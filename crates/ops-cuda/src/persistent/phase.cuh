// What a kernel whose blocks stay is told of one phase, and how its blocks share the work. Stands behind ampere.cuh and storage.cuh.
//
// Macros: WORKING, warps that multiply; WEIGHT_BITS (8 or 4); INTEGERS, weights are i8 or u4 and not e4m3; BLOCKS, columns of w that share a factor (128 or 32; 0: a whole
// row does), FACTOR_BITS of such a factor (32, 16 of f16, 17 of bf16) and OFFSET, whether they have an offset too; RING_BYTES, of weights on
// their way; FACTOR_BYTES, of the factors of half a phase; SUM_STAGES, whose sums a block holds; MOST_PHASES, of a launch; PHASE_BYTES, of
// a record as the host writes it. CHOSEN, experts of a token (0: the kernel takes none), of which every token takes the last ALWAYS, and the others are
// chosen among EXPERTS; INNER, their width; HIDDEN, columns of their x; STAGE_BYTES, of weights that come at once; X_BYTES, of x in f16.

#define BY_CHUNKS (CHOSEN && HIDDEN == 2 * WORKING * 128)  // see experts.cuh

constexpr int WARPS = 8, CONSUMERS = 32 * WARPS;
constexpr int THREADS = CONSUMERS + (BLOCKS ? 64 : 32);  // and warps that bring weights and factors
constexpr int COLS = 128 / WEIGHT_BITS;                  // columns of a lane's 16 bytes of w
constexpr int SUB = 4 * COLS, SUBS = 2;                  // columns that a warp loads of a row at once, and such loads
constexpr int OF_WARP = SUB * SUBS, CHUNK = WORKING * OF_WARP;
constexpr int STAGE = STAGE_BYTES, STAGES = RING_BYTES / STAGE;  // of projections 16 chunks of rows
constexpr int SUM_BYTES = SUM_STAGES * WARPS * 16 * 4;
constexpr int FACTOR_SIZE = FACTOR_BITS == 32 ? 4 : 2;
constexpr int HALF_BYTES = FACTOR_BYTES * (OFFSET ? 2 : 1);  // of the factors of half a phase, and behind them its offsets
constexpr int TAPS = 4;         // of a convolution
constexpr int STATE = 128;      // width of a scan's state
constexpr int SCAN_ROWS = 4;    // of a state that a warp takes at once
constexpr int SHARERS = 2;      // neighbouring threads that sum up one column
constexpr int OF_EXPERT = INNER / 128;  // columns of an expert that a block makes on the way up: 128 blocks have some

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

// A norm of the residual stream, and what a router makes of it: see the ops `rmsnorm` and `linear`. Each block has all of o; the columns of the
// router are dealt to the blocks one by one.
struct Norm {
  const char* x;           // [inputs] in f32, or in storage where there is no norm, but only a router
  const float* weight;     // [inputs], or null: no norm
  char* o;                 // [inputs] in storage, or null
  const char* w;           // [columns, inputs] in storage, or null: no router
  float* logits;           // [columns]
  const u64* x_packets;
  u64* packets;            // of logits
  int inputs, columns;
  float eps, scale;
};

// What a token's experts make of x, times their weights: see the op `moe`.
struct Up {
  const char* x;           // [inputs] in storage
  const char* w;           // [EXPERTS + ALWAYS, 2 INNER, inputs], of each gates and then ups
  const float* w_scale;    // [EXPERTS + ALWAYS, 2 INNER]
  const float* logits;     // [EXPERTS]
  const float* correction; // [EXPERTS], or null
  const u64* logits_packets;
  u64* packets;            // [CHOSEN, INNER]
  int inputs, local;       // local: the phase ahead is the norm that makes x, so each block has it
  int sigmoid, renormalise;  // see Router in `moe/choose.cuh`
  float sum_eps, weight_scale;
};

// Their way down, and their sum.
struct Down {
  const char* w;           // [EXPERTS + ALWAYS, columns, INNER]
  const float* w_scale;    // [EXPERTS + ALWAYS, columns]
  const float* residual;   // [columns], or null
  float* o;                // [columns]; may be the residual
  const u64* x_packets;
  u64* packets;
  int columns;
  float scale;
};

enum Kind { LINEAR, SCAN, NORM, UP, DOWN };

struct __align__(16) Phase {
  int kind, unused;
  union {
    Linear linear;
    Scan scan;
    Norm norm;
    Up up;
    Down down;
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
  const char *w, *w_scale;
  const char* beside;  // offsets where OFFSET, otherwise the norm's weights, or null
  int inputs, columns, swiglu;
  int kind;
  Columns own;

  static DEVICE Source of(const Phase& phase) {
    Source it = {nullptr, nullptr, nullptr, 0, 0, 0, phase.kind, {0, 0}};
    if (phase.kind == LINEAR) {
      const Linear& of = phase.linear;
      it.w = of.w, it.w_scale = of.w_scale, it.beside = OFFSET ? of.w_offset : (const char*)of.norm;
      it.inputs = of.inputs, it.columns = of.columns, it.swiglu = of.swiglu, it.own = Columns::of(of.columns);
    } else if (phase.kind == NORM) {
      it.w = phase.norm.w, it.beside = (const char*)phase.norm.weight, it.inputs = phase.norm.inputs, it.columns = phase.norm.columns;
    } else if (phase.kind == UP) {
      it.w = phase.up.w, it.own = {(int)blockIdx.x * OF_EXPERT, (int)blockIdx.x * OF_EXPERT < INNER ? OF_EXPERT : 0};
    } else if (phase.kind == DOWN) {
      it.w = phase.down.w, it.columns = phase.down.columns, it.own = Columns::of(it.columns);
    }
    return it;
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
