// RMSNorm, plain or gated before or after, one row (a group of a token) per team of threads, for every GPU from sm_80 on.
//
//   NORM_BEFORE_GATE 0:  v = x a(gate),  o = v / sqrt(mean v^2 + eps) weight
//   NORM_BEFORE_GATE 1:  o = x / sqrt(mean x^2 + eps) weight a(gate)          a is silu, or sigmoid with use_sigmoid
//
// A thread keeps its PIECES vectors of a row in registers, so that x and gate are read once; a row too long for that
// (PIECES above HELD) is read a second time, then mostly from cache. Sums have the same order in every run.
//
// x, gate, o [tokens, groups, channels] in storage, `rows` groups in all; x and gate are f32 where WIDE_X is 1. With STRIDED, x_row and
// gate_row are strides in elements between tokens, multiples of VECTOR; otherwise they are not read. weight [channels], or [groups, channels]
// with weight_per_group, f32 or storage. gate and weight may be null: factors of 1. channels is a multiple of VECTOR, at most
// PIECES * TEAM * VECTOR, so that one kernel serves all smaller sizes; with EXACT it is exactly that. per_size is 1 / channels.
//
// Launch: grid (ceil(rows / ROWS)); block (ROWS * TEAM).
//
// Macros: DTYPE (f32, bf16, f16), VECTOR (elements of an access), TEAM (threads of a row, a power of two up to 1024), PIECES
// (vectors of a thread), ROWS (rows of a block; 1 where TEAM is above 32), NORM_BEFORE_GATE, WIDE_X, STRIDED,
// EXACT (0, 1).

#ifndef STRIDED
#define STRIDED 0
#endif
#ifndef EXACT
#define EXACT 0
#endif

constexpr int HELD = 32 / VECTOR;  // pieces that fit in registers
constexpr int WHOLE = PIECES * TEAM * VECTOR;
constexpr int WARPS = ceil_div(TEAM, 32);
#if __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
constexpr int MOST_THREADS = 1536;  // per SM
#else
constexpr int MOST_THREADS = 2048;
#endif
// Threads per SM that the registers must allow: as many as possible if a thread has few values.
constexpr int RESIDENT = PIECES == 1 ? MOST_THREADS : 1024;

DEVICE float sigmoid(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + exp2_fast(x * -1.44269504f)));
  return y;
}

#if WIDE_X
// VECTOR elements of x or gate, as `Stored` has those in storage.
struct Given {
  static constexpr int element_bytes = 4;
  float value[VECTOR];
  DEVICE void load(const void* at) { numbers<VECTOR>(value, at, 0, true); }
  DEVICE void clear() {
#pragma unroll
    for (int v = 0; v < VECTOR; v++) value[v] = 0.0f;
  }
  DEVICE float get(int element) const { return value[element]; }
};
#else
struct Given : Stored<VECTOR> {
  static constexpr int element_bytes = ELEMENT_BYTES;
};
#endif

// VECTOR elements of a row: the values that are normalized, and the gate's factors to multiply them by afterwards.
struct Piece {
  float value[VECTOR], after[VECTOR];

  // Elements x_at of x and gate_at of gate on.
  DEVICE void load(const char* x, const char* gate, i64 x_at, i64 gate_at, bool there, bool use_sigmoid) {
    Given values, gates;
    values.clear();
    gates.clear();
    if (there) {
      values.load(x + x_at * Given::element_bytes);
      if (gate != nullptr) gates.load(gate + gate_at * Given::element_bytes);
    }
#pragma unroll
    for (int v = 0; v < VECTOR; v++) {
      const float g = gates.get(v), factor = gate == nullptr ? 1.0f : use_sigmoid ? sigmoid(g) : silu(g);
      value[v] = NORM_BEFORE_GATE ? values.get(v) : values.get(v) * factor;
      after[v] = NORM_BEFORE_GATE ? factor : 1.0f;
    }
  }

  DEVICE float squares() const {
    float sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECTOR; v++) sum = fmaf(value[v], value[v], sum);
    return sum;
  }

  DEVICE void store(char* o, i64 at, const void* weight, i64 weight_at, int weight_f32, float factor) const {
    float weights[VECTOR], results[VECTOR];
    if (weight != nullptr) numbers<VECTOR>(weights, weight, weight_at, weight_f32);
#pragma unroll
    for (int v = 0; v < VECTOR; v++) {
      results[v] = value[v] * factor * (weight != nullptr ? weights[v] : 1.0f) * after[v];
    }
    Stored<VECTOR> out;
    out.set(results);
    out.store(o + at * ELEMENT_BYTES);
  }
};

// The sum over a row's threads, in each of them.
DEVICE float team_sum(float sum) {
#pragma unroll
  for (int far = min(TEAM, 32) / 2; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffff, sum, far);
  if constexpr (WARPS > 1) {
    __shared__ float sums[WARPS];
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) sum += sums[warp];
  }
  return sum;
}

extern "C" __global__ void __launch_bounds__(ROWS* TEAM, RESIDENT / (ROWS * TEAM))
    rmsnorm_rows(const char* __restrict__ x, const char* __restrict__ gate, const void* __restrict__ weight,
                 char* __restrict__ o, int rows, int groups, int channels, int x_row, int gate_row, int weight_f32, int weight_per_group,
                 int use_sigmoid, float per_size, float eps) {
  let_next_start();
  wait_for_previous();
  x = read_from_now_on(x);
  gate = read_from_now_on(gate);
  const int size = EXACT ? WHOLE : channels;
  const int member = threadIdx.x % TEAM;
  const i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / TEAM;
  const bool row_there = row < rows;
  const i64 from = row * size, weight_from = weight_per_group ? row % groups * size : 0;

#if STRIDED
  const i64 token = row / groups, column_of_group = row % groups * size;
  const i64 x_from = token * x_row + column_of_group, gate_from = token * gate_row + column_of_group;
#else
  const i64 x_from = from, gate_from = from;
#endif

  Piece held[PIECES <= HELD ? PIECES : 1];
  float sum = 0.0f;
#pragma unroll(PIECES <= HELD ? PIECES : 1)
  for (int p = 0; p < PIECES; p++) {
    const int column = (p * TEAM + member) * VECTOR;
    Piece& piece = held[PIECES <= HELD ? p : 0];
    piece.load(x, gate, x_from + column, gate_from + column, row_there && (EXACT || column < size), use_sigmoid);
    sum += piece.squares();
  }
  const float factor = 1.0f / sqrtf(team_sum(sum) * (EXACT ? 1.0f / WHOLE : per_size) + eps);
  if (!row_there) return;
#pragma unroll(PIECES <= HELD ? PIECES : 1)
  for (int p = 0; p < PIECES; p++) {
    const int column = (p * TEAM + member) * VECTOR;
    if (!EXACT && column >= size) continue;
    Piece& piece = held[PIECES <= HELD ? p : 0];
    if (PIECES > HELD) piece.load(x, gate, x_from + column, gate_from + column, true, use_sigmoid);
    piece.store(o, from + column, weight, weight_from + column, weight_f32, factor);
  }
}
