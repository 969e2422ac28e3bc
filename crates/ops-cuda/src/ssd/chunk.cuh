// Shared by the mma.sync chunk kernels: the shape of a block, its shared memory and the products that change a state.
// Requires ampere.cuh, storage.cuh, decays.cuh and state.cuh. Design: README.md.
//
// Macros: DTYPE (bf16, f16), P (multiple of 16 * COLUMN_TILES), N (multiple of 32), HEADS (of a block, all of one group),
// COLUMN_TILES (1, 2: tiles of 16 of the P columns that a warp owns), STAGES (1, 2), STATES_ONLY (0, 1),
// STRIDED (0, 1: tokens are not contiguous; only then strides are read from the arguments, to save registers).

#ifndef COLUMN_TILES
#define COLUMN_TILES 2
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef STRIDED
#define STRIDED 0
#endif
#ifndef STATES_ONLY
#define STATES_ONLY 0
#endif

constexpr int WIDTH = HEADS * P;
constexpr int WARPS = WIDTH / (16 * COLUMN_TILES);
constexpr int THREADS = 32 * WARPS;
static_assert(P % (16 * COLUMN_TILES) == 0 && N % 32 == 0, "tiles do not fit");
constexpr int DEPTH_STEPS = N / 16;
constexpr int TOKEN_STEPS = Q / 16;

typedef Rows<N> Projection;  // rows of B and C
typedef Rows<WIDTH> Values;  // rows of x: all heads of the block
typedef Rows<Q> Mix;

constexpr int PROJECTION_BYTES = Q * Projection::stride;
constexpr int VALUE_BYTES = Q * Values::stride;
constexpr int MIX_BYTES = Q * Mix::stride;
constexpr int B_AT = 0;
constexpr int VALUES_AT = PROJECTION_BYTES;
constexpr int C_AT = VALUES_AT + VALUE_BYTES;
constexpr int STAGE_BYTES = C_AT + (STATES_ONLY ? 0 : PROJECTION_BYTES);
// Decay arrays of a chunk, for the current one and the next.
constexpr int DECAY_BYTES = HEADS * DECAYS * Q * 4;
constexpr int DECAYS_AT = STAGES * STAGE_BYTES;
constexpr int MIX_AT = DECAYS_AT + 2 * DECAY_BYTES;
// Outputs of a warp, 16 tokens at a time; rows padded by 16 bytes, so that they are in different banks.
constexpr int STAGING_STRIDE = COLUMN_TILES * 32 + 16;
constexpr int STAGING_AT = MIX_AT + HEADS * MIX_BYTES;
constexpr int SKIPS_AT = STAGING_AT + WARPS * 16 * STAGING_STRIDE;  // D of each column
constexpr int BOUNDS_AT = STATES_ONLY ? MIX_AT : SKIPS_AT + WIDTH * 4;
constexpr int SHARED_BYTES = BOUNDS_AT + 16;
static_assert(SHARED_BYTES <= 227 * 1024, "more shared memory than any GPU has");

// Bounds of a segment, in shared memory: read where they are needed, they cost the products no registers.
struct Bounds {
  i64 start;  // first token of the sequence among all
  int end;    // of the segment, within the sequence
  int group;
};

// The thread's index, read again at each call: values computed from it are not kept in registers from one use to the next.
DEVICE int ask_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// The state of a warp's columns, as accumulators of h [P, N]: tile ct, columns n * 8 of N. Rows lane / 4 and that + 8.
typedef float State[COLUMN_TILES][N / 8][4];

// Index in a head's state [P, N] of the first element of a lane's register pair (ct, n, half).
DEVICE int state_index(int warp, int lane, int ct, int n, int half) {
  const int row = warp % (P / (16 * COLUMN_TILES)) * (16 * COLUMN_TILES) + ct * 16 + lane / 4 + half * 8;
  return row * N + n * 8 + lane % 4 * 2;
}

DEVICE float2 load_pair(const float* at) { return *(const float2*)at; }
DEVICE float2 load_pair(const u16* at) { return widen_states(*(const u32*)at); }
DEVICE void store_pair(float* at, float first, float second) { *(float2*)at = make_float2(first, second); }
DEVICE void store_pair(u16* at, float first, float second) { *(u32*)at = narrow_states(first, second); }

template <class T>
DEVICE void read_state(State& h, const T* from, int warp, int lane) {
#pragma unroll
  for (int ct = 0; ct < COLUMN_TILES; ct++) {
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float2 pair = make_float2(0.0f, 0.0f);
        if (from != nullptr) pair = load_pair(from + state_index(warp, lane, ct, n, half));
        h[ct][n][half * 2] = pair.x;
        h[ct][n][half * 2 + 1] = pair.y;
      }
    }
  }
}

template <class T>
DEVICE void write_state(const State& h, T* to, int warp, int lane) {
#pragma unroll
  for (int ct = 0; ct < COLUMN_TILES; ct++) {
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        store_pair(to + state_index(warp, lane, ct, n, half), h[ct][n][half * 2], h[ct][n][half * 2 + 1]);
      }
    }
  }
}

// h <- 2^a_end h.
DEVICE void fade(State& h, float factor) {
#pragma unroll
  for (int ct = 0; ct < COLUMN_TILES; ct++) {
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) h[ct][n][e] *= factor;
    }
  }
}

// h += (to_end x)^T B over 16 tokens. `values` are these tokens of x, transposed, two fragments of 8 columns per tile;
// `projection` is B's tile at the first of them, with the lane's offset.
DEVICE void add_tokens(State& h, const u32 (&values)[COLUMN_TILES][4], const float* to_end, u32 projection, int lane) {
  const float2 near = *(const float2*)(to_end + lane % 4 * 2), far = *(const float2*)(to_end + 8 + lane % 4 * 2);
  u32 a[COLUMN_TILES][4];
#pragma unroll
  for (int ct = 0; ct < COLUMN_TILES; ct++) {
    a[ct][0] = weigh(values[ct][0], near);
    a[ct][2] = weigh(values[ct][1], far);
    a[ct][1] = weigh(values[ct][2], near);
    a[ct][3] = weigh(values[ct][3], far);
  }
#pragma unroll
  for (int n = 0; n < DEPTH_STEPS; n++) {
    u32 b[4];
    load_matrix_x4_transposed(b, Projection::advance(projection, n));
#pragma unroll
    for (int ct = 0; ct < COLUMN_TILES; ct++) {
      multiply(h[ct][n * 2], a[ct], b[0], b[1]);
      multiply(h[ct][n * 2 + 1], a[ct], b[2], b[3]);
    }
  }
}

// Loads 16 tokens of x, columns of this warp.
DEVICE void load_values(u32 (&values)[COLUMN_TILES][4], u32 tile, int warp) {
#pragma unroll
  for (int ct = 0; ct < COLUMN_TILES; ct++) {
    load_matrix_x4_transposed(values[ct], Values::advance(tile, warp * COLUMN_TILES + ct));
  }
}
