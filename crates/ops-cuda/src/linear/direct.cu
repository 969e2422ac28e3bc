extern "C" __global__ void __launch_bounds__(THREADS, 1)
    linear_direct(const char* __restrict__ x, const Weight* __restrict__ w, const void* __restrict__ norm,
                  const void* __restrict__ bias, const float* residual, char* o0, char* o1, char* o2, char* o3, char* o4,
                  char* o5, int start1, int start2, int start3, int start4, int start5, int tokens, int inputs,
                  int columns, int norm_f32, int bias_f32, int out_f32, float scale, float eps, int held,
                  const void* conv_weight, const void* conv_bias, const float* initial_state, float* final_state,
                  const int* state_indices, int conv_weight_f32, int conv_bias_f32, int conv_silu, int conv_first,
                  int conv_channels, const void* __restrict__ w_scale, const unsigned char* __restrict__ w_zero,
                  const float* __restrict__ w_offset, int factor_bits, float* partial, int* counters) {
#if TOKENS == 1
  tokens = 1;
#endif
  if (!NORMED) norm = nullptr;
  if (!RESIDUAL) residual = nullptr;
#if TAPS > 0
  const Convolution convolution = {conv_weight,     conv_bias,     initial_state, final_state, state_indices,
                                   conv_weight_f32, conv_bias_f32, conv_silu,     conv_first,  conv_channels};
#else
  const Convolution convolution;
#endif
  extern __shared__ __align__(128) unsigned char shared[];
  // Epilogue operands of the first outputs, per column and per output: after the products, only sums are left to wait for.
  __shared__ Column kept[KEPT];
  __shared__ Beside parked[PARKED];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  // ---- The block's part of the depth, and its columns.
  const int part = blockIdx.x % PARTS, depth = inputs / PARTS, rounds = ceil_div(depth, ROUND);
  const u32 share = blockIdx.x / PARTS, shares = gridDim.x / PARTS;
  const int first = (u32)columns * share / shares;
  const int count = (u32)columns * (share + 1) / shares - first, tiles = ceil_div(count, TILE);
  // ---- Shared memory: rows of x, and the sums [held][WARPS][tokens][SUM_STRIDE].
  const Layout layout = Layout::of(tokens, depth);
  const u32 x_at = shared_address(shared);
  float* const sums = (float*)(shared + layout.bytes);
#if GROUPED
  float* const factors = sums + held * WARPS * tokens * SUM_STRIDE;  // [groups][rows of w], padded by the rows that a tile reads past the end
  const int groups = ceil_div(depth, 128), w_rows = SWIGLU ? 2 * count : count;
#endif
  const Tokens x_rows = layout.rows(x, norm, tokens, depth, norm_f32, (char*)shared, x_at);
  const Outputs outputs = {bias,   residual, o0,     o1,      o2,       o3,      o4,     o5,   start1, start2,
                           start3, start4,   start5, columns, bias_f32, out_f32, SWIGLU, scale};

  const int own = warp * BATCHED + lane % 4 * PIECE;  // the lane's first column of a round
  int fed_tile = 0, fed_column = own;
#if BLOCKS
  // Quantization blocks of the batch: the two for which the lane finishes sums; if FOLDED, those of the lane's loads, or one half of
  // these, the other half being in its neighbour lane.
  const int all_blocks = ceil_div(inputs, BLOCK), w_rows = SWIGLU ? 2 * columns : columns;
  const bool has_blocks = lane % 4 * 2 < BATCHED_BLOCKS;
  const int of_loads = OF_LANE == 2 ? lane % 4 : lane % 2 * LOADED_BLOCKS + lane % 4 / 2, next_block = FOLDED ? LOADED_BLOCKS : 1;
  const int pair = FOLDED ? of_loads : has_blocks ? lane % 4 * 2 : 0, own_block = part * (depth / BLOCK) + warp * BATCHED_BLOCKS + pair;
  int fed_block = own_block, fed_row = 0, fed_other = 0;
#endif
  const Weight *low = w, *high = w;
  bool low_there = false, high_there = false;
#if WEIGHT_BITS == 4
  const unsigned char *low_zero = w_zero, *high_zero = w_zero;
  const bool offsets = TOKENS == 1 ? OFFSET : (!FOLDED || OFFSET) && w_offset != nullptr;
  const unsigned char* const w_below = offsets ? (const unsigned char*)w_offset : w_zero;
#endif
  const auto point = [&](int tile) {
    // Scales past the last tile are loaded but not used.
    const int start = min(first + tile * TILE, columns - 1), here = count - tile * TILE, row = lane / 4;
    low_there = row < here;
    high_there = SWIGLU ? low_there : row + 8 < here;
    const int low_row = start + (low_there ? row : 0), high_row = start + (high_there ? row + (SWIGLU ? columns : 8) : 0);
    low = w + ((i64)low_row * inputs + part * depth + own) / PER_BYTE;
    high = w + ((i64)high_row * inputs + part * depth + own) / PER_BYTE;
#if BLOCKS
    fed_row = low_row, fed_other = high_row, fed_block = own_block;
#elif WEIGHT_BITS == 4
    low_zero = w_zero + low_row, high_zero = w_zero + high_row;
#endif
  };
  const auto load = [&](Batch& batch) {
#pragma unroll
    for (int s = 0; s < LOADS; s++) {
      const bool inside = fed_column + s * LOADED < depth && fed_tile < tiles;
      batch.low[s] = load_weights(low + s * LOADED / PER_BYTE, inside && low_there);
      batch.high[s] = load_weights(high + s * LOADED / PER_BYTE, inside && high_there);
    }
#if BLOCKS
#pragma unroll
    for (int b = 0; b < OF_LANE; b++) {
      const i64 at = (i64)min(fed_block + b * next_block, all_blocks - 1) * w_rows;
      batch.factor[b] = load_factor(w_scale, at + fed_row, factor_bits), batch.factor[2 + b] = load_factor(w_scale, at + fed_other, factor_bits);
#if WEIGHT_BITS == 4 && (!FOLDED || OFFSET)
      batch.below[b] = batch.below[2 + b] = 8;
      if (OFFSET || w_below != nullptr) batch.below[b] = load_below(w_below, at + fed_row, offsets), batch.below[2 + b] = load_below(w_below, at + fed_other, offsets);
#endif
    }
    fed_block += ROUND / BLOCK;
#elif WEIGHT_BITS == 4
#pragma unroll
    for (int f = 0; f < FACTORS; f++) batch.low_zero[f] = batch.high_zero[f] = 8;
    if (!THROUGH && w_zero != nullptr) {
#pragma unroll
      for (int f = 0; f < FACTORS; f++) {
        // The lane finishes sums to which other lanes add columns of this group, even if it has none itself.
        const int column = fed_column - lane % 4 * PIECE + f * 128;
        const int at = GROUPED ? (part * depth + column) / 128 * (SWIGLU ? 2 * columns : columns) : 0;
        const bool inside = column < depth && fed_tile < tiles;
        if (inside && low_there) batch.low_zero[f] = __ldg(low_zero + at);
        if (inside && high_there) batch.high_zero[f] = __ldg(high_zero + at);
      }
    }
#endif
    low += ROUND / PER_BYTE, high += ROUND / PER_BYTE, fed_column += ROUND;
    if (fed_column >= own + rounds * ROUND) {
      fed_column = own;
      point(++fed_tile);
    }
  };
  // Once all SMs have blocks of this kernel, a block of the next one fits on each SM.
  let_next_start();
#if READY
  // Before loads are in flight: its fence would wait for them.
  __shared__ __align__(8) unsigned long long arrived;
  const Arrival arrival = {shared_address(&arrived)};
  if (thread == 0) arrival.expect(layout.bytes);
#endif
  // Loaded before the weights, so as not to wait for these; by the last warps, because the first one copies x as soon as it may.
  const int own_column = THREADS - 1 - thread;
  const bool keeps = PARTS == 1 && own_column < min(min(held * TILE, count), KEPT);
  constexpr bool FACTORED = !GROUPED && !BLOCKS;  // whether a column has one scale
  StoredColumn stored = {};
  if (keeps) stored.load(outputs, convolution, FACTORED ? w_scale : nullptr, factor_bits, first + own_column);
  Batch batch[RING];
  if (tiles > 0) point(0);
#pragma unroll
  for (int r = 0; r < RING; r++) load(batch[r]);
  prefetch_norm(norm, inputs * (norm_f32 ? 4 : 2));
#if GROUPED
  keep_factors(factors, w_scale, factor_bits, part, groups, w_rows, first, count, columns, warp, lane);
#endif

  // ---- Computed before x is available: as little as possible remains between the wait and the first product.
#if !READY && !THROUGH
  Pieces pieces = Pieces::of<WARPS>(rounds * ROUND);
  pieces.settle();
#endif
  int at_once = min(held * TILE, count), token = 0, column = 0;
  // Division is slow; for small numbers of outputs the upper half of a product is the quotient.
  const u32 reciprocal = 0xffffffff / max(at_once, 1) + 1;
  const auto place = [&](int output) {
    token = TOKENS == 1 ? 0 : at_once <= 1 ? output : __umulhi(output, reciprocal), column = output - token * at_once;
  };
  const auto factor_of_column = [&](int column) { return FACTORED ? factor_at(w_scale, first + column, factor_bits) * SUM_FACTOR : SUM_FACTOR; };
  const auto read_around = [&](Around& around, bool there) {
    around.of = outputs.around(token, first + column, there);
    around.factor = there ? factor_of_column(column) : 0.0f;
    around.factor_of_up = there && SWIGLU ? factor_of_column(columns + column) : 0.0f;
#if TAPS > 0
    around.state = convolution.held(token, first + column, there);
#endif
  };
#if READY
  __syncthreads();
#endif
  if (keeps) kept[own_column] = stored.column(outputs, convolution, FACTORED, factor_bits, first + own_column);
  wait_for_previous();
  {
    Beside beside[PARK];
    const auto read_beside = [&] { Beside::read(beside, outputs, convolution, first, thread, at_once * tokens, token, column, place); };
#if READY
    arrival.begin(x_at, x + part * layout.bytes, layout.bytes);
    __syncwarp();  // nothing below is moved above it
    read_beside();
    arrival.end();
#elif THROUGH
    read_beside();
#else
    x_rows.take<PIECES_AT_ONCE, 1, !HALVED, HALVED>(0, pieces, 0, NORMED, true, [](int, int) { return X_FACTOR; }, read_beside);
#endif
#pragma unroll
    for (int o = 0; o < PARK; o++) {
      // Always true; without the test, kernels for one row of int4 take 232 registers, not 204.
      if (thread + o * THREADS < PARKED) parked[thread + o * THREADS] = beside[o];
    }
  }
  __syncthreads();

  // ---- The products.
  float sum[CHAINS][COLUMNS][4];
  const auto clear = [&] {
#pragma unroll
    for (int i = 0; i < CHAINS * COLUMNS * 4; i++) (&sum[0][0][0])[i] = 0.0f;
  };
  clear();
  // Whether scales differ from batch to batch.
  constexpr bool BY_BATCH = GROUPED || BLOCKS && !FOLDED || HALVED;
  float total[COLUMNS][4] = {};
  // Addresses of the lane's rows of x in each product; tokens past the last give sums that are not used.
  u32 x_row[COLUMNS];
  u32 x_read[COLUMNS];
#pragma unroll
  for (int n = 0; n < COLUMNS; n++) {
    const int row = min(lane / 4 + n * 8, tokens - 1);
    x_row[n] = x_at + row * layout.stride + warp * BATCHED * 2 + lane % 4 * 16;
    x_read[n] = (row * inputs + own) * 2;
  }
  int round = 0, multiplied = 0;  // of the batch that is multiplied: its round and its tile
  const auto x_of = [&](int n, int s, int c) {
#if THROUGH
    // Past the last column the weights are zeros; x is then read at a valid address.
    const int offset = round * ROUND + s * LOADED;
    uint4 values;
    const bool inside = own + offset < inputs;
    load_current(&values.x, x + (x_read[n] + (u32)(inside ? offset + c * 8 : 0) * 2));
    // There 4-bit weights are minus their zero point, not 0.
    if (WEIGHT_BITS == 4 && !inside) values = {0, 0, 0, 0};
    return values;
#elif BLOCKS && TOKENS == 1
    // An MMA has eight columns for x (N = 8): each of them gets the values of one quantization block only.
    const bool here = lane / 4 == s * LOADED_BLOCKS + lane % 4 / LANES_OF_BLOCK;
    uint4 values = {0, 0, 0, 0};
    if (here) values = load_shared(x_row[n] + round * ROUND * 2 + s * LOADED * 2 + c * 64);
    return values;
#else
    return load_shared(x_row[n] + round * ROUND * 2 + s * LOADED * 2 + c * 64);
#endif
  };
  const auto all_of = [&](int n, int i) { return CHAINS == 1 ? sum[0][n][i] : sum[0][n][i] + sum[CHAINS - 1][n][i]; };
#if BLOCKS && !FOLDED
  // The lanes of the lane's two rows have the scales of the batch's blocks and, for 4 bits, their zero points or offsets.
  const auto multiply_blocks = [&](const Batch& batch) {
    float factor[4];
#pragma unroll
    for (int i = 0; i < 4; i++) factor[i] = has_blocks ? factor_of(batch.factor[i], factor_bits) : 0.0f;
#if WEIGHT_BITS == 4
    float below[4];
#pragma unroll
    for (int i = 0; i < 4; i++) below[i] = below_of(batch.below[i], offsets, TOKENS == 1 ? 1.0f : factor[i]);
#endif
    const int segment = round * (ROUND / SEGMENT) + warp * BATCHED / SEGMENT;
#if TOKENS == 1
#pragma unroll
    for (int s = 0; s < LOADS; s++) {
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        u32 first_rows[4], second_rows[4];
        numbers_of(batch, s, c, 0, first_rows, second_rows);
        const uint4 values = x_of(0, s, c);
        multiply_x(sum[0][0], first_rows, values.x, values.y);
        multiply_x(sum[CHAINS - 1][0], second_rows, values.z, values.w);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float value = all_of(0, i);
#if WEIGHT_BITS == 4
      // Without OFFSET the scale is applied after the zero point is subtracted.
      const float2 of_x = x_rows.sums[segment * BATCHED_BLOCKS + pair + i % 2];
      value = fmaf(-below[i], of_x.y, (value - of_x.x) * (OFFSET ? factor[i] : 1.0f));
#endif
      total[0][i / 2 * 2] = fmaf(value, (OFFSET ? 1.0f : factor[i]) * x_rows.backs[segment], total[0][i / 2 * 2]);
    }
    clear();
#else
    const int token = min(lane % 4 * 2, tokens - 1), next = token + 1 < tokens ? layout.all_segments : 0;
    const int of_token = token * layout.all_segments + segment;
    const float back[2] = {x_rows.backs[of_token], x_rows.backs[of_token + next]};
#pragma unroll
    for (int s = 0; s < LOADS; s++) {
      float part[LOADED_BLOCKS][4] = {};
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        u32 first_rows[4], second_rows[4];
        numbers_of(batch, s, c, 0, first_rows, second_rows);
        const uint4 values = x_of(0, s, c);
#pragma unroll
        for (int b = 0; b < LOADED_BLOCKS; b++) {
          const u32 own = lane % 4 / LANES_OF_BLOCK == b ? 0xffffffff : 0;
          multiply_x(part[b], first_rows, values.x & own, values.y & own);
          multiply_x(part[b], second_rows, values.z & own, values.w & own);
        }
      }
#pragma unroll
      for (int b = 0; b < LOADED_BLOCKS; b++) {
        const int block = s * LOADED_BLOCKS + b, from = lane / 4 * 4 + block / 2;
        const float low = __shfl_sync(0xffffffff, factor[block % 2], from), high = __shfl_sync(0xffffffff, factor[2 + block % 2], from);
#if WEIGHT_BITS == 4
        const float low_below = __shfl_sync(0xffffffff, below[block % 2], from), high_below = __shfl_sync(0xffffffff, below[2 + block % 2], from);
        const float2 of_x[2] = {x_rows.sums[of_token * BATCHED_BLOCKS + block], x_rows.sums[(of_token + next) * BATCHED_BLOCKS + block]};
#endif
#pragma unroll
        for (int i = 0; i < 4; i++) {
          float value = part[b][i];
          const float factor = i < 2 ? low : high;
#if WEIGHT_BITS == 4
          value = fmaf(i < 2 ? -low_below : -high_below, of_x[i % 2].y, (value - of_x[i % 2].x) * factor);
          total[0][i] = fmaf(value, back[i % 2], total[0][i]);
#else
          total[0][i] = fmaf(value, factor * back[i % 2], total[0][i]);
#endif
        }
      }
    }
#endif
  };
