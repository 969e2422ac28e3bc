// The state space scan in chunks of 64 tokens by MMA (mma.sync), for every GPU from sm_80 on.
//
//   y_i = exp(a_i) h C_i + sum over j <= i of (C_i B_j) exp(a_i - a_j) dt_j x_j + D x_i,  then y * silu(z)
//   h  <- exp(a_Q) h + sum over j of exp(a_Q - a_j) dt_j x_j (outer) B_j
//
// A block processes HEADS heads of a group over a segment of a sequence, chunk after chunk. A warp owns 16 * COLUMN_TILES
// columns of one head's P and keeps their state in registers for the whole segment: the accumulators of h have, once
// rounded, the layout of the B fragment of C h^T, so the state is never moved. Scores C B^T are computed once
// for all heads; each head's matrix of mixing weights is computed from them in shared memory.
//
// x, z, o [B, T, H, P], b, c [B, T, G, N], dt [B, T, H], or packed with cu_seqlens [Nseq + 1]; rate (A), dt_bias [H];
// d [H] or [H, P] (d_per_channel); initial_state, final_state [slots, H, P, N] as in state.cuh; state_indices [Nseq] or null:
// negative is padding, which gives o = 0; states f32 [Nseq, segments - 1, H, P, N]: the final state of segment s, null for
// one segment. z, d, dt_bias, initial_state may be null. All 16-byte aligned. x_row, dt_row, b_row (of c too), z_row are strides in
// elements between tokens (multiples of 8, except dt_row); the elements of a token are contiguous.
//
// Launch: grid (H / HEADS, segments, Nseq); block (THREADS); dynamic shared memory SHARED_BYTES. It may overlap the kernel
// that writes `states` (PDL).
// Macros: those of chunk.cuh, STATE_BF16 (0, 1).

// Scores and mixing weights are computed in pieces of one tile of 16 rows and up to 3 of 8 columns, on and below the diagonal:
// eight pieces of similar work. A piece's index gives its row tile, first column tile, and number of column tiles.
DEVICE int piece_row(int piece) { return piece < 3 ? 3 : piece < 5 ? 2 : piece < 7 ? 1 : 0; }
DEVICE int piece_column(int piece) { return piece < 3 ? piece * 3 : piece < 5 ? (piece - 3) * 3 : piece < 7 ? (piece - 5) * 2 : 0; }
DEVICE int piece_count(int piece) { return piece == 2 || piece >= 5 ? 2 : 3; }

