// What the chunk kernels share: the shape of a block, its shared memory, the loads of a chunk and its decays.
// Stands behind ampere.cuh and storage.cuh. Design: README.md.
//
// Macros: DTYPE (bf16, f16), P (multiple of 16 * COLUMN_TILES), N (multiple of 32), HEADS (of a block, all of one group),
// COLUMN_TILES (1, 2: tiles of 16 of the P columns that a warp owns), STAGES (1, 2), STATES_ONLY (0, 1).

#ifndef COLUMN_TILES
#define COLUMN_TILES 2
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef STATES_ONLY
#define STATES_ONLY 0
#endif

constexpr int Q = 64;  // tokens of a chunk
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
// The decays of a chunk, for this one and the next: DECAYS arrays of Q floats a head.
constexpr int DECAYS = 4;
constexpr int DECAY_BYTES = HEADS * DECAYS * Q * 4;
constexpr int DECAYS_AT = STAGES * STAGE_BYTES;
constexpr int MIX_AT = DECAYS_AT + 2 * DECAY_BYTES;
// Outputs of a warp, 16 tokens at a time; rows 16 bytes longer, so that they lie in different banks.
constexpr int STAGING_STRIDE = COLUMN_TILES * 32 + 16;
constexpr int STAGING_AT = MIX_AT + HEADS * MIX_BYTES;
constexpr int SKIPS_AT = STAGING_AT + WARPS * 16 * STAGING_STRIDE;  // D of each column
constexpr int SHARED_BYTES = STATES_ONLY ? MIX_AT : SKIPS_AT + WIDTH * 4;
static_assert(SHARED_BYTES <= 227 * 1024, "more shared memory than any GPU has");

// Arrays of a head in the decays of a chunk, in base 2: with a_i the sum of dt A up to and with token i,
enum Decay {
  ROW = 0,         // a_i
  COLUMN = Q,      // a_j - log2 dt_j: 2^(ROW_i - COLUMN_j) is exp(a_i - a_j) dt_j
  FROM_START = 2 * Q,  // 2^a_i
  TO_END = 3 * Q,      // 2^(a_end - a_j) dt_j
};

// A decay per step below 2^-150 is none at all in float, and a sum of such steps would lose the digits of others.
#define LEAST_STEP (-150.0f)

// What a block works on: a segment of a sequence, whole chunks but for the sequence's last.
struct Segment {
  i64 start;    // first token of the sequence among all
  int first, end;  // tokens of the segment, within the sequence
  bool there, is_first, is_last;

  DEVICE Segment(const int* cu_seqlens, int tokens, int sequence, int index, int count) {
    start = cu_seqlens != nullptr ? cu_seqlens[sequence] : (i64)sequence * tokens;
    const int length = cu_seqlens != nullptr ? (int)(cu_seqlens[sequence + 1] - start) : tokens;
    const int each = ceil_div(ceil_div(length, Q), count) * Q;
    first = index * each;
    end = min(length, first + each);
    is_first = index == 0;
    is_last = first + each >= length;
    there = is_first || first < length;
  }
};

// How step sizes are made.
struct Steps {
  const void *dt, *rate, *bias;
  float low, high;
  int dt_f32, rate_f32, bias_f32, softplus;
};

// What a lane needs of its two tokens of a chunk, as it comes.
struct RawSteps {
  float step[2], bias, rate;

  // `row` points to the head's number in the sequence's first token.
  DEVICE void fetch(const Steps& steps, i64 row, int head, int heads, int first, int end, int lane) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int t = first + lane * 2 + e;
      step[e] = t < end ? number(steps.dt, row + (i64)t * heads, steps.dt_f32) : 0.0f;
    }
    bias = steps.bias != nullptr ? number(steps.bias, head, steps.bias_f32) : 0.0f;
    rate = number(steps.rate, head, steps.rate_f32);
  }

  // Brings what a later call of `fetch` reads into the second cache, without holding a register for it.
  static DEVICE void announce(const Steps& steps, i64 row, int heads, int first, int end, int lane) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const i64 at = row + (i64)min(first + lane * 2 + e, end - 1) * heads;
      asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)steps.dt + at * (steps.dt_f32 ? 4 : 2)));
    }
  }
};