#endif
#if !BLOCKS || FOLDED
  const auto multiply_batch = [&](const Batch& batch) {
#if FOLDED
    Folds folds[LOADS];
    if (!BY_LOAD) Folds::of_all(folds, batch, factor_bits, w_offset != nullptr);
#endif
    float back[COLUMNS][2];
#if WEIGHT_BITS == 4 && HALVED && !BLOCKS
    float2 x_sums[COLUMNS][FACTORS][2];
#endif
#if GROUPED
    float low_factor[FACTORS], high_factor[FACTORS];
#pragma unroll
    for (int f = 0; f < FACTORS; f++) {
      // Past the last column sums are 0, and those of missing rows are not used.
      const float* const from = factors + min((round * ROUND + warp * BATCHED) / 128 + f, groups - 1) * w_rows + multiplied * TILE + lane / 4;
      low_factor[f] = from[0], high_factor[f] = from[SWIGLU ? count : 8];
    }
#endif
#pragma unroll
    for (int n = 0; HALVED && n < COLUMNS; n++) {
      // The factors and sums of the lane's second token are a row further.
      const int token = TOKENS == 1 ? 0 : min(n * 8 + lane % 4 * 2, tokens - 1), next = token + 1 < tokens ? layout.all_segments : 0;
      const int segment = token * layout.all_segments + round * (ROUND / SEGMENT) + warp * BATCHED / SEGMENT;
      back[n][0] = x_rows.backs[segment], back[n][1] = x_rows.backs[segment + next];
#if WEIGHT_BITS == 4 && HALVED && !BLOCKS
#pragma unroll
      for (int f = 0; f < FACTORS; f++) {
        x_sums[n][f][0] = x_rows.sums[2 * segment + f], x_sums[n][f][1] = x_rows.sums[2 * (segment + next) + f];
      }
#endif
    }
#pragma unroll
    for (int f = 0; f < FACTORS; f++) {
#pragma unroll
      for (int s = f * LOADS / FACTORS; s < (f + 1) * LOADS / FACTORS; s++) {
#if FOLDED
        if (BY_LOAD) folds[s] = Folds::of(batch, s, factor_bits, w_offset != nullptr);
#endif
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
          u32 first_rows[4], second_rows[4];
          numbers_of(batch, s, c, f, first_rows, second_rows);
#if FOLDED
          folds[s].meet(first_rows), folds[s].meet(second_rows);
#endif
#pragma unroll
          for (int n = 0; n < COLUMNS; n++) {
            const uint4 values = x_of(n, s, c);
            multiply_x(sum[0][n], first_rows, values.x, values.y);
            multiply_x(sum[CHAINS - 1][n], second_rows, values.z, values.w);
          }
        }
      }
      if constexpr (BY_BATCH) {
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) {
#pragma unroll
          for (int i = 0; i < 4; i++) {
            float factor = HALVED ? back[n][i % 2] : 1.0f;
#if GROUPED
            factor *= i < 2 ? low_factor[f] : high_factor[f];
#endif
#if WEIGHT_BITS == 4 && HALVED
            const float zero = i < 2 ? batch.low_zero[f] : batch.high_zero[f];
            const float2 of_x = x_sums[n][f][i % 2];
            total[n][i] = fmaf(fmaf(-zero, of_x.y, all_of(n, i) - of_x.x), factor, total[n][i]);
#else
#pragma unroll
            for (int chain = 0; chain < CHAINS; chain++) total[n][i] = fmaf(sum[chain][n][i], factor, total[n][i]);
#endif
          }
        }
        clear();
      }
    }
  };
