// The selective scan token by token, for every GPU from sm_80 on: any E, any N, every storage type. One token is the decode step,
// which reads the state once and writes it once.
//
//   h <- exp(dt A) h + dt u B,  y = h . C + D u,  then y * silu(z),  of each channel
//
// A channel's N states are distributed over LANES lanes in pieces of VECTOR, in registers as float. A block keeps the rates of its channels
// for all of its sequences; the next one's states load while one is computed.
//
// u, delta, z, o [B, T, E], B, C [B, T, G, N], or packed with cu_seqlens [Nseq + 1]; A [E, N], D, delta_bias [E], and delta f32 or
// storage; initial_state, final_state f32 [slots, E, N]; state_indices [Nseq] or null: negative is padding, which gives o = 0 and
// touches no state. D, z, delta_bias, initial_state may be null. u_row .. z_row are strides in elements between tokens of u, delta, B, C and z;
// those of B and C are whole vectors. The states may be one tensor, updated in place. States and state_indices are read before the
// preceding kernel in the stream has ended (PDL): it must not write them.
//
// Launch: grid (ceil(E / (THREADS / LANES)), up to min(sequences, 65535)); block (THREADS).
//
// Macros: DTYPE (f32, bf16, f16), N, VECTOR (divides N; 4 f32 are 16 bytes), LANES (power of two up to 32), THREADS, ONE_TOKEN (1: no
// sequence is longer, nothing is loaded ahead).

constexpr int PIECES = ceil_div(N, LANES * VECTOR);  // of a channel, per lane
constexpr int HELD = PIECES * VECTOR;

// First column of a lane's p-th piece of a channel's states; N or more if it has none.
DEVICE int column_of(int lane, int p) { return (p * LANES + lane) * VECTOR; }
DEVICE bool is_there(int column) { return N % (LANES * VECTOR) == 0 || column < N; }

// A lane's states of a channel; zeros if `from` is null.
DEVICE void load_states(float (&h)[HELD], const float* from, int lane) {
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
    const int column = column_of(lane, p);
    const bool there = from != nullptr && is_there(column);
    if constexpr (VECTOR == 4) {
      float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (there) four = __ldcg((const float4*)(from + column));
      h[p * 4] = four.x;
      h[p * 4 + 1] = four.y;
      h[p * 4 + 2] = four.z;
      h[p * 4 + 3] = four.w;
    } else {
#pragma unroll
      for (int v = 0; v < VECTOR; v++) h[p * VECTOR + v] = there ? from[column + v] : 0.0f;
    }
  }
}

DEVICE void store_states(const float (&h)[HELD], float* to, int lane) {
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
    const int column = column_of(lane, p);
    if (!is_there(column)) continue;
    if constexpr (VECTOR == 4) {
      __stcg((float4*)(to + column), make_float4(h[p * 4], h[p * 4 + 1], h[p * 4 + 2], h[p * 4 + 3]));
    } else {
#pragma unroll
      for (int v = 0; v < VECTOR; v++) to[column + v] = h[p * VECTOR + v];
    }
  }
}

// The inputs of one token, as loaded.
struct Token {
  Stored<VECTOR> b[PIECES], c[PIECES];
  u32 u, z, delta;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    selective_scan_step(const char* __restrict__ u, const char* __restrict__ delta, const char* __restrict__ rates,
                        const char* __restrict__ b, const char* __restrict__ c, const char* __restrict__ d,
                        const char* __restrict__ z, const char* __restrict__ delta_bias,
                        const float* __restrict__ initial_state, const int* __restrict__ cu_seqlens,
                        const int* __restrict__ state_indices, char* __restrict__ o, float* __restrict__ final_state,
                        int sequences, int tokens, int channels, int groups, int u_row, int delta_row, int b_row, int c_row,
                        int z_row, int delta_f32, int rate_f32, int d_f32, int bias_f32, int delta_softplus) {
  const int lane = threadIdx.x % LANES;
  const int asked = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
  // Lanes past the last channel compute too, because sums are over whole warps; they write nothing.
  const bool there = asked < channels;
  const int channel = min(asked, channels - 1);
  const int states = channels * N, own = channel * N;
  let_next_start();

  auto slot_of = [&](int sequence) { return state_indices != nullptr ? state_indices[sequence] : sequence; };
  auto before = [&](float (&to)[HELD], int slot) {
    load_states(to, initial_state == nullptr || slot < 0 ? nullptr : initial_state + own + (i64)slot * states, lane);
  };
  int sequence = blockIdx.y, slot = slot_of(sequence);
  float h[HELD], rate[HELD];
  before(h, slot);
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
    const int column = column_of(lane, p);
    float of[VECTOR] = {};
    if (is_there(column)) numbers<VECTOR>(of, rates, own + column, rate_f32);
#pragma unroll
    for (int v = 0; v < VECTOR; v++) rate[p * VECTOR + v] = rate_of(of[v]);
  }
  const float bias = delta_bias != nullptr ? number(delta_bias, channel, bias_f32) : 0.0f;
  const float skip = d != nullptr ? number(d, channel, d_f32) : 0.0f;
  const int projection = channel / (channels / groups) * N + lane * VECTOR;

