// One token of each sequence (decode): the convolution and the shift of the state, for every GPU from sm_80 on.
//
// x [B, C], x_row elements between rows (a multiple of 4); o [B, C]; weight [C, WIDTH], bias [C] or null, f32 or storage; initial_state,
// final_state [slots, C, STATE] f32, or in the storage type with STATE_STORED, oldest first, STATE >= WIDTH - 1; state_indices [B] or null:
// negative is padding, which gives o = 0 and writes no state. C % 4 == 0, all tensors aligned to 16 bytes.
//
// A warp owns 128 channels, a lane 4 of them, of SEQUENCES sequences, so that weights are loaded once for these. States
// go through shared memory, so that adjacent lanes access adjacent 16 bytes: the 4 * STATE values of a lane start
// 16 * STATE bytes before the next lane's. Weights, states and state_indices are read before the preceding kernel has ended
// (PDL): it must not write them. initial_state and final_state may be one tensor.
//
// Launch: grid (ceil(C / 128 / WARPS), ceil(B / SEQUENCES)); block (32, WARPS).
//
// Macros: DTYPE, WIDTH (2 .. 4), STATE, SEQUENCES, WARPS, STATE_STORED.

#ifndef SEQUENCES
#define SEQUENCES 1
#endif
#ifndef WARPS
#define WARPS 2
#endif

constexpr int CHANNELS = 128;  // of a warp

// Four adjacent values of a state in the type it is stored in.
#ifdef STATE_STORED
typedef uint2 Piece;
#else
typedef float4 Piece;
#endif

DEVICE float4 widened(const float4& piece) { return piece; }
DEVICE float4 widened(const uint2& piece) {
  Stored<4> stored;
  stored.word[0] = piece.x;
  stored.word[1] = piece.y;
  return make_float4(stored.get(0), stored.get(1), stored.get(2), stored.get(3));
}

DEVICE void narrow(float4& to, const float4& values) { to = values; }
DEVICE void narrow(uint2& to, const float4& values) {
  const float four[4] = {values.x, values.y, values.z, values.w};
  Stored<4> stored;
  stored.set(four);
  to = make_uint2(stored.word[0], stored.word[1]);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    conv1d_update(const char* __restrict__ x, const void* __restrict__ weight, const void* __restrict__ bias,
                  const void* __restrict__ initial_state, const int* __restrict__ state_indices, char* __restrict__ o,
                  void* __restrict__ final_state, int sequences, int channels, int x_row, int weight_f32, int bias_f32,
                  int use_silu) {
  __shared__ float4 shared[WARPS][SEQUENCES][32 * STATE];
  float4(*const tile)[32 * STATE] = shared[threadIdx.y];
  let_next_start();
  const int lane = threadIdx.x;
  const int first = (blockIdx.x * WARPS + threadIdx.y) * CHANNELS, channel = first + lane * 4;
  const bool inside = channel < channels;
  const int pieces = min(CHANNELS, channels - first) / 4 * STATE;  // of 16 bytes, negative past the end
  const int begin = blockIdx.y * SEQUENCES;

  int slots[SEQUENCES];
#pragma unroll
  for (int s = 0; s < SEQUENCES; s++) {
    const int sequence = begin + s;
    slots[s] = sequence >= sequences ? -1 : state_indices != nullptr ? __ldg(state_indices + sequence) : sequence;
  }
  Piece loaded[SEQUENCES][STATE];
  Stored<4> rows[SEQUENCES];
#pragma unroll
  for (int s = 0; s < SEQUENCES; s++) {
    if (slots[s] < 0) continue;
    const Piece* const from = (const Piece*)initial_state + ((i64)slots[s] * channels + first) * STATE / 4;
#pragma unroll
    for (int p = 0; p < STATE; p++) {
      if (p * 32 + lane < pieces) loaded[s][p] = __ldcs(from + p * 32 + lane);
    }
  }
  float taps[4][WIDTH] = {}, offset[4] = {};
  if (inside) {
#pragma unroll
    for (int v = 0; v < 4; v++) numbers<WIDTH>(taps[v], weight, (i64)(channel + v) * WIDTH, weight_f32);
    if (bias != nullptr) numbers<4>(offset, bias, channel, bias_f32);
  }
  wait_for_previous();
  x = read_from_now_on(x);
#pragma unroll
  for (int s = 0; s < SEQUENCES; s++) {
    if (slots[s] >= 0 && inside) rows[s].load(x + ((i64)(begin + s) * x_row + channel) * ELEMENT_BYTES);
  }
#pragma unroll
  for (int s = 0; s < SEQUENCES; s++) {
#pragma unroll
    for (int p = 0; p < STATE; p++) tile[s][p * 32 + lane] = widened(loaded[s][p]);
  }
  __syncwarp();
#pragma unroll
  for (int s = 0; s < SEQUENCES; s++) {
    if (begin + s >= sequences) break;
    float* const mine = (float*)(tile[s] + lane * STATE);
    float result[4] = {};
    if (slots[s] >= 0 && inside) {
      float held[4 * STATE];
#pragma unroll
      for (int p = 0; p < STATE; p++) {
        const float4 piece = tile[s][lane * STATE + p];
        held[p * 4] = piece.x;
        held[p * 4 + 1] = piece.y;
        held[p * 4 + 2] = piece.z;
        held[p * 4 + 3] = piece.w;
      }
      float kept[4 * STATE];
#pragma unroll
      for (int v = 0; v < 4; v++) {
        const float now = rows[s].get(v);
        float sum = offset[v];
#pragma unroll
        for (int w = 0; w + 1 < WIDTH; w++) sum = fmaf(taps[v][w], held[v * STATE + STATE - WIDTH + 1 + w], sum);
        sum = fmaf(taps[v][WIDTH - 1], now, sum);
        result[v] = use_silu ? silu(sum) : sum;
#pragma unroll
        for (int p = 0; p < STATE; p++) kept[v * STATE + p] = p + 1 < STATE ? held[v * STATE + p + 1] : now;
      }
#pragma unroll
      for (int p = 0; p < STATE; p++) {
        ((float4*)mine)[p] = make_float4(kept[p * 4], kept[p * 4 + 1], kept[p * 4 + 2], kept[p * 4 + 3]);
      }
    }
    if (inside) {
      Stored<4> out;
      out.set(result);
      out.store(o + ((i64)(begin + s) * channels + channel) * ELEMENT_BYTES);
    }
  }
  __syncwarp();
#pragma unroll
  for (int s = 0; s < SEQUENCES; s++) {
    if (slots[s] < 0) continue;
    Piece* const to = (Piece*)final_state + ((i64)slots[s] * channels + first) * STATE / 4;
#pragma unroll
    for (int p = 0; p < STATE; p++) {
      Piece piece;
      narrow(piece, tile[s][p * 32 + lane]);
      if (p * 32 + lane < pieces) __stcs(to + p * 32 + lane, piece);
    }
  }
}