#endif
  float* to = sums;
  const auto end_batch = [&] {
    if (++round != rounds) return;
#if BLOCKS && TOKENS == 1
#pragma unroll
    for (int far = 1; far < 4; far *= 2) {
      total[0][0] += __shfl_xor_sync(0xffffffff, total[0][0], far), total[0][2] += __shfl_xor_sync(0xffffffff, total[0][2], far);
    }
#endif
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
      float value[4];
#pragma unroll
      for (int i = 0; i < 4; i++) value[i] = BY_BATCH ? total[n][i] : all_of(n, i);
      const int token = n * 8 + lane % 4 * 2;
      float* const low = to + n * 8 * SUM_STRIDE;
      if (token < tokens) low[0] = value[0], low[8] = value[2];
      if (token + 1 < tokens) low[SUM_STRIDE] = value[1], low[SUM_STRIDE + 8] = value[3];
#pragma unroll
      for (int i = 0; i < 4; i++) total[n][i] = 0.0f;
    }
    if (!BY_BATCH) clear();
    to += WARPS * tokens * SUM_STRIDE;
    round = 0, multiplied++;
  };
  for (int tile = 0; tile < tiles; tile += held) {
    if (tile != 0) __syncthreads();
    to = sums + (warp * tokens + lane % 4 * 2) * SUM_STRIDE + lane / 4;
    for (int left = min(held, tiles - tile) * rounds; left > 0; left -= RING) {
#pragma unroll
      for (int r = 0; r < RING; r++) {
        if (r != 0 && left <= r) break;
#if BLOCKS && !FOLDED
        multiply_blocks(batch[r]);
#else
        multiply_batch(batch[r]);
#endif
        load(batch[r]);
        end_batch();
      }
    }
    __syncthreads();

    // ---- Epilogue: adds the warps' sums and finishes the outputs.
    at_once = min(held * TILE, count - tile * TILE);
#pragma unroll 1
    for (int i = thread; i < at_once * tokens; i += THREADS) {
      if (tile == 0) {
        place(i);
      } else {
        token = TOKENS == 1 ? 0 : i / at_once, column = i - token * at_once;
      }
      const int here = column;
      column += tile * TILE;
#if PARTS == 1
      Around around;
      if (tile == 0 && i < PARKED && column < KEPT) {
        kept[column].around(around, token, parked[i]);
      } else {
        read_around(around, true);
      }
#endif
      const float* const from = sums + (here / TILE * WARPS * tokens + token) * SUM_STRIDE + here % TILE;
      float value = 0.0f, up = 0.0f;
#pragma unroll
      for (int other = 0; other < WARPS; other++) {
        value += from[other * tokens * SUM_STRIDE];
        if (SWIGLU) up += from[other * tokens * SUM_STRIDE + 8];
      }
#if PARTS > 1
      partial[((i64)part * tokens + token) * columns + first + column] = value;
#else
#if NORMED
      float squared = 0.0f;
      for (int s = 0; s < layout.segments; s++) squared += x_rows.squares[token * layout.segments + s];
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
#endif
    }
  }
#if PARTS > 1
  // ---- Adds the sums of all parts, in the same order whichever block is the last.
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (thread == 0) last = atomicAdd(counters + share, 1) == PARTS - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  if (thread == 0) counters[share] = 0;
  for (int i = thread; i < count * tokens; i += AT_LAST * THREADS) {
    Around around[AT_LAST];
    float value[AT_LAST] = {};
#pragma unroll
    for (int o = 0; o < AT_LAST; o++) {
      const int here = i + o * THREADS;
      const bool there = here < count * tokens;
      token = there ? here / count : 0, column = there ? here - token * count : 0;
      read_around(around[o], there);
#pragma unroll
      for (int of = 0; of < PARTS; of++) value[o] += load_current(partial + ((i64)of * tokens + token) * columns + first + column);
    }
#pragma unroll
    for (int o = 0; o < AT_LAST; o++) {
      if (i + o * THREADS >= count * tokens) break;
      outputs.finish(value[o] * around[o].factor, 0.0f, around[o].of, [](float finished) { return finished; });
    }
  }
#endif
}
