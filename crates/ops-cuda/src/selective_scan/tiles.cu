// The selective scan of prompts, for every GPU from sm_80 on: any E, N up to 256, every storage type.
//
//   h <- exp(dt A) h + dt u B,  y = h . C + D u,  then y * silu(z),  of each channel
//
// A block processes CHANNELS channels of one group over a whole sequence. A channel's states are distributed over four lanes, in registers as
// float. Tiles of TOKENS tokens are loaded by cp.async, one ahead. In each tile dt and dt u are computed once per channel, and B and C converted
// once per block, to float in shared memory; then a lane processes the tokens, four at a time, so that four outputs are summed
// over four lanes at once and each lane ends with one of them. They are written over the u that they were computed from, and are stored
// in whole lines.
//
// Tensors, strides and padding are those of step.cu; here u, delta, B, C and z are aligned to whole pieces: PIECE (of channels) and
// PROJECTION (of states) elements, which divide the strides, E / G and N.
//
// Launch: grid (G * ceil(E / G / CHANNELS), sequences); block (4 * CHANNELS); dynamic shared memory up to the end of
// wide C.
//
// Macros: DTYPE (f32, bf16, f16), DELTA_F32 (1: delta is f32), N, CHANNELS (a multiple of 8), TOKENS (a multiple of 4), PIECE and
// PROJECTION (powers of two whose elements in storage are up to 16 bytes).

constexpr int LANES = 4, THREADS = CHANNELS * LANES;
constexpr int VECTOR = N > 8 ? 4 : N > 4 ? 2 : 1;
constexpr int PIECES = ceil_div(N, LANES * VECTOR);  // of a channel, per lane
constexpr int HELD = PIECES * VECTOR, PADDED = PIECES * LANES * VECTOR;
// Blocks per SM that the registers must allow. Without this bound the compiler spills a little to allow one more.
constexpr int RESIDENT = (HELD <= 16 ? 512 : 256) / THREADS;
constexpr int DELTA_BYTES = DELTA_F32 ? 4 : ELEMENT_BYTES;

// Rows of a stage in shared memory, padded by eight channels, so that those of four tokens are in different banks.
constexpr int ROW = (CHANNELS + 8) * ELEMENT_BYTES, DELTA_ROW = (CHANNELS + 8) * DELTA_BYTES;
constexpr int PROJECTION_ROW = round_up(N * ELEMENT_BYTES, 16);
constexpr int Z_AT = TOKENS * ROW, DELTA_AT = Z_AT + TOKENS * ROW, B_AT = DELTA_AT + TOKENS * DELTA_ROW;
constexpr int C_AT = B_AT + TOKENS * PROJECTION_ROW, STAGE_BYTES = C_AT + TOKENS * PROJECTION_ROW;
// After two stages: dt and dt u of each token and channel, then B and C of each token.
constexpr int STEPS_AT = 2 * STAGE_BYTES, WIDE_B_AT = STEPS_AT + TOKENS * CHANNELS * 8;
constexpr int WIDE_C_AT = WIDE_B_AT + TOKENS * PADDED * 4;

// Calls for each of `count` items, which are distributed over the threads of a block, adjacent items to adjacent threads.
template <int count, class Call>
DEVICE void each(Call call) {
  constexpr int rounds = ceil_div(count, THREADS);
#pragma unroll(rounds <= 8 ? rounds : 1)
  for (int round = 0; round < rounds; round++) {
    const int at = round * THREADS + threadIdx.x;
    if (count % THREADS == 0 || at < count) call(at);
  }
}

// Starts copying a piece of `bytes`; zeros unless `there`, and `from` is then any valid address.
template <int bytes>
DEVICE void copy_piece(u32 to, const char* from, bool there) {
  if constexpr (bytes == 32) {
    copy_async<16>(to, from, there);
    copy_async<16>(to + 16, from + 16, there);
  } else if constexpr (bytes >= 4) {
    copy_async<bytes>(to, from, there);
  } else {
    u16 element = 0;
    if (there) asm volatile("ld.global.u16 %0, [%1];" : "=h"(element) : "l"(from) : "memory");
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(element) : "memory");
  }
}

// Starts copying TOKENS rows of `columns` elements in pieces; zeros in rows from `count` on and columns from `there` on. The thread that
// copies a piece is the same for all rows of channels: write_rows() relies on it.
template <int columns, int piece, int bytes>
DEVICE void copy_rows(u32 to, int to_row, const char* from, int from_row, int count, int there) {
  constexpr int pieces = columns / piece;
  each<TOKENS * pieces>([&](int at) {
    const int row = at / pieces, column = at % pieces * piece;
    const bool valid = row < count && column < there;
    copy_piece<piece * bytes>(to + row * to_row + column * bytes, from + (valid ? ((i64)row * from_row + column) * bytes : 0),
                              valid);
  });
}

