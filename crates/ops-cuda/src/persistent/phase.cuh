// The record of a phase (one stage of the persistent kernel's fused sequence), and the blocks' shares of it. Requires ampere.cuh, storage.cuh.
//
// Macros: WORKING, warps that multiply; WEIGHT_BITS (8 or 4); INTEGERS, weights are int8 or uint4, not e4m3; BLOCKS, columns of w per scale (128
// or 32; 0: the whole row), FACTOR_BITS of a scale (32, 16 of f16, 17 of bf16) and OFFSET, whether there are offsets too; RING_BYTES, of weights
// in flight; FACTOR_BYTES, of the scales of half a phase; SUM_STAGES, whose sums a block has room for; MOST_PHASES, of a launch; PHASE_BYTES, of
// a record as the host writes it. CHOSEN, experts of a token (0: no expert phases), of which the last ALWAYS are shared by all tokens, and the
// others chosen among EXPERTS; INNER, their width; HIDDEN, columns of their x; STAGE_BYTES, of a stage of weights; X_BYTES, of x in f16.

#define BY_CHUNKS (CHOSEN && HIDDEN == 2 * WORKING * 128)  // see experts.cuh

constexpr int WARPS = 8, CONSUMERS = 32 * WARPS;
constexpr int THREADS = CONSUMERS + (BLOCKS ? 64 : 32);  // and warps that load weights and scales
constexpr int COLS = 128 / WEIGHT_BITS;                  // columns of a lane's 16 bytes of w
constexpr int SUB = 4 * COLS, SUBS = 2;                  // columns of a row that a warp loads at once, and number of such loads
constexpr int OF_WARP = SUB * SUBS, CHUNK = WORKING * OF_WARP;
constexpr int STAGE = STAGE_BYTES, STAGES = RING_BYTES / STAGE;  // of a linear layer 16 chunks of rows
constexpr int SUM_BYTES = SUM_STAGES * WARPS * 16 * 4;
constexpr int FACTOR_SIZE = FACTOR_BITS == 32 ? 4 : 2;
constexpr int HALF_BYTES = FACTOR_BYTES * (OFFSET ? 2 : 1);  // of the scales of half a phase, followed by its offsets
constexpr int TAPS = 4;         // of a convolution
constexpr int STATE = 128;      // width of a scan's state
constexpr int SCAN_ROWS = 4;    // of a state that a warp processes at once
constexpr int SHARERS = 2;      // adjacent threads that sum one column
constexpr int OF_EXPERT = INNER / 128;  // columns of an expert's gates and ups per block: 128 blocks have some

// A linear layer for one row of x, with its prologue and epilogue: see the op `linear`. x_packets is null if the preceding phase does not
// compute x, packets if no later phase reads the columns.
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

// A norm of the residual stream, followed by a router: see the ops `rmsnorm` and `linear`. Each block computes all of o; the columns of the
// router are distributed over the blocks.
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

// The gate and up projections of a token's experts, times the experts' weights: see the op `moe`.
struct Up {
  const char* x;           // [inputs] in storage
  const char* w;           // [EXPERTS + ALWAYS, 2 INNER, inputs], of each gates and then ups
  const float* w_scale;    // [EXPERTS + ALWAYS, 2 INNER]
  const float* logits;     // [EXPERTS]
  const float* correction; // [EXPERTS], or null
  const u64* logits_packets;
  u64* packets;            // [CHOSEN, INNER]
  int inputs, local;       // local: the preceding phase is the norm that computes x, so each block has it
  int sigmoid, renormalise;  // see Router in `moe/choose.cuh`
  float sum_eps, weight_scale;
};

// The experts' down projections, and their sum.
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

// A form of x: whether it is in f32, the number of a lane's loads, and whether there is a norm.
#define FORM(F32, LOADS, NORMED) ((LOADS) * 4 + (F32) * 2 + (NORMED))

// The adjacent columns of this block, always an even number: two of them are one packet.
struct Columns {
  int first, count;

  static DEVICE Columns of(int columns) {
    const u32 pairs = columns / 2;
    const int first = pairs * blockIdx.x / gridDim.x * 2;
    return {first, (int)(pairs * (blockIdx.x + 1) / gridDim.x * 2) - first};
  }
};

// The data of a phase for the warps that load its weights ahead.
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

// A scale in f32 (32 bits), f16 (16) or bf16 (17).
DEVICE float factor_of(u32 stored, int bits) {
  float value;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}" : "=f"(value) : "r"(stored));
  return bits == 32 ? __uint_as_float(stored) : bits == 17 ? __uint_as_float(stored << 16) : value;
}
DEVICE float factor_at(const char* from, int index, int bits) {
  return factor_of(bits == 32 ? __ldg((const u32*)from + index) : __ldg((const u16*)from + index), bits);
}