// One warp makes the decays of a chunk of one head. Gives a_end.
DEVICE float make_decays(float* decays, const RawSteps& raw, const Steps& steps, int valid, int lane) {
  float step[2], sum[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    float s = raw.step[e] + raw.bias;
    if (steps.softplus && s <= 20.0f) s = log1pf(__expf(s));
    s = fminf(fmaxf(s, steps.low), steps.high);
    step[e] = lane * 2 + e < valid ? s : 0.0f;
    sum[e] = fmaxf(step[e] * (raw.rate * 1.44269504f), LEAST_STEP);
  }
  sum[1] += sum[0];
  float before = sum[1];
#pragma unroll
  for (int far = 1; far < 32; far *= 2) {
    const float other = __shfl_up_sync(0xffffffff, before, far);
    if (lane >= far) before += other;
  }
  const float end = __shfl_sync(0xffffffff, before, 31);
  before -= sum[1];
  float2 row, column, from_start, to_end;
  row.x = before + sum[0];
  row.y = before + sum[1];
  column.x = row.x - log2_approximate(step[0]);
  column.y = row.y - log2_approximate(step[1]);
  from_start.x = exp2_approximate(row.x);
  from_start.y = exp2_approximate(row.y);
  to_end.x = exp2_approximate(end - column.x);
  to_end.y = exp2_approximate(end - column.y);
  ((float2*)(decays + ROW))[lane] = row;
  ((float2*)(decays + COLUMN))[lane] = column;
  ((float2*)(decays + FROM_START))[lane] = from_start;
  ((float2*)(decays + TO_END))[lane] = to_end;
  return end;
}

DEVICE float low_half(u32 pair) { return widen_half(STORAGE == STORED_bf16 ? pair : pair & 0xffff); }
DEVICE float high_half(u32 pair) {
  return STORAGE == STORED_bf16 ? __uint_as_float(pair & 0xffff0000u) : widen_half(pair >> 16);
}

// Two stored numbers times two weights, rounded once.
DEVICE u32 weigh(u32 pair, float2 weight) { return pack(low_half(pair) * weight.x, high_half(pair) * weight.y); }

// The state of a warp's columns, as accumulators of h [P, N]: tile ct, columns n * 8 of N. Rows lane / 4 and that + 8.
typedef float State[COLUMN_TILES][N / 8][4];

// The element of a head's state [P, N] that register pair (ct, n, half) of a lane starts with.
DEVICE int state_index(int warp, int lane, int ct, int n, int half) {
  const int row = warp % (P / (16 * COLUMN_TILES)) * (16 * COLUMN_TILES) + ct * 16 + lane / 4 + half * 8;
  return row * N + n * 8 + lane % 4 * 2;
}

DEVICE void read_state(State& h, const float* from, int warp, int lane) {
#pragma unroll
  for (int ct = 0; ct < COLUMN_TILES; ct++) {
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float2 pair = make_float2(0.0f, 0.0f);
        if (from != nullptr) pair = *(const float2*)(from + state_index(warp, lane, ct, n, half));
        h[ct][n][half * 2] = pair.x;
        h[ct][n][half * 2 + 1] = pair.y;
      }
    }
  }
}

DEVICE void write_state(const State& h, float* to, int warp, int lane) {
#pragma unroll
  for (int ct = 0; ct < COLUMN_TILES; ct++) {
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        *(float2*)(to + state_index(warp, lane, ct, n, half)) =
            make_float2(h[ct][n][half * 2], h[ct][n][half * 2 + 1]);
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

// h += (to_end x)^T B over 16 tokens. `values` are these tokens of x, transposed, two operands of 8 columns a tile;
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

// 16 tokens of x, columns of this warp.
DEVICE void load_values(u32 (&values)[COLUMN_TILES][4], u32 tile, int warp) {
#pragma unroll
  for (int ct = 0; ct < COLUMN_TILES; ct++) {
    load_matrix_x4_transposed(values[ct], Values::advance(tile, warp * COLUMN_TILES + ct));
  }
}
