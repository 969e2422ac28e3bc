// Causal convolution over channel-last tokens (consecutive tokens are one row of channels apart), for sm_80 and later.
//
//   o[t, c] = act(bias[c] + sum over w of weight[c, w] x[t - WIDTH + 1 + w, c])
//
// A thread computes VECTOR adjacent channels of `segment` tokens of a sequence. The last WIDTH - 1 rows stay in
// its registers in float32; AHEAD rows load while AHEAD are computed. A segment reads the WIDTH - 1 rows before
// it again (from L2), or the state at the start of a sequence; the last segment writes the state.
//
// x [B, T, C], x_row elements between tokens, or packed [total, C] with cu_seqlens [Nseq + 1]; o likewise, contiguous; weight [C, WIDTH], bias
// [C] or null, f32 or storage; initial_state [slots, C, state_len] f32 or null; final_state likewise (state_len = WIDTH - 1 without an initial
// one); state_indices [Nseq] or null: negative is padding, which gives o = 0 and writes no state; state_positions [Nseq] or null: with
// positions the states are ring buffers. x, o and x_row aligned to VECTOR elements, C % VECTOR == 0.
//
// Launch: grid (ceil(C / VECTOR / 32) * ceil(ceil(longest / segment) / WARPS), min(sequences, 65535)), at least one
// segment even of no tokens; block (32, WARPS).
//
// Macros: DTYPE (f32, bf16, f16), WIDTH (2 .. 4), VECTOR (VECTOR elements are at most 16 bytes), AHEAD, WARPS.

#ifndef AHEAD
#define AHEAD 8
#endif
#ifndef WARPS
#define WARPS 4
#endif

// Without a bound the compiler uses 96 registers, which spills on sm_80; a bound of four blocks per SM allows 128.
#if __CUDA_ARCH__ == 800
#define BOUNDS __launch_bounds__(32 * WARPS, 4)
#else
#define BOUNDS __launch_bounds__(32 * WARPS)
#endif

constexpr int BEFORE = WIDTH - 1;

// Column of a state that has token t (t < 0: before the sequence) when `seen` tokens of the sequence are in it.
DEVICE int state_column(int t, int seen, int state_len, const int* positions, int sequence) {
  if (positions == nullptr) return state_len - seen + t;
  const int column = (positions[sequence] % state_len + t % state_len) % state_len;
  return column < 0 ? column + state_len : column;
}

extern "C" __global__ void BOUNDS
    conv1d_channel_last(const char* __restrict__ x, const void* __restrict__ weight, const void* __restrict__ bias,
                   const float* __restrict__ initial_state, const int* __restrict__ cu_seqlens,
                   const int* __restrict__ state_indices, const int* __restrict__ state_positions,
                   char* __restrict__ o, float* __restrict__ final_state, int sequences, int tokens, int channels,
                   int state_len, int segment, int x_row, int weight_f32, int bias_f32, int use_silu) {
  typedef Stored<VECTOR> Row;
  const int channel_blocks = ceil_div(channels, 32 * VECTOR);
  const int channel = (blockIdx.x % channel_blocks * 32 + threadIdx.x) * VECTOR;
  const int first = (blockIdx.x / channel_blocks * WARPS + threadIdx.y) * segment;
  if (channel >= channels) return;

  const i64 row_bytes = (i64)channels * ELEMENT_BYTES, x_bytes = (i64)x_row * ELEMENT_BYTES;

  for (int sequence = blockIdx.y; sequence < sequences; sequence += gridDim.y) {
    const i64 start = cu_seqlens != nullptr ? cu_seqlens[sequence] : (i64)sequence * tokens;
    const int length = cu_seqlens != nullptr ? (int)(cu_seqlens[sequence + 1] - start) : tokens;
    // The first segment of an empty sequence still copies the state.
    if (first >= length && first > 0) continue;
    const int last = min(length, first + segment);
    const char* const base = x + start * x_bytes + (i64)channel * ELEMENT_BYTES;
    const char* from = base + first * x_bytes;
    char* to = o + (start + first) * row_bytes + (i64)channel * ELEMENT_BYTES;
    const int slot = state_indices != nullptr ? state_indices[sequence] : sequence;
    if (slot < 0) {
      Row zero;
      zero.clear();
      for (int t = first; t < last; t++, to += row_bytes) zero.store(to);
      continue;
    }
    const i64 state = ((i64)slot * channels + channel) * state_len;

    // The first rows are loaded before their other operands.
    Row rows[AHEAD];
    const bool whole = first + AHEAD <= last;
    if (whole) {
#pragma unroll
      for (int a = 0; a < AHEAD; a++) rows[a].load(from + a * x_bytes);
    }
    // The BEFORE rows before them, in float, since they may be from a state.
    float before[BEFORE][VECTOR];
#pragma unroll
    for (int b = 0; b < BEFORE; b++) {
      const int t = first - BEFORE + b;
      Row row;
      row.clear();
      if (t >= 0) row.load(from + (t - first) * x_bytes);
#pragma unroll
      for (int v = 0; v < VECTOR; v++) {
        before[b][v] = row.get(v);
        if (t < 0 && initial_state != nullptr) {
          before[b][v] =
              initial_state[state + v * state_len + state_column(t, 0, state_len, state_positions, sequence)];
        }
      }
    }

    float taps[VECTOR][WIDTH], offset[VECTOR] = {};
#pragma unroll
    for (int v = 0; v < VECTOR; v++) numbers<WIDTH>(taps[v], weight, (i64)(channel + v) * WIDTH, weight_f32);
    if (bias != nullptr) numbers<VECTOR>(offset, bias, channel, bias_f32);

    auto compute = [&](const Row& row) {
      float now[VECTOR], result[VECTOR];
#pragma unroll
      for (int v = 0; v < VECTOR; v++) {
        now[v] = row.get(v);
        float sum = offset[v];
#pragma unroll
        for (int b = 0; b < BEFORE; b++) sum = fmaf(taps[v][b], before[b][v], sum);
        sum = fmaf(taps[v][BEFORE], now[v], sum);
        result[v] = use_silu ? silu(sum) : sum;
#pragma unroll
        for (int b = 0; b + 1 < BEFORE; b++) before[b][v] = before[b + 1][v];
        before[BEFORE - 1][v] = now[v];
      }
      Row out;
      out.set(result);
      out.store(to);
      to += row_bytes;
    };

    int t = first;
    if (whole) {
      from += AHEAD * x_bytes;
      for (; t + 2 * AHEAD <= last; t += AHEAD) {
        Row next[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) next[a].load(from + a * x_bytes);
        from += AHEAD * x_bytes;
#pragma unroll
        for (int a = 0; a < AHEAD; a++) compute(rows[a]);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) rows[a] = next[a];
      }
#pragma unroll
      for (int a = 0; a < AHEAD; a++) compute(rows[a]);
      t += AHEAD;
    }
    for (; t < last; t++, from += x_bytes) {
      Row row;
      row.load(from);
      compute(row);
    }

    if (last == length) {
      for (int t = length - state_len; t < length; t++) {
        const int column = state_column(t, length, state_len, state_positions, sequence);
        Row row;
        row.clear();
        if (t >= 0) row.load(base + t * x_bytes);
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
          float value = row.get(v);
          if (t < 0 && initial_state != nullptr) {
            value = initial_state[state + v * state_len + state_column(t, 0, state_len, state_positions, sequence)];
          }
          final_state[state + v * state_len + column] = value;
        }
      }
    }
  }
}
