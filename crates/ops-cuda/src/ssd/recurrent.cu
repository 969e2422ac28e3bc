// The state space scan token by token, for every GPU from sm_80 on: any P, any N, every storage type. One token is the
// decode step (selective_state_update), which reads the state once and writes it once.
//
//   h <- exp(dt A) h + dt x (outer) B,  y = h C + D x,  then y * silu(z)
//
// A warp has WARP_ROWS = 32 / LANES * ROWS rows of one head's state in registers as float; a row's N values are distributed over LANES
// lanes in pieces of VECTOR. The next token's inputs load while one is computed.
//
// x, z, o [B, T, H, P], B, C [B, T, G, N], dt [B, T, H], or packed with cu_seqlens [Nseq + 1]; A, dt_bias [H],
// D [H] or [H, P] (d_per_channel), f32 or storage; initial_state, final_state [slots, H, P, N] as in state.cuh; state_indices
// [Nseq] or null: negative is padding, which gives o = 0 and touches no state. z, D, dt_bias, initial_state may be null.
// x_row .. z_row are strides in elements between tokens of x, dt, B, C and z; those of B and C are whole vectors. The states may be one
// tensor, updated in place. States and indices are read before the preceding kernel in the stream has ended (PDL): it must not write them.
//
// Launch: grid (ceil(P / (WARPS * WARP_ROWS)), H, min(sequences, 65535)); block (32 * WARPS).
//
// Macros: DTYPE (f32, bf16, f16), STATE_BF16 (0, 1), N, VECTOR (divides N; of the states and of B and C up to 16 bytes), LANES
// (power of two up to 32), ROWS (power of two), WARPS, BLOCKS_PER_SM (register cap), ONE_TOKEN (1: no sequence is longer, nothing
// is loaded ahead).

#ifndef WARPS
#define WARPS 4
#endif
#ifndef ONE_TOKEN
#define ONE_TOKEN 0
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 4
#endif

constexpr int PIECES = ceil_div(N, LANES * VECTOR);  // of a row, per lane
constexpr int WARP_ROWS = 32 / LANES * ROWS;

// Sums over the lanes of a row: each step halves the number of rows per lane, as long as there are several.
// In the end sums[0 .. left) are those of rows `own` and the following ones.
template <int count, int span>
DEVICE void reduce(float* sums, int lane, int& own) {
  if constexpr (span > 1) {
    constexpr int far = span / 2;
    if constexpr (count > 1) {
      const bool upper = lane & far;
#pragma unroll
      for (int r = 0; r < count / 2; r++) {
        const float keep = upper ? sums[r + count / 2] : sums[r], give = upper ? sums[r] : sums[r + count / 2];
        sums[r] = keep + __shfl_xor_sync(0xffffffff, give, far);
      }
      own += upper ? count / 2 : 0;
      reduce<count / 2, far>(sums, lane, own);
    } else {
      sums[0] += __shfl_xor_sync(0xffffffff, sums[0], far);
      reduce<1, far>(sums, lane, own);
    }
  }
}

// Loads VECTOR adjacent elements of a state. Vector loads bypass L1.
DEVICE void load_state(float (&to)[VECTOR], const Held* at) {
#if STATE_BF16
  if constexpr (VECTOR == 1) {
    to[0] = __uint_as_float((u32)*at << 16);
  } else {
    u32 word[(VECTOR + 1) / 2];
    if constexpr (VECTOR == 8) {
      const uint4 four = __ldcg((const uint4*)at);
      word[0] = four.x;
      word[1] = four.y;
      word[2] = four.z;
      word[3] = four.w;
    } else if constexpr (VECTOR == 4) {
      const uint2 two = __ldcg((const uint2*)at);
      word[0] = two.x;
      word[1] = two.y;
    } else {
      word[0] = __ldcg((const u32*)at);
    }
#pragma unroll
    for (int w = 0; w < VECTOR / 2; w++) {
      const float2 pair = widen_states(word[w]);
      to[2 * w] = pair.x;
      to[2 * w + 1] = pair.y;
    }
  }
#else
  if constexpr (VECTOR == 4) {
    const float4 four = __ldcg((const float4*)at);
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
  } else {
#pragma unroll
    for (int v = 0; v < VECTOR; v++) to[v] = at[v];
  }
#endif
}