DEVICE void make_mix(u32 mix, u32 b_tile, u32 c_tile, const float* decays, int warp, int lane) {
  const u32 c_lane = c_tile + Projection::lane_offset(lane);
  // 8 rows of B, 32 columns at a time.
  const u32 b_lane = b_tile + Projection::offset(lane % 8, lane / 8);
#pragma unroll 1
  for (int piece = warp; piece < 8; piece += WARPS) {
    const int row_tile = piece_row(piece), column = piece_column(piece), count = piece_count(piece);
    float s[3][4] = {};
#pragma unroll
    for (int k = 0; k < N / 32; k++) {
      u32 a0[4], a1[4];
      load_matrix_x4(a0, row_tile * 16 * Projection::stride + Projection::advance(c_lane, 2 * k));
      load_matrix_x4(a1, row_tile * 16 * Projection::stride + Projection::advance(c_lane, 2 * k + 1));
#pragma unroll
      for (int n = 0; n < 3; n++) {
        if (n == 2 && count < 3) continue;
        u32 b[4];
        load_matrix_x4(b, (column + n) * 8 * Projection::stride + Projection::advance(b_lane, 2 * k));
        multiply(s[n], a0, b[0], b[1]);
        multiply(s[n], a1, b[2], b[3]);
      }
    }
    const int row = row_tile * 16 + lane / 4;
#pragma unroll
    for (int head = 0; head < HEADS; head++) {
      const float* const decay = decays + head * (DECAYS * Q);
      const float upper = decay[ROW + row], lower = decay[ROW + row + 8];
#pragma unroll
      for (int n = 0; n < 3; n++) {
        if (n == 2 && count < 3) continue;
        const int first = (column + n) * 8 + lane % 4 * 2;
        const float2 at = *(const float2*)(decay + COLUMN + first);
        // Above the diagonal the exponent may be positive: selected away, because a product with 0 could be NaN.
        const float w0 = first <= row ? s[n][0] * exp2_approximate(upper - at.x) : 0.0f;
        const float w1 = first + 1 <= row ? s[n][1] * exp2_approximate(upper - at.y) : 0.0f;
        const float w2 = first <= row + 8 ? s[n][2] * exp2_approximate(lower - at.x) : 0.0f;
        const float w3 = first + 1 <= row + 8 ? s[n][3] * exp2_approximate(lower - at.y) : 0.0f;
        const u32 to = mix + head * MIX_BYTES + lane % 4 * 4;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + Mix::offset(row, column + n)), "r"(pack(w0, w1)) : "memory");
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + Mix::offset(row + 8, column + n)), "r"(pack(w2, w3)) : "memory");
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ssd_chunk(const u16* __restrict__ x, const void* __restrict__ dt, const void* __restrict__ rate,
              const u16* __restrict__ b, const u16* __restrict__ c, const void* __restrict__ d,
              const u16* __restrict__ z, const void* __restrict__ dt_bias, const Held* __restrict__ initial_state,
              const int* __restrict__ cu_seqlens, const int* __restrict__ state_indices,
              const float* __restrict__ states, u16* __restrict__ o, Held* __restrict__ final_state, int tokens,
              int heads, int groups, int x_row, int dt_row, int b_row, int z_row, int segments, int dt_f32, int rate_f32, int d_f32, int bias_f32, int d_per_channel,
              int softplus, float dt_min, float dt_max) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int head_block = blockIdx.x * HEADS, sequence = blockIdx.z;
  const Segment segment(cu_seqlens, tokens, sequence, blockIdx.y, segments);
  if (!segment.there) return;
  const int slot = state_indices != nullptr ? state_indices[sequence] : sequence;
  if (slot < 0) {
    for (i64 i = thread; i < (i64)(segment.end - segment.first) * (WIDTH / 8); i += THREADS) {
      const i64 row = (segment.start + segment.first + i / (WIDTH / 8)) * heads + head_block;
      *(uint4*)(o + row * P + i % (WIDTH / 8) * 8) = make_uint4(0, 0, 0, 0);
    }
    return;
  }

  const Steps steps = {dt, rate, dt_bias, dt_min, dt_max, dt_f32, rate_f32, bias_f32, softplus};
  const int group = head_block / (heads / groups);

  auto load_chunk = [&](int first, i64 start, int end, int group) {
    const int thread = ask_thread();
    const u32 stage = base + first / Q % STAGES * STAGE_BYTES;
    const i64 token = start + first;
    const int valid = end - first;
    if (valid > 0) {
      const i64 projection = STRIDED ? token * b_row + group * N : (token * groups + group) * N;
      const i64 values = STRIDED ? token * x_row + head_block * P : (token * heads + head_block) * P;
      const int projection_row = STRIDED ? b_row : groups * N, value_row = STRIDED ? x_row : heads * P;
      Projection::load_range<Q, THREADS>(stage + C_AT, c + projection, projection_row, valid, thread);
      Projection::load_range<Q, THREADS>(stage + B_AT, b + projection, projection_row, valid, thread);
      Values::load_range<Q, THREADS>(stage + VALUES_AT, x + values, value_row, valid, thread);
    }
    copy_commit();
  };
  float* const tables = (float*)(shared + DECAYS_AT);
  auto table = [&](int first, int head) { return tables + (first / Q % 2 * HEADS + head) * (DECAYS * Q); };

  volatile Bounds* const bounds = (volatile Bounds*)(shared + BOUNDS_AT);
  if (thread == 0) {
    bounds->start = segment.start;
    bounds->end = segment.end;
    bounds->group = group;
  }
  load_chunk(segment.first, segment.start, segment.end, group);
  if (warp < HEADS) {
    RawSteps raw;
    raw.fetch(steps, segment.start * (STRIDED ? dt_row : heads) + head_block + warp, STRIDED ? dt_row : heads, segment.first, segment.end, lane);
    make_decays(table(segment.first, warp), raw, steps, steps.of_head(head_block + warp), segment.end - segment.first, lane);
  }
  State h;
  {
    const int head = warp / (P / (16 * COLUMN_TILES));
    const float* carried = nullptr;
    const Held* initial = nullptr;
    if (!segment.is_first) {
      wait_for_previous();
      carried = states + (((i64)sequence * (segments - 1) + blockIdx.y - 1) * heads + head_block + head) * (P * N);
    } else if (initial_state != nullptr) {
      initial = initial_state + ((i64)slot * heads + head_block + head) * (P * N);
    }
#if STATE_BF16
    if (segment.is_first) {
      read_state(h, initial, warp, lane);
    } else {
      read_state(h, carried, warp, lane);
    }
#else
    read_state(h, segment.is_first ? initial : carried, warp, lane);
#endif
  }
  float* const skips = (float*)(shared + SKIPS_AT);
  for (int i = thread; i < WIDTH; i += THREADS) {
    skips[i] = d == nullptr ? 0.0f : number(d, d_per_channel ? (i64)head_block * P + i : head_block + i / P, d_f32);
  }

