// What a kernel whose blocks stay is told of one phase, and what its blocks share. Stands behind ampere.cuh, storage.cuh,
// convolution.cuh and stream.cuh.
//
// Macros: WARPS, that compute; RING_BYTES, of weights on their way; SUM_STAGES, whose sums a block holds; N_STATE, the width of a
// scan's state; MOST_PHASES, of a launch; PHASE_BYTES, of a record as the host writes it.

constexpr int CONSUMERS = 32 * WARPS;
constexpr int THREADS = CONSUMERS + 64;  // a warp that brings weights and one that waits for the other blocks

// A product of one row of x, and what stands around it: see the op `linear`.
struct Linear {
  const char* x;          // [inputs], f32 or storage
  const char* w;          // [columns, inputs], of gates and then of ups [2 columns, inputs]
  const float* w_scale;   // [columns] or [2 columns]
  const float* norm;      // [inputs], or null
  const void* bias;       // [columns] or [2 columns], f32 or storage, or null
  const float* residual;  // [columns], or null
  char *o0, *o1, *o2, *o3, *o4, *o5;
  const void *conv_weight, *conv_bias;  // as `Convolution` has them; no weight where nothing is convolved
  const float* initial_state;
  float* final_state;
  const int* state_indices;
  int start1, start2, start3, start4, start5, inputs, columns, x_f32, swiglu, bias_f32, out_f32;
  float scale, eps;
  int conv_weight_f32, conv_bias_f32, conv_silu, conv_first, conv_channels;
};

// A step of Mamba-2's scan for one sequence: see the op `ssd`.
struct Scan {
  const char* x;                        // [heads, head_dim]
  const void* dt;                       // [heads], f32 or storage
  const void* rate;                     // likewise
  const char *b, *c;                    // [groups, N_STATE]
  const void* d;                        // [heads] or [heads, head_dim], f32 or storage, or null
  const char* z;                        // like x, or null
  const void* dt_bias;                  // [heads], f32 or storage, or null
  const float* initial_state;           // [slots, heads, head_dim, N_STATE]
  float* final_state;                   // likewise; may be the same
  const int* state_indices;             // [1] slot, negative for padding, or null: slot 0
  char* o;                              // like x
  int heads, groups, head_dim, dt_f32, rate_f32, d_f32, bias_f32, d_per_channel, softplus;
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

// What the warp that brings weights has to know of a phase.
struct Source {
  const char* w;
  int inputs, columns, swiglu;  // no columns where the phase has no weights
  int segments;                 // of a row, each of which is a row of the product

  static DEVICE Source of(const Phase& phase) {
    if (phase.kind != LINEAR) return {nullptr, 0, 0, 0, 1};
    const Linear& of = phase.linear;
    int segments = 2;
    while (segments * 128 * WARPS < of.inputs) segments *= 2;
    return {of.w, of.inputs, of.columns, of.swiglu, segments};
  }
};

// A block's part of a phase's columns.
struct Columns {
  int first, count;

  static DEVICE Columns of(int columns) {
    const int first = (u32)columns * blockIdx.x / gridDim.x;
    return {first, (int)((u32)columns * (blockIdx.x + 1) / gridDim.x) - first};
  }
};
