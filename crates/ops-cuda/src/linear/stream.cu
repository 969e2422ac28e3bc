// Projections of few rows (tokens), bound by reading the weights, which are read once for all rows:
//
//   o = residual + scale * act(rms(x) W^T + bias)          act: none, swiglu = silu(gate) * up, or with SQUARED max(0, x)^2
//
// A block has a share of the columns, in tiles of 16 rows of w (swiglu: of 8 gates and their 8 ups). Its warps split the
// depth: in a round of ROUND columns each has STEP. A lane copies by cp.async just the 16-byte pieces of w that it multiplies
// itself, through its own ring of STAGES steps, so that it waits for other lanes only at the end of a tile.
// The MMA is mma.m16n8k16 with w as its 16 rows; which of a step's columns are in one MMA does not matter
// as long as x is permuted alike, so a lane's 16 bytes serve two MMAs. Design and figures: README-stream.md.
//
// The ring fills before griddepcontrol.wait (PDL): w must not be written by the preceding kernel; x, residual and o may be, and are
// read past L1, in which a block of an earlier kernel may have left stale lines.
//
// x [tokens, inputs], f32 or storage; w [N, inputs]; norm [inputs], bias [N], f32 or storage, or null; residual f32
// [tokens, columns] or null; N = columns, or 2 columns with swiglu. The columns from start1 on go to o1, those from start2
// on to o2 and so on (start = columns where there is none); each output is [tokens, its columns], f32 or storage. o0 may be
// the residual. inputs is a multiple of 8; all tensors 16-byte aligned.
//
// streamed 1: x, in storage and without a norm, passes through the ring together with w. streamed 0: `phase` columns of x, a multiple
// of ROUND, are in shared memory at once. With `groups` above 1, inputs / groups is a multiple of SEGMENT. deferred 1: x times
// norm is rounded, and the root divides the sums (one group, one phase); otherwise x is read twice, for its squares first.
//
// With TAPS above 0 the columns conv_first .. conv_first + conv_channels are convolved; each row of x is then the next token of
// a separate sequence (convolution.cuh); swiglu and residual are ignored then.
//
// Launch: grid (any number of blocks up to `columns`; blocks * columns < 2^31); block (32 * WARPS); dynamic shared memory
//   WARPS * STAGES * (STEP_BYTES + (streamed: X_STEP_BYTES)) + tokens * 4 * SUM_BUFFERS * WARPS * SUM_STRIDE
//   + (streamed 0: tokens * (2 * min(phase, inputs rounded up to ROUND) + 64))
//   + (norm: 4 * tokens * ceil(inputs / SEGMENT)).
//
// Macros: DTYPE (bf16, f16), TOKENS (8, 16, 32: at least `tokens`), STAGES, TAPS (0, 2, 3, 4), RESIDENT (blocks per SM that the registers
// must allow), REGISTERS (most registers of a thread; 0: as many as RESIDENT leaves), RESIDUAL (0: none), SQUARED (1: act is max(0, x)^2).

#ifndef TOKENS
#define TOKENS 8
#endif
#ifndef STAGES
#define STAGES 5
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef TAPS
#define TAPS 0
#endif
#ifndef RESIDUAL
#define RESIDUAL 1
#endif
#ifndef RESIDENT
// Two if they fit in shared memory and the compiler needs at most 128 registers.
#define RESIDENT (TOKENS == 8 && __CUDA_ARCH__ < 1200 ? 2 : 1)
#endif

constexpr int THREADS = WARPS * 32;
constexpr int ROWS = 16;             // of w in a tile
constexpr int ROUND = WARPS * STEP;  // columns of the steps of all warps
constexpr int STEP_BYTES = ROWS * STEP * 2;
constexpr int X_STEP_BYTES = TOKENS * STEP * 2;
constexpr int SUM_STRIDE = 20;  // floats from token to token: no bank conflicts
constexpr int SUM_BUFFERS = TOKENS == 8 ? 2 : 1;
constexpr int FINISHED = ceil_div(ROWS * TOKENS, THREADS);  // outputs of a tile that a thread finishes