  wait_for_previous();
  // Addresses of this channel in token 0: those of another token are one multiplication away.
  const int delta_bytes = delta_f32 ? 4 : ELEMENT_BYTES;
  u = read_from_now_on(u) + (i64)channel * ELEMENT_BYTES;
  delta = read_from_now_on(delta) + (i64)channel * delta_bytes;
  b = read_from_now_on(b) + (i64)projection * ELEMENT_BYTES;
  c = read_from_now_on(c) + (i64)projection * ELEMENT_BYTES;
  const bool gated = z != nullptr;
  z = read_from_now_on(z) + (i64)channel * ELEMENT_BYTES;
  o += (i64)channel * ELEMENT_BYTES;
  u_row *= ELEMENT_BYTES;
  delta_row *= delta_bytes;
  b_row *= ELEMENT_BYTES;
  c_row *= ELEMENT_BYTES;
  z_row *= ELEMENT_BYTES;
  auto load = [&](Token& to, int token) {
    to.delta = load_number(delta + (i64)token * delta_row, 0, delta_f32);
    to.u = load_number(u + (i64)token * u_row, 0, false);
    to.z = gated ? load_number(z + (i64)token * z_row, 0, false) : 0;
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
      if (is_there(column_of(lane, p))) {
        to.b[p].load(b + (i64)token * b_row + p * LANES * Stored<VECTOR>::bytes);
        to.c[p].load(c + (i64)token * c_row + p * LANES * Stored<VECTOR>::bytes);
      } else {
        to.b[p].clear();
        to.c[p].clear();
      }
    }
  };
  const int o_row = channels * ELEMENT_BYTES;
  auto write = [&](int token, float y) {
    const float made[1] = {y};
    Stored<1> out;
    out.set(made);
    if (lane == 0 && there) out.store(o + (i64)token * o_row);
  };

#pragma unroll 1
  while (true) {
    const int following = sequence + gridDim.y;
    int next_slot = -1;
    float next[HELD] = {};
    if (following < sequences) {
      next_slot = slot_of(following);
      before(next, next_slot);
    }
    const int start = cu_seqlens != nullptr ? cu_seqlens[sequence] : sequence * tokens;
    const int length = cu_seqlens != nullptr ? cu_seqlens[sequence + 1] - start : tokens;
    if (slot < 0) {
#pragma unroll 1
      for (int t = 0; t < length; t++) write(start + t, 0.0f);
    } else {
      Token now;
      if (length > 0) load(now, start);
#pragma unroll 1
      for (int t = 0; t < length; t++) {
        Token ahead;
        if (!ONE_TOKEN && t + 1 < length) load(ahead, start + t + 1);
        float step = number_of(now.delta, delta_f32) + bias;
        if (delta_softplus) step = softplus(step);
        const float value = number_of(now.u, false), input = step * value;
        float sum = 0.0f;
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
#pragma unroll
          for (int v = 0; v < VECTOR; v++) {
            float& state = h[p * VECTOR + v];
            state = advance(state, step, rate[p * VECTOR + v], input * now.b[p].get(v));
            sum = fmaf(state, now.c[p].get(v), sum);
          }
        }
#pragma unroll
        for (int far = LANES / 2; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffff, sum, far);
        sum = fmaf(skip, value, sum);
        if (gated) sum *= silu(number_of(now.z, false));
        write(start + t, sum);
        if (ONE_TOKEN) break;
        now = ahead;
      }
      if (there) store_states(h, final_state + own + (i64)slot * states, lane);
    }
    if (following >= sequences) break;
    sequence = following;
    slot = next_slot;
#pragma unroll
    for (int e = 0; e < HELD; e++) h[e] = next[e];
  }
}