#pragma unroll 1
  for (int first = segment.first, last = segment.end; first < last; first += Q, last = bounds->end) {
    copy_wait<0>();
    __syncthreads();  // this chunk has arrived; no warp reads the preceding one
    if (STAGES > 1) load_chunk(first + Q, bounds->start, bounds->end, bounds->group);
    const auto stage = [&] { return base + first / Q % STAGES * STAGE_BYTES; };
    {
      const int thread = ask_thread();
      make_mix(base + MIX_AT, stage() + B_AT, stage() + C_AT, table(first, 0), thread / 32, thread % 32);
    }
    __syncthreads();
    if (const int thread = ask_thread(), warp = thread / 32, lane = thread % 32;
        warp < HEADS && first + Q < bounds->end) {
      const i64 row = bounds->start * (STRIDED ? dt_row : heads) + head_block + warp;
      const int end = bounds->end;
      RawSteps raw;
      raw.fetch(steps, row, STRIDED ? dt_row : heads, first + Q, end, lane);
      RawSteps::announce(steps, row, STRIDED ? dt_row : heads, first + 2 * Q, end, lane);
      make_decays(table(first + Q, warp), raw, steps, steps.of_head(head_block + warp), end - first - Q, lane);
    }
    // A thread's head in the block, and its warp's first column of that head.
    const auto head_of = [](int thread) { return thread / 32 / (P / (16 * COLUMN_TILES)); };
    const auto column_of = [](int thread) {
      return thread / 32 % (P / (16 * COLUMN_TILES)) * (16 * COLUMN_TILES);
    };

    // ---- y = exp(a_i) C h^T.
    float y[TOKEN_STEPS][COLUMN_TILES * 2][4] = {};
    {
      const u32 c_lane = stage() + C_AT + Projection::lane_offset(ask_thread() % 32);
#pragma unroll
      for (int k = 0; k < DEPTH_STEPS; k++) {
        u32 right[COLUMN_TILES][4];
#pragma unroll
        for (int ct = 0; ct < COLUMN_TILES; ct++) {
#pragma unroll
          for (int half = 0; half < 2; half++) {
            right[ct][half * 2] = pack(h[ct][2 * k][half * 2], h[ct][2 * k][half * 2 + 1]);
            right[ct][half * 2 + 1] = pack(h[ct][2 * k + 1][half * 2], h[ct][2 * k + 1][half * 2 + 1]);
          }
        }
#pragma unroll
        for (int m = 0; m < TOKEN_STEPS; m++) {
          u32 a[4];
          load_matrix_x4(a, m * 16 * Projection::stride + Projection::advance(c_lane, k));
#pragma unroll
          for (int ct = 0; ct < COLUMN_TILES; ct++) {
            multiply(y[m][ct * 2], a, right[ct][0], right[ct][1]);
            multiply(y[m][ct * 2 + 1], a, right[ct][2], right[ct][3]);
          }
        }
      }
    }
    {
    const int thread = ask_thread(), lane = thread % 32;
    const float* const decay = table(first, head_of(thread));
#pragma unroll
    for (int m = 0; m < TOKEN_STEPS; m++) {
      const float upper = decay[FROM_START + m * 16 + lane / 4], lower = decay[FROM_START + m * 16 + lane / 4 + 8];
#pragma unroll
      for (int n = 0; n < COLUMN_TILES * 2; n++) {
        y[m][n][0] *= upper;
        y[m][n][1] *= upper;
        y[m][n][2] *= lower;
        y[m][n][3] *= lower;
      }
    }
    fade(h, decay[FROM_START + Q - 1]);
    }

    // ---- y += mix x, h += (to_end x)^T B, 16 tokens at a time.
    {
      const int thread = ask_thread(), warp = thread / 32, lane = thread % 32, head = head_of(thread);
      const float* const decay = table(first, head);
      const u32 value_lane = stage() + VALUES_AT + Values::lane_offset(lane);
      const u32 projection_lane = stage() + B_AT + Projection::lane_offset(lane);
      const u32 mix_lane = base + MIX_AT + head * MIX_BYTES + Mix::lane_offset(lane);
#pragma unroll
      for (int j = 0; j < TOKEN_STEPS; j++) {
        u32 values[COLUMN_TILES][4];
        load_values(values, value_lane + j * 16 * Values::stride, warp);
#pragma unroll
        for (int m = j; m < TOKEN_STEPS; m++) {
          u32 a[4];
          load_matrix_x4(a, m * 16 * Mix::stride + Mix::advance(mix_lane, j));
#pragma unroll
          for (int ct = 0; ct < COLUMN_TILES; ct++) {
            multiply(y[m][ct * 2], a, values[ct][0], values[ct][1]);
            multiply(y[m][ct * 2 + 1], a, values[ct][2], values[ct][3]);
          }
        }
        add_tokens(h, values, decay + TO_END + j * 16, projection_lane + j * 16 * Projection::stride, lane);
      }
    }

    // ---- Epilogue: skip connection, gate, output.
    const int thread = ask_thread(), lane = thread % 32, head = head_of(thread), own_column = column_of(thread);
    const u32 staging = base + STAGING_AT + thread / 32 * 16 * STAGING_STRIDE;
#pragma unroll
    for (int n = 0; n < COLUMN_TILES * 2; n++) {
      const float2 weight = *(const float2*)(skips + head * P + own_column + n * 8 + lane % 4 * 2);
      const u32 at = stage() + VALUES_AT + Values::offset(lane / 4, (head * P + own_column) / 8 + n) + lane % 4 * 4;
#pragma unroll
      for (int row = 0; row < TOKEN_STEPS * 2; row++) {  // 8 rows further the swizzle of chunks is the same
        u32 pair;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(at + row * 8 * Values::stride) : "memory");
        float(&to)[4] = y[row / 2][n];
        to[row % 2 * 2] = fmaf(low_half(pair), weight.x, to[row % 2 * 2]);
        to[row % 2 * 2 + 1] = fmaf(high_half(pair), weight.y, to[row % 2 * 2 + 1]);
      }
    }
    if (z != nullptr) {
#pragma unroll
      for (int row = 0; row < TOKEN_STEPS * 2; row++) {
        const int t = min(first + row * 8 + lane / 4, bounds->end - 1);
        const i64 row_at = STRIDED ? (bounds->start + t) * z_row + (head_block + head) * P
                                   : ((bounds->start + t) * heads + head_block + head) * P;
        const u16* const from = z + row_at + own_column + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < COLUMN_TILES * 2; n++) {
          const u32 gate = __ldg((const u32*)(from + n * 8));
          y[row / 2][n][row % 2 * 2] *= silu(low_half(gate));
          y[row / 2][n][row % 2 * 2 + 1] *= silu(high_half(gate));
        }
      }
    }
    const i64 start = bounds->start;
    const int end = bounds->end;
