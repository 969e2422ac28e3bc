// Projections of a few rows (tokens) by weights in e4m3, bound by reading the weights, which are read once for all rows:
//
//   o = residual + scale * act(rms(x) W^T + bias)          act: none, or swiglu = silu(gate) * up
//
// A block has a share of the columns, in tiles of 16 rows of w (swiglu: of 8 gates and their 8 ups). Its warps share the
// depth. A lane loads just the 16-byte pieces of w that it multiplies itself, RING batches ahead, into registers: there is no
// ring in shared memory to step through, and all tiles' sums meet there at once. The matrix product is mma.m16n8k16 with w as its
// 16 rows. Design and figures: README-direct.md.
//
// The first batches are loaded before griddepcontrol.wait: w and its factors must not be written by the kernel ahead; x, residual and o
// may be, and are read past the first cache, in which a block of an earlier kernel may have left what stood there before.
//
// x [tokens, inputs], f32 (X_F32) or bf16; w [N, inputs] in e4m3, its factors w_scale f32 [G, N]: of whole rows, or with GROUPED of
// each 128 columns of a row; norm [inputs] (NORMED), bias [N] or null, f32 or bf16; residual f32 [tokens, columns] (RESIDUAL);
// N = columns, or 2 columns with SWIGLU. The columns from start1 on go to o1, those from start2 on to o2 and so on (start = columns where
// there is none); each output is [tokens, its columns], f32 or bf16. o0 may be the residual. inputs is a multiple of 16; all
// tensors 16-byte aligned.
//
// With TAPS above 0 the columns conv_first .. conv_first + conv_channels are convolved, each row of x being the next token of
// a sequence of its own (convolution.cuh).
//
// The sums of `held` tiles lie in shared memory at once; where a block has more, they are whole times RING batches of a warp.
//
// Launch: grid (any number of blocks up to `columns`, of which the product is below 2^31); block (32 * WARPS); dynamic shared memory
//   tokens * (2 * (inputs rounded up to ROUND) + 64 + (NORMED: 4 * ceil(inputs / SEGMENT)), rounded up to 16), THROUGH: none
//   + tokens * held * 4 * WARPS * SUM_STRIDE.
//
// With THROUGH, x, in bf16 and without a norm, is read where it is multiplied and not kept in shared memory: for blocks of few tiles.
//
// Macros: DTYPE (bf16), WEIGHT_BITS (8), GROUPED, TOKENS (1, 8, 16, 32: at least `tokens`), NORMED, X_F32, THROUGH, RESIDUAL, SWIGLU,
// TAPS (0, 2, 3, 4).

constexpr int WARPS = 8, THREADS = WARPS * 32;
constexpr int ROWS = 16;                 // of w in a tile
constexpr int TILE = SWIGLU ? 8 : ROWS;  // columns of it
constexpr int LOADS = 2, RING = 4;       // pieces of a row in a batch, and batches under way
constexpr int LOADED = 4 * PIECE;        // columns that a warp loads at once
constexpr int BATCHED = LOADS * LOADED;  // and of a batch
constexpr int ROUND = WARPS * BATCHED;   // and of all warps
constexpr int SUM_STRIDE = 20;           // floats from token to token: no bank conflicts
constexpr int COLUMNS = ceil_div(TOKENS, 8);  // of x, eight rows each, that a product takes
constexpr int CHAINS = COLUMNS == 1 ? 2 : 1;  // of a column's products, that do not wait for each other
// Of x, read by a warp at once: what there are registers for.
constexpr int PIECES_AT_ONCE = X_F32 || TOKENS > 1 && NORMED ? 1 : TOKENS > 1 ? 3 : NORMED || GROUPED ? 2 : 4;
constexpr float X_FACTOR = 0x1p64f, SUM_FACTOR = 0x1p56f;
static_assert(WEIGHT_BITS == 8 && BATCHED == 128, "a batch has one factor of each row");

// What a column's product meets, and what its row of w was divided by.
struct Around {
  Outputs::Around of;
  float factor, factor_of_up;
#if TAPS > 0
  Convolution::Held state;
#endif
};

struct Batch {
  uint4 low[LOADS], high[LOADS];
#if GROUPED
  float low_factor, high_factor;
#endif
};