#if REGISTERS > 0
#define BOUNDS __maxnreg__(REGISTERS)
#else
#define BOUNDS __launch_bounds__(THREADS, RESIDENT)
#endif
extern "C" __global__ void BOUNDS
    linear_stream(const char* __restrict__ x, const Weight* __restrict__ w, const void* __restrict__ norm,
                  const void* __restrict__ bias, const float* residual, char* o0, char* o1, char* o2, char* o3, char* o4,
                  char* o5, int start1, int start2, int start3, int start4, int start5, int tokens, int inputs,
                  int columns, int x_f32, int norm_f32, int bias_f32, int out_f32, int swiglu, float scale, float eps,
                  int phase, int groups, int deferred, int streamed, const void* conv_weight, const void* conv_bias,
                  const float* initial_state, float* final_state, const int* state_indices, int conv_weight_f32,
                  int conv_bias_f32, int conv_silu, int conv_first, int conv_channels) {
#if !RESIDUAL || TAPS > 0
  residual = nullptr;
#endif
#if TAPS > 0
  swiglu = 0;
  const Convolution convolution = {conv_weight,     conv_bias,     initial_state, final_state, state_indices,
                                   conv_weight_f32, conv_bias_f32, conv_silu,     conv_first,  conv_channels};
#endif
  extern __shared__ __align__(128) unsigned char shared[];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int rounds = ceil_div(inputs, ROUND), phase_rounds = streamed ? rounds : min(phase / ROUND, rounds);
  const int x_stride = phase_rounds * ROUND * 2 + 64;  // bytes; 64 more than whole lines: no bank conflicts
  const int segments = ceil_div(inputs, SEGMENT);
  // ---- Shared memory: the ring, the warps' sums [SUM_BUFFERS][WARPS][tokens][SUM_STRIDE], x, its squares.
  const int step_bytes = STEP_BYTES + (streamed ? X_STEP_BYTES : 0), ring_bytes = WARPS * STAGES * step_bytes;
  const int buffer_floats = WARPS * tokens * SUM_STRIDE, sums_bytes = SUM_BUFFERS * buffer_floats * 4;
  float* const sums = (float*)(shared + ring_bytes);
  const u32 x_at = shared_address(shared) + ring_bytes + sums_bytes;
  float* const squares = (float*)(shared + ring_bytes + sums_bytes + tokens * x_stride);
  const Tokens x_rows = {x, norm, tokens, inputs, x_f32, norm_f32, x_at, x_stride, squares, segments};
  const Outputs outputs = {bias,   residual, o0,     o1,      o2,       o3,      o4,     o5,   start1, start2,
                           start3, start4,   start5, columns, bias_f32, out_f32, swiglu, scale};

  // ---- The block's columns, and its ring of weights.
  const int first = (u32)columns * blockIdx.x / gridDim.x;
  const int count = (u32)columns * (blockIdx.x + 1) / gridDim.x - first;
  const int tile_columns = swiglu ? ROWS / 2 : ROWS, tiles = (count + tile_columns - 1) >> (swiglu ? 3 : 4);
  const int each = count / max(tiles, 1), wider = count - each * tiles;  // the first `wider` tiles have a column more
  const auto tile_start = [&](int tile) { return first + each * tile + min(tile, wider); };

  const u32 ring = shared_address(shared) + warp * STAGES * step_bytes + lane * 16;
  const int own = warp * STEP + lane % 4 * PIECE;  // the lane's first column of a round
  int fed_tile = 0, fed_round = 0, fed_slot = 0;
  const Weight *low = w, *high = w;
  bool low_there = false, high_there = false;
  const auto point = [&](int tile) {
    const int start = tile_start(tile), here = tile_start(tile + 1) - start, row = lane / 4;
    low_there = row < here;
    high_there = swiglu ? low_there : row + 8 < here;
    const int low_row = start + (low_there ? row : 0), high_row = start + (high_there ? row + (swiglu ? columns : 8) : 0);
    low = w + (i64)low_row * inputs;
    high = w + (i64)high_row * inputs;
  };
  const auto feed_x = [&](u32 slot, int round) {
#pragma unroll
    for (int n = 0; n < TOKENS / 8; n++) {
#pragma unroll
      for (int piece = 0; piece < STEP_PIECES; piece++) {
        const int token = lane / 4 + n * 8;
        const int column = round * ROUND + own + piece * 4 * PIECE;
        const bool there = token < tokens && column < inputs;
        copy_async<16>(slot + STEP_BYTES + (n * STEP_PIECES + piece) * 512, x + (there ? ((i64)token * inputs + column) * 2 : 0),
                       there);
      }
    }
  };
  const auto feed = [&](bool with_x) {
    if (fed_tile < tiles) {
      const u32 slot = ring + fed_slot * step_bytes;
#pragma unroll
      for (int piece = 0; piece < STEP_PIECES; piece++) {
        const int column = fed_round * ROUND + own + piece * 4 * PIECE;
        const bool inside = column < inputs;
        copy_weights(slot + piece * 1024, low + (inside ? column : 0), inside && low_there);
        copy_weights(slot + piece * 1024 + 512, high + (inside ? column : 0), inside && high_there);
      }
      if (with_x) feed_x(slot, fed_round);
      fed_slot = fed_slot + 1 == STAGES ? 0 : fed_slot + 1;
      if (++fed_round == rounds) {
        fed_round = 0;
        if (++fed_tile < tiles) point(fed_tile);
      }
    }
    copy_commit();
  };
  // Once all SMs have blocks of this kernel, a block of the next one fits on each SM.
  let_next_start();
  if (tiles > 0) point(0);
#pragma unroll
  for (int stage = 0; stage < STAGES; stage++) feed(false);
  prefetch_norm(norm, inputs * (norm_f32 ? 4 : 2));

  // ---- Computed before x is available: as little as possible remains between the wait and the first product.
  Pieces pieces = Pieces::of<WARPS>(phase_rounds * ROUND);
  float part = (float)groups / inputs;
  const int group = groups == 1 ? inputs : inputs / groups, group_segments = groups == 1 ? segments : group / SEGMENT;
  pieces.settle();
  settle(part);
  // Outputs of a tile that the thread finishes: token and column of each, the same in every tile.
  int token_of[FINISHED], column_of[FINISHED];
#pragma unroll
  for (int i = 0; i < FINISHED; i++) {
    const int at = thread + i * THREADS;
    token_of[i] = at >> (swiglu ? 3 : 4);
    column_of[i] = at & (tile_columns - 1);
  }
  float root[FINISHED];
#pragma unroll
  for (int i = 0; i < FINISHED; i++) root[i] = 1.0f;
  u32 x_row[TOKENS / 8];  // of the lane's columns of x in each product; tokens past the last give sums that are not used
#pragma unroll
  for (int n = 0; n < TOKENS / 8; n++) x_row[n] = x_at + min(lane / 4 + n * 8, tokens - 1) * x_stride + (CHUNKS == 1 ? own * 2 : warp * STEP * 2 + lane % 4 * 16);
  wait_for_previous();
  if (streamed) {
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) feed_x(ring + stage * step_bytes, stage % rounds);
    copy_commit();
    copy_wait<0>();
  }

  // ---- Squares of x, if they must be known before it is rounded.
  const bool twice = norm != nullptr && !deferred;
  const auto root_of = [&](int token, int column) {
    const float* of_group = squares + token * segments + (groups == 1 ? 0 : column / group * group_segments);
    float total = 0.0f;
#pragma unroll 8
    for (int s = 0; s < group_segments; s++) total += of_group[s];
    return rsqrtf(total * part + eps);
  };
  const auto nothing = [] {};
  if (twice) {
    x_rows.take(0, Pieces::of<WARPS>(inputs), 0, true, false, [](int, int) { return 1.0f; }, nothing);
    __syncthreads();
  }

  int slot = 0;
  for (int tile = 0; tile < tiles; tile++) {
    const int start = tile_start(tile), here = tile_start(tile + 1) - start;
    Outputs::Around around[FINISHED];
#if TAPS > 0
    Convolution::Held held[FINISHED];
#endif
    const auto read_around = [&] {
#pragma unroll
      for (int i = 0; i < FINISHED; i++) {
        const bool there = column_of[i] < here && token_of[i] < tokens;
        around[i] = outputs.around(token_of[i], start + column_of[i], there);
#if TAPS > 0
        held[i] = convolution.held(token_of[i], start + column_of[i], there);
#endif
      }
    };
    if (streamed || tile != 0) read_around();
    float sum[TOKENS / 8][4];
#pragma unroll
    for (int n = 0; n < TOKENS / 8; n++) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;

    for (int from_round = 0; from_round < rounds; from_round += phase_rounds) {
      const int rounds_here = min(phase_rounds, rounds - from_round);
      if (!streamed && (tile == 0 || phase_rounds < rounds)) {
        if (tile != 0 || from_round != 0) __syncthreads();
        const bool first_of_all = tile == 0 && from_round == 0;
        const Pieces of_phase = rounds_here == phase_rounds ? pieces : Pieces::of<WARPS>(rounds_here * ROUND);
        if (norm == nullptr && !x_f32) {
          x_rows.copy(from_round * ROUND, of_phase);
          if (first_of_all) read_around();
          copy_wait<0>();
        } else {
          const auto factor = [&](int token, int column) { return twice ? root_of(token, column) : 1.0f; };
          x_rows.take(from_round * ROUND, of_phase, from_round * (ROUND / SEGMENT), deferred, true, factor, [&] {
            if (first_of_all) read_around();
          });
        }
        __syncthreads();
        // Here, while weights are in flight, and not at the end of the block, where nothing would hide it.
#pragma unroll
        for (int i = 0; i < FINISHED; i++) {
          if (deferred && token_of[i] < tokens) root[i] = root_of(token_of[i], 0);
        }
      }
      for (int round = 0; round < rounds_here; round++) {
        copy_wait<STAGES - 1>();
        const u32 weights = ring + slot * step_bytes;
        slot = slot + 1 == STAGES ? 0 : slot + 1;
#pragma unroll
        for (int piece = 0; piece < STEP_PIECES; piece++) {
          const uint4 low_piece = load_shared(weights + piece * 1024), high_piece = load_shared(weights + piece * 1024 + 512);
          const u32 first_rows[4] = {low_piece.x, high_piece.x, low_piece.y, high_piece.y};
          const u32 second_rows[4] = {low_piece.z, high_piece.z, low_piece.w, high_piece.w};
#pragma unroll
          for (int n = 0; n < TOKENS / 8; n++) {
            const uint4 values = load_shared(streamed ? weights + STEP_BYTES + (n * STEP_PIECES + piece) * 512
                                                      : x_row[n] + round * ROUND * 2 + piece * 64);
            multiply(sum[n], first_rows, values.x, values.y);
            multiply(sum[n], second_rows, values.z, values.w);
          }
        }
        feed(streamed);
      }
    }

    // ---- Epilogue: adds the warps' sums and finishes the outputs.
    float* const buffer = sums + (SUM_BUFFERS == 2 ? tile % 2 * buffer_floats : 0);
    if (SUM_BUFFERS == 1 && tile != 0) __syncthreads();
#pragma unroll
    for (int n = 0; n < TOKENS / 8; n++) {
      const int token = n * 8 + lane % 4 * 2;
      float* const to = buffer + (warp * tokens + token) * SUM_STRIDE + lane / 4;
      if (token < tokens) to[0] = sum[n][0], to[8] = sum[n][2];
      if (token + 1 < tokens) to[SUM_STRIDE] = sum[n][1], to[SUM_STRIDE + 8] = sum[n][3];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < FINISHED; i++) {
      const int token = token_of[i];
      if (token >= tokens || column_of[i] >= here) continue;
      float value = 0.0f, up = 0.0f;
      const float* const from = buffer + token * SUM_STRIDE + column_of[i];
#pragma unroll
      for (int other = 0; other < WARPS; other++) {
        value += from[other * tokens * SUM_STRIDE];
        if (swiglu) up += from[other * tokens * SUM_STRIDE + 8];
      }
      outputs.finish(value * root[i], up * root[i], around[i], [&](float finished) {
#if TAPS > 0
        return convolution.step(held[i], finished);
#else
        return finished;
#endif
      });
    }
  }
}