// Writes the outputs of `count` tokens, which are stored over their u.
DEVICE void write_rows(char* to, const unsigned char* from, int channels, int count, int there) {
  constexpr int pieces = CHANNELS / PIECE, bytes = PIECE * ELEMENT_BYTES;
  each<TOKENS * pieces>([&](int at) {
    const int row = at / pieces, column = at % pieces * PIECE;
    if (row >= count || column >= there) return;
    const unsigned char* const source = from + row * ROW + column * ELEMENT_BYTES;
    char* const target = to + ((i64)row * channels + column) * ELEMENT_BYTES;
    if constexpr (bytes == 16) {
      *(uint4*)target = *(const uint4*)source;
    } else if constexpr (bytes == 8) {
      *(uint2*)target = *(const uint2*)source;
    } else if constexpr (bytes == 4) {
      *(u32*)target = *(const u32*)source;
    } else {
      *(u16*)target = *(const u16*)source;
    }
  });
}

DEVICE float widened(const unsigned char* from) {
  if constexpr (STORAGE == STORED_f32) return *(const float*)from;
  return widen_half(*(const u16*)from);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    selective_scan_tiles(const char* __restrict__ u, const char* __restrict__ delta, const char* __restrict__ rates,
                         const char* __restrict__ b, const char* __restrict__ c, const char* __restrict__ d,
                         const char* __restrict__ z, const char* __restrict__ delta_bias,
                         const float* __restrict__ initial_state, const int* __restrict__ cu_seqlens,
                         const int* __restrict__ state_indices, char* __restrict__ o, float* __restrict__ final_state,
                         int sequences, int tokens, int channels, int groups, int u_row, int delta_row, int b_row, int c_row,
                         int z_row, int delta_f32, int rate_f32, int d_f32, int bias_f32, int delta_softplus) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  const int of_group = channels / groups, blocks = ceil_div(of_group, CHANNELS);
  const int group = blockIdx.x / blocks, within = blockIdx.x % blocks * CHANNELS, sequence = blockIdx.y;
  const int first_channel = group * of_group + within, there = min(CHANNELS, of_group - within);
  const int lane = threadIdx.x % LANES, own = threadIdx.x / LANES;
  let_next_start();
  const int slot = state_indices != nullptr ? state_indices[sequence] : sequence;
  const i64 start = cu_seqlens != nullptr ? cu_seqlens[sequence] : (i64)sequence * tokens;
  const int length = cu_seqlens != nullptr ? (int)(cu_seqlens[sequence + 1] - start) : tokens;
  o += (start * channels + first_channel) * ELEMENT_BYTES;

  // ---- The channel's parameters. Lanes past the last channel compute too; they write nothing.
  const bool is_own = own < there;
  const int channel = first_channel + min(own, there - 1);
  float h[HELD], rate[HELD];
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
#pragma unroll
    for (int v = 0; v < VECTOR; v++) {
      const int column = (p * LANES + lane) * VECTOR + v;
      rate[p * VECTOR + v] = column < N ? rate_of(number(rates, (i64)channel * N + column, rate_f32)) : 0.0f;
    }
  }
  const float skip = d != nullptr ? number(d, channel, d_f32) : 0.0f;
  // The channel whose steps this thread computes is a different one.
  const int step_channel = threadIdx.x % CHANNELS;
  const float bias =
      delta_bias != nullptr ? number(delta_bias, first_channel + min(step_channel, there - 1), bias_f32) : 0.0f;

  wait_for_previous();
  if (slot < 0) {
#pragma unroll 1
    for (int t = 0; t < length; t++) {
      const float zero[1] = {0.0f};
      Stored<1> out;
      out.set(zero);
      if ((int)threadIdx.x < there) out.store(o + ((i64)t * channels + threadIdx.x) * ELEMENT_BYTES);
    }
    return;
  }
  const i64 state = ((i64)slot * channels + channel) * N;
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
    const int column = (p * LANES + lane) * VECTOR;
    if constexpr (N % 4 == 0 && VECTOR == 4) {
      float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (initial_state != nullptr && column < N) four = __ldcg((const float4*)(initial_state + state + column));
      h[p * 4] = four.x;
      h[p * 4 + 1] = four.y;
      h[p * 4 + 2] = four.z;
      h[p * 4 + 3] = four.w;
    } else {
#pragma unroll
      for (int v = 0; v < VECTOR; v++) {
        h[p * VECTOR + v] = initial_state != nullptr && column + v < N ? initial_state[state + column + v] : 0.0f;
      }
    }
  }

  auto load = [&](int first) {
    const u32 stage = base + first / TOKENS % 2 * STAGE_BYTES;
    const i64 token = start + first;
    const int count = length - first;
    copy_rows<CHANNELS, PIECE, ELEMENT_BYTES>(stage, ROW, u + (token * u_row + first_channel) * ELEMENT_BYTES, u_row, count, there);
    copy_rows<CHANNELS, PIECE, DELTA_BYTES>(stage + DELTA_AT, DELTA_ROW, delta + (token * delta_row + first_channel) * DELTA_BYTES,
                                            delta_row, count, there);
    if (z != nullptr) {
      copy_rows<CHANNELS, PIECE, ELEMENT_BYTES>(stage + Z_AT, ROW, z + (token * z_row + first_channel) * ELEMENT_BYTES, z_row, count,
                                                there);
    }
    copy_rows<N, PROJECTION, ELEMENT_BYTES>(stage + B_AT, PROJECTION_ROW, b + (token * b_row + group * N) * ELEMENT_BYTES, b_row,
                                            count, N);
    copy_rows<N, PROJECTION, ELEMENT_BYTES>(stage + C_AT, PROJECTION_ROW, c + (token * c_row + group * N) * ELEMENT_BYTES, c_row,
                                            count, N);
    copy_commit();
  };
  auto leave = [&](int first) {
    write_rows(o + (i64)first * channels * ELEMENT_BYTES, shared + first / TOKENS % 2 * STAGE_BYTES, channels, length - first, there);
  };
  float2* const steps = (float2*)(shared + STEPS_AT);
  float* const wide_b = (float*)(shared + WIDE_B_AT);
  float* const wide_c = (float*)(shared + WIDE_C_AT);

  if (length > 0) load(0);