// 16 bytes of w, or zeros where they are not there.
DEVICE uint4 load_weights(const Weight* from, bool there) {
  uint4 value;
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.b32 there, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@there ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
      : "l"(from), "r"((int)there));
  return value;
}

// What no kernel writes comes as far as the second cache.
DEVICE void bring(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Four weights in e4m3 as two pairs in bf16, 2^-120 times as large: sign, exponent and mantissa are set where bf16 has them, and its
// exponents' bias is 120 more. That holds for numbers below the smallest exponent too, which both types have. x is X_FACTOR times as
// large in turn, which no number that a model computes leaves bf16's range by, and SUM_FACTOR is what is left.
DEVICE void small_weights(u32 bits, u32& first, u32& second) {
  const u32 low = __byte_perm(bits, 0, 0x1404), high = __byte_perm(bits, 0, 0x3424);
  first = (low & 0x80008000) | (low >> 4 & 0x07f007f0);
  second = (high & 0x80008000) | (high >> 4 & 0x07f007f0);
#if THROUGH
  // x comes as it is; adding -0 keeps the sign of a zero.
  asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(first) : "r"(0x5f805f80), "r"(0x80008000));
  asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(second) : "r"(0x5f805f80), "r"(0x80008000));
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    linear_direct(const char* __restrict__ x, const Weight* __restrict__ w, const void* __restrict__ norm,
                  const void* __restrict__ bias, const float* residual, char* o0, char* o1, char* o2, char* o3, char* o4,
                  char* o5, int start1, int start2, int start3, int start4, int start5, int tokens, int inputs,
                  int columns, int norm_f32, int bias_f32, int out_f32, float scale, float eps, int held,
                  const void* conv_weight, const void* conv_bias, const float* initial_state, float* final_state,
                  const int* state_indices, int conv_weight_f32, int conv_bias_f32, int conv_silu, int conv_first,
                  int conv_channels, const float* __restrict__ w_scale) {
#if TOKENS == 1
  tokens = 1;
#endif
#if !NORMED
  norm = nullptr;
#endif
#if !RESIDUAL
  residual = nullptr;
#endif
#if TAPS > 0
  const Convolution convolution = {conv_weight,     conv_bias,     initial_state, final_state, state_indices,
                                   conv_weight_f32, conv_bias_f32, conv_silu,     conv_first,  conv_channels};
#endif
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Around parked[THREADS];  // of each thread's first output, read beside x: there are no registers left for it
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int rounds = ceil_div(inputs, ROUND), segments = NORMED ? ceil_div(inputs, SEGMENT) : 0;
  // ---- Shared memory: x, its squares, and the sums [held][WARPS][tokens][SUM_STRIDE].
  const int x_stride = THROUGH ? 0 : rounds * ROUND * 2 + 64;  // bytes; 64 more than whole lines: no bank conflicts
  const u32 x_at = shared_address(shared);
  float* const squares = (float*)(shared + tokens * x_stride);
  float* const sums = (float*)(shared + round_up(tokens * (x_stride + 4 * segments), 16));
  const Tokens x_rows = {x, norm, tokens, inputs, X_F32, norm_f32, x_at, x_stride, squares, segments};
  const Outputs outputs = {bias,   residual, o0,     o1,      o2,       o3,      o4,     o5,   start1, start2,
                           start3, start4,   start5, columns, bias_f32, out_f32, SWIGLU, scale};

  // ---- The block's columns, and its first weights.
  const int first = (u32)columns * blockIdx.x / gridDim.x;
  const int count = (u32)columns * (blockIdx.x + 1) / gridDim.x - first, tiles = ceil_div(count, TILE);
  const int own = warp * BATCHED + lane % 4 * PIECE;  // the lane's first column of a round
  int fed_tile = 0, fed_column = own;
  const Weight *low = w, *high = w;
  bool low_there = false, high_there = false;
#if GROUPED
  const int all_columns = SWIGLU ? 2 * columns : columns;
  const float *low_scale = w_scale, *high_scale = w_scale;
#endif
  const auto point = [&](int tile) {
    const int start = first + tile * TILE, here = count - tile * TILE, row = lane / 4;
    low_there = row < here;
    high_there = SWIGLU ? low_there : row + 8 < here;
    const int low_row = start + (low_there ? row : 0), high_row = start + (high_there ? row + (SWIGLU ? columns : 8) : 0);
    low = w + (i64)low_row * inputs + own;
    high = w + (i64)high_row * inputs + own;
#if GROUPED
    low_scale = w_scale + low_row;
    high_scale = w_scale + high_row;
#endif
  };
  const auto load = [&](Batch& batch) {
#pragma unroll
    for (int s = 0; s < LOADS; s++) {
      const bool inside = fed_column + s * LOADED < inputs && fed_tile < tiles;
      batch.low[s] = load_weights(low + s * LOADED, inside && low_there);
      batch.high[s] = load_weights(high + s * LOADED, inside && high_there);
    }
#if GROUPED
    const int group = (fed_column - lane % 4 * PIECE) / BATCHED;
    const bool inside = group * BATCHED < inputs && fed_tile < tiles;
    batch.low_factor = inside && low_there ? __ldg(low_scale + (i64)group * all_columns) : 0.0f;
    batch.high_factor = inside && high_there ? __ldg(high_scale + (i64)group * all_columns) : 0.0f;
#endif
    low += ROUND, high += ROUND, fed_column += ROUND;
    if (fed_column >= own + rounds * ROUND) {
      fed_column = own;
      point(++fed_tile);
    }
  };
  // Once there are blocks of this kernel everywhere, the next one's find one place on each multiprocessor.
  let_next_start();
  Batch batch[RING];
  if (tiles > 0) point(0);
#pragma unroll
  for (int r = 0; r < RING; r++) load(batch[r]);
  prefetch_norm(norm, inputs * (norm_f32 ? 4 : 2));

  // ---- What can be said before x is there: as little as possible stands between the wait and the first product.
  Pieces pieces = Pieces::of<WARPS>(rounds * ROUND);
  pieces.settle();
  // Of the output that the thread finishes first, what stands around it.
  int at_once = min(held * TILE, count);
  int token = TOKENS == 1 ? 0 : thread / max(at_once, 1), column = thread - token * at_once;
  const bool finishes = thread < at_once * tokens;
  const auto factor_of = [&](int column) { return GROUPED ? SUM_FACTOR : __ldg(w_scale + first + column) * SUM_FACTOR; };
  if (!GROUPED && finishes) {
    bring(w_scale + first + column);
    if (SWIGLU) bring(w_scale + columns + first + column);
  }
  const auto read_around = [&](Around& around, bool there) {
    around.of = outputs.around(token, first + column, there);
    around.factor = there ? factor_of(column) : 0.0f;
    around.factor_of_up = there && SWIGLU ? factor_of(columns + column) : 0.0f;
#if TAPS > 0
    around.state = convolution.held(token, first + column, there);
#endif
  };
  wait_for_previous();
  {
    Around around;
#if THROUGH
    read_around(around, finishes);
#else
    x_rows.take<PIECES_AT_ONCE, 1, true>(0, pieces, 0, NORMED, true, [](int, int) { return X_FACTOR; }, [&] { read_around(around, finishes); });
#endif
    parked[thread] = around;
  }
  __syncthreads();

  // ---- The products.
  float sum[CHAINS][COLUMNS][4];
  const auto clear = [&] {
#pragma unroll
    for (int i = 0; i < CHAINS * COLUMNS * 4; i++) (&sum[0][0][0])[i] = 0.0f;
  };
  clear();
#if GROUPED
  float total[COLUMNS][4] = {};
#endif
  // Of the lane's columns of x in each product; tokens beyond the last give sums of no use.
  u32 x_row[COLUMNS];
  const char* x_read[COLUMNS];
#pragma unroll
  for (int n = 0; n < COLUMNS; n++) {
    const int row = min(lane / 4 + n * 8, tokens - 1);
    x_row[n] = x_at + row * x_stride + warp * BATCHED * 2 + lane % 4 * 16;
    x_read[n] = x + ((i64)row * inputs + own) * 2;
  }
  int round = 0;
  const auto x_of = [&](int n, int s, int c) {
#if THROUGH
    // Beyond the last column the weights are zeros; x is read where there is some.
    const int offset = round * ROUND + s * LOADED;
    uint4 values;
    load_current(&values.x, x_read[n] + (own + offset < inputs ? offset + c * 8 : 0) * 2);
    return values;
#else
    return load_shared(x_row[n] + round * ROUND * 2 + s * LOADED * 2 + c * 64);
#endif
  };
  const auto all_of = [&](int n, int i) { return CHAINS == 1 ? sum[0][n][i] : sum[0][n][i] + sum[CHAINS - 1][n][i]; };
  const auto multiply_batch = [&](const Batch& batch) {
#pragma unroll
    for (int s = 0; s < LOADS; s++) {
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        u32 first_rows[4], second_rows[4];
        const uint4 &a = batch.low[s], &b = batch.high[s];
        small_weights(c == 0 ? a.x : a.z, first_rows[0], first_rows[2]);
        small_weights(c == 0 ? b.x : b.z, first_rows[1], first_rows[3]);
        small_weights(c == 0 ? a.y : a.w, second_rows[0], second_rows[2]);
        small_weights(c == 0 ? b.y : b.w, second_rows[1], second_rows[3]);
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) {
          const uint4 values = x_of(n, s, c);
          multiply(sum[0][n], first_rows, values.x, values.y);
          multiply(sum[CHAINS - 1][n], second_rows, values.z, values.w);
        }
      }
    }