DEVICE void store_state(Held* at, const float (&from)[VECTOR]) {
#if STATE_BF16
  if constexpr (VECTOR == 8) {
    __stcg((uint4*)at, make_uint4(narrow_states(from[0], from[1]), narrow_states(from[2], from[3]),
                                  narrow_states(from[4], from[5]), narrow_states(from[6], from[7])));
  } else if constexpr (VECTOR == 4) {
    __stcg((uint2*)at, make_uint2(narrow_states(from[0], from[1]), narrow_states(from[2], from[3])));
  } else if constexpr (VECTOR == 2) {
    __stcg((u32*)at, narrow_states(from[0], from[1]));
  } else {
    *at = (Held)narrow_states(from[0], 0.0f);
  }
#else
  if constexpr (VECTOR == 4) {
    __stcg((float4*)at, make_float4(from[0], from[1], from[2], from[3]));
  } else {
#pragma unroll
    for (int v = 0; v < VECTOR; v++) at[v] = from[v];
  }
#endif
}

constexpr int LEFT = ROWS > LANES ? ROWS / LANES : 1;       // rows whose sums a lane ends with
constexpr int SHARERS = LANES > ROWS ? LANES / ROWS : 1;  // lanes that end with the same row

// The inputs of one token, as loaded.
struct Token {
  Stored<VECTOR> b[PIECES], c[PIECES];
  float x[ROWS], own_x[LEFT], z[LEFT];
  float step;
};