#pragma unroll
    for (int m = 0; m < TOKEN_STEPS; m++) {
#pragma unroll
      for (int n = 0; n < COLUMN_TILES * 2; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          asm volatile("st.shared.u32 [%0], %1;" ::"r"(staging + (lane / 4 + half * 8) * STAGING_STRIDE + n * 16 + lane % 4 * 4),
                       "r"(pack(y[m][n][half * 2], y[m][n][half * 2 + 1]))
                       : "memory");
        }
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < COLUMN_TILES; i++) {
        const int piece = i * 32 + lane, row = piece / (COLUMN_TILES * 2), part = piece % (COLUMN_TILES * 2);
        const int t = first + m * 16 + row;
        uint4 out;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                     : "r"(staging + row * STAGING_STRIDE + part * 16)
                     : "memory");
        if (t < end) {
          *(uint4*)(o + ((start + t) * heads + head_block + head) * P + own_column + part * 8) = out;
        }
      }
      __syncwarp();
    }
    if (STAGES == 1) {
      __syncthreads();
      load_chunk(first + Q, bounds->start, bounds->end, bounds->group);
    }
  }
  copy_wait<0>();
  // Read again, so that no register holds it through the loop.
  int again = blockIdx.z;
  asm volatile("" : "+r"(again));
  if (Segment(cu_seqlens, tokens, again, blockIdx.y, segments).is_last) {
    const i64 row = (i64)(state_indices != nullptr ? state_indices[again] : again) * heads + head_block;
    write_state(h, final_state + (row + warp / (P / (16 * COLUMN_TILES))) * (P * N), warp, lane);
  }
}