#if GROUPED
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) total[n][i] = fmaf(all_of(n, i), i < 2 ? batch.low_factor : batch.high_factor, total[n][i]);
    }
    clear();
#endif
  };
  float* to = sums;
  const auto end_batch = [&] {
    if (++round != rounds) return;
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
#if GROUPED
      float (&value)[4] = total[n];
#else
      const float value[4] = {all_of(n, 0), all_of(n, 1), all_of(n, 2), all_of(n, 3)};
#endif
      const int token = n * 8 + lane % 4 * 2;
      float* const low = to + n * 8 * SUM_STRIDE;
      if (token < tokens) low[0] = value[0], low[8] = value[2];
      if (token + 1 < tokens) low[SUM_STRIDE] = value[1], low[SUM_STRIDE + 8] = value[3];
#if GROUPED
      value[0] = value[1] = value[2] = value[3] = 0.0f;
#endif
    }
#if !GROUPED
    clear();
#endif
    to += WARPS * tokens * SUM_STRIDE;
    round = 0;
  };
  for (int tile = 0; tile < tiles; tile += held) {
    if (tile != 0) __syncthreads();
    to = sums + (warp * tokens + lane % 4 * 2) * SUM_STRIDE + lane / 4;
    for (int left = min(held, tiles - tile) * rounds; left > 0; left -= RING) {
#pragma unroll
      for (int r = 0; r < RING; r++) {
        if (r != 0 && left <= r) break;
        multiply_batch(batch[r]);
        load(batch[r]);
        end_batch();
      }
    }
    __syncthreads();

    // ---- The warps' sums, and what stands around the product.
    at_once = min(held * TILE, count - tile * TILE);
    for (int i = thread; i < at_once * tokens; i += THREADS) {
      token = TOKENS == 1 ? 0 : i / at_once;
      column = tile * TILE + i - token * at_once;
      Around around;
      if (i == thread && tile == 0) {
        around = parked[thread];
      } else {
        read_around(around, true);
      }
      const int here = column - tile * TILE;
      const float* const from = sums + (here / TILE * WARPS * tokens + token) * SUM_STRIDE + here % TILE;
      float value = 0.0f, up = 0.0f;
#pragma unroll
      for (int other = 0; other < WARPS; other++) {
        value += from[other * tokens * SUM_STRIDE];
        if (SWIGLU) up += from[other * tokens * SUM_STRIDE + 8];
      }
#if NORMED
      float squared = 0.0f;
      for (int s = 0; s < segments; s++) squared += squares[token * segments + s];
      const float root = rsqrtf(squared / inputs + eps);
      around.factor *= root, around.factor_of_up *= root;
#endif
      outputs.finish(value * around.factor, up * around.factor_of_up, around.of, [&](float finished) {
#if TAPS > 0
        return convolution.step(around.state, finished);
#else
        return finished;
#endif
      });
    }
  }
}