#pragma unroll 1
  for (int first = 0; first < length; first += TOKENS) {
    unsigned char* const stage = shared + first / TOKENS % 2 * STAGE_BYTES;
    const int count = min(TOKENS, length - first);
    copy_wait<0>();
    __syncthreads();
    // The preceding tile's outputs are in the buffer of the next tile, and a thread copies only to addresses whose outputs it has written.
    if (first > 0) leave(first - TOKENS);
    if (first + TOKENS < length) load(first + TOKENS);

    // ---- dt and dt u, and B and C in float. A missing token has a step of 0, which leaves states unchanged.
#pragma unroll
    for (int i = 0; i < TOKENS / LANES; i++) {
      const int token = i * LANES + threadIdx.x / CHANNELS;
      const unsigned char* const raw = stage + DELTA_AT + token * DELTA_ROW + step_channel * DELTA_BYTES;
      float step = (DELTA_F32 ? *(const float*)raw : widened(raw)) + bias;
      if (delta_softplus) step = softplus(step);
      if (token >= count) step = 0.0f;
      steps[token * CHANNELS + step_channel] =
          make_float2(step, step * widened(stage + token * ROW + step_channel * ELEMENT_BYTES));
    }
    each<TOKENS * PADDED>([&](int at) {
      const int token = at / PADDED, column = at % PADDED;
      const unsigned char* const raw = stage + token * PROJECTION_ROW + column * ELEMENT_BYTES;
      wide_b[at] = column < N ? widened(raw + B_AT) : 0.0f;
      wide_c[at] = column < N ? widened(raw + C_AT) : 0.0f;
    });
    __syncthreads();

    // ---- Four tokens.
#pragma unroll 1
    for (int t = 0; t < count; t += 4) {
      float sums[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float2 step = steps[(t + i) * CHANNELS + own];
        sums[i] = 0.0f;
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
          const int at = (t + i) * PADDED + (p * LANES + lane) * VECTOR;
          float of_b[VECTOR], of_c[VECTOR];
          if constexpr (VECTOR == 4) {
            *(float4*)of_b = *(const float4*)(wide_b + at);
            *(float4*)of_c = *(const float4*)(wide_c + at);
          } else {
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
              of_b[v] = wide_b[at + v];
              of_c[v] = wide_c[at + v];
            }
          }
#pragma unroll
          for (int v = 0; v < VECTOR; v++) {
            float& state = h[p * VECTOR + v];
            state = advance(state, step.x, rate[p * VECTOR + v], step.y * of_b[v]);
            sums[i] = fmaf(state, of_c[v], sums[i]);
          }
        }
      }
      // Lane l ends with the sum of token t + l.
      const bool upper = lane & 2, odd = lane & 1;
      const float even_sum = (upper ? sums[2] : sums[0]) + __shfl_xor_sync(0xffffffff, upper ? sums[0] : sums[2], 2);
      const float odd_sum = (upper ? sums[3] : sums[1]) + __shfl_xor_sync(0xffffffff, upper ? sums[1] : sums[3], 2);
      float y = (odd ? odd_sum : even_sum) + __shfl_xor_sync(0xffffffff, odd ? even_sum : odd_sum, 1);
      unsigned char* const place = stage + (t + lane) * ROW + own * ELEMENT_BYTES;
      y = fmaf(skip, widened(place), y);
      if (z != nullptr) y *= silu(widened(place + Z_AT));
      const float made[1] = {y};
      Stored<1> out;
      out.set(made);
      if constexpr (STORAGE == STORED_f32) *(u32*)place = out.word[0];
      else *(u16*)place = (u16)out.word[0];
    }
  }
  __syncthreads();
  if (length > 0) leave((length - 1) / TOKENS * TOKENS);

  if (!is_own) return;
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
    const int column = (p * LANES + lane) * VECTOR;
    if constexpr (N % 4 == 0 && VECTOR == 4) {
      if (column < N) {
        __stcg((float4*)(final_state + state + column), make_float4(h[p * 4], h[p * 4 + 1], h[p * 4 + 2], h[p * 4 + 3]));
      }
    } else {
#pragma unroll
      for (int v = 0; v < VECTOR; v++) {
        if (column + v < N) final_state[state + column + v] = h[p * VECTOR + v];
      }
    }
  }
}