// Prefetches the rows of the block that is `ahead` further in launch order into L2: memory stays busy
// while the blocks of an SM compute and are replaced by the next ones.
DEVICE void announce(const Held* initial_state, const int* state_indices, int ahead, int sequences, int sequence, int heads,
                     int head_dim) {
  constexpr int BLOCK_ROWS = WARPS * WARP_ROWS;
  constexpr int LINE = 128 / sizeof(Held);
  const int of_sequence = gridDim.x * gridDim.y;
  const i64 block = ahead + blockIdx.x + (i64)gridDim.x * blockIdx.y + (i64)of_sequence * sequence;
  const i64 other = block / of_sequence;
  if (other >= sequences) return;
  const int slot = state_indices != nullptr ? state_indices[other] : (int)other;
  if (slot < 0) return;
  const int within = (int)(block - other * of_sequence), first = within % gridDim.x * BLOCK_ROWS;
  const i64 from = (((i64)slot * heads + within / gridDim.x) * head_dim + first) * N;
  const int end = min(BLOCK_ROWS, head_dim - first) * N;
  for (int i = threadIdx.x * LINE; i < end; i += LINE * 32 * WARPS) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(initial_state + from + i));
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS_PER_SM)
    ssd_recurrent(const char* __restrict__ x, const void* __restrict__ dt, const void* __restrict__ rate,
                  const char* __restrict__ b, const char* __restrict__ c, const void* __restrict__ d,
                  const char* __restrict__ z, const void* __restrict__ dt_bias,
                  const Held* __restrict__ initial_state, const int* __restrict__ cu_seqlens,
                  const int* __restrict__ state_indices, char* __restrict__ o, Held* __restrict__ final_state,
                  int sequences, int tokens, int heads, int groups, int head_dim, int x_row, int dt_row, int b_row, int c_row, int z_row, int dt_f32, int rate_f32, int d_f32,
                  int bias_f32, int d_per_channel, int softplus, float dt_min, float dt_max, int ahead) {
  const int lane = threadIdx.x % 32, head = blockIdx.y, group = head / (heads / groups);
  const int row_lane = lane % LANES;
  // This lane's rows are first .. first + ROWS.
  const int first = (blockIdx.x * WARPS + threadIdx.x / 32) * WARP_ROWS + lane / LANES * ROWS;
  int own = 0;
  let_next_start();
  if (first - lane / LANES * ROWS >= head_dim) return;  // whole warps

  for (int sequence = blockIdx.z; sequence < sequences; sequence += gridDim.z) {
    const i64 start = cu_seqlens != nullptr ? cu_seqlens[sequence] : (i64)sequence * tokens;
    const int length = cu_seqlens != nullptr ? (int)(cu_seqlens[sequence + 1] - start) : tokens;
    const int slot = state_indices != nullptr ? state_indices[sequence] : sequence;
    if (slot < 0) {
      wait_for_previous();
      if (row_lane == 0) {
        for (int t = 0; t < length; t++) {
          for (int r = first; r < min(first + ROWS, head_dim); r++) {
            const float zero[1] = {0.0f};
            Stored<1> out;
            out.set(zero);
            out.store(o + (((start + t) * heads + head) * head_dim + r) * ELEMENT_BYTES);
          }
        }
      }
      continue;
    }

    // ---- The state. Its loads are in flight while the token's are issued.
    float h[ROWS][PIECES][VECTOR];
    const i64 state = (((i64)slot * heads + head) * head_dim + first) * N;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
      for (int p = 0; p < PIECES; p++) {
        const int column = (p * LANES + row_lane) * VECTOR;
        const bool there = initial_state != nullptr && first + r < head_dim && (N % (LANES * VECTOR) == 0 || column < N);
#pragma unroll
        for (int v = 0; v < VECTOR; v++) h[r][p][v] = 0.0f;
        if (there) load_state(h[r][p], initial_state + state + r * N + column);
      }
    }
    if (ahead > 0 && initial_state != nullptr) {
      announce(initial_state, state_indices, ahead, sequences, sequence, heads, head_dim);
    }

    // ---- The head's parameters.
    // The rows whose outputs this lane ends with are the same for every token.
    {
      float none[ROWS] = {};
      own = 0;
      reduce<ROWS, LANES>(none, row_lane, own);
    }
    const float bias = dt_bias != nullptr ? number(dt_bias, head, bias_f32) : 0.0f;
    const float rate2 = number(rate, head, rate_f32) * 1.44269504f;
    float skip[LEFT];
#pragma unroll
    for (int l = 0; l < LEFT; l++) {
      const int r = min(first + own + l, head_dim - 1);
      skip[l] = d == nullptr ? 0.0f : number(d, d_per_channel ? (i64)head * head_dim + r : head, d_f32);
    }

    wait_for_previous();
    x = read_from_now_on(x);
    dt = read_from_now_on(dt);
    b = read_from_now_on(b);
    c = read_from_now_on(c);
    z = read_from_now_on(z);
    auto load = [&](Token& to, int t) {
      const i64 token = start + t, row = token * x_row + (i64)head * head_dim;
      const i64 b_at = token * b_row + (i64)group * N, c_at = token * c_row + (i64)group * N;
      to.step = number(dt, token * dt_row + head, dt_f32);
#pragma unroll
      for (int p = 0; p < PIECES; p++) {
        const int column = (p * LANES + row_lane) * VECTOR;
        if (N % (LANES * VECTOR) == 0 || column < N) {
          to.b[p].load(b + (b_at + column) * ELEMENT_BYTES);
          to.c[p].load(c + (c_at + column) * ELEMENT_BYTES);
        } else {
          to.b[p].clear();
          to.c[p].clear();
        }
      }
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        to.x[r] = number(x, row + min(first + r, head_dim - 1), false);
      }
#pragma unroll
      for (int l = 0; l < LEFT; l++) {
        const int channel = min(first + own + l, head_dim - 1);
        to.own_x[l] = number(x, row + channel, false);
        to.z[l] = z != nullptr ? number(z, token * z_row + (i64)head * head_dim + channel, false) : 0.0f;
      }
    };

    Token now;
    if (length > 0) load(now, 0);
    for (int t = 0; t < length; t++) {
      Token next;
      if (!ONE_TOKEN && t + 1 < length) load(next, t + 1);
      float step = now.step + bias;
      if (softplus && step <= 20.0f) step = log1pf(expf(step));
      step = fminf(fmaxf(step, dt_min), dt_max);
      const float decay = exp2_fast(step * rate2);
      float sums[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        const float weight = step * now.x[r];
        float sum = 0.0f;
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
#pragma unroll
          for (int v = 0; v < VECTOR; v++) {
            h[r][p][v] = fmaf(weight, now.b[p].get(v), decay * h[r][p][v]);
            sum = fmaf(h[r][p][v], now.c[p].get(v), sum);
          }
        }
        sums[r] = sum;
      }
      own = 0;
      reduce<ROWS, LANES>(sums, row_lane, own);
      if (row_lane % SHARERS == 0) {
#pragma unroll
        for (int l = 0; l < LEFT; l++) {
          const int r = first + own + l;
          float result[1] = {fmaf(skip[l], now.own_x[l], sums[l])};
          if (z != nullptr) result[0] *= silu(now.z[l]);
          Stored<1> out;
          out.set(result);
          if (r < head_dim) out.store(o + (((start + t) * heads + head) * head_dim + r) * ELEMENT_BYTES);
        }
      }
      if (!ONE_TOKEN) now = next;
    }

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
      for (int p = 0; p < PIECES; p++) {
        const int column = (p * LANES + row_lane) * VECTOR;
        if (first + r >= head_dim || (N % (LANES * VECTOR) != 0 && column >= N)) continue;
        store_state(final_state + state + r * N + column, h[r][p]);
      }
    }
  }
}
