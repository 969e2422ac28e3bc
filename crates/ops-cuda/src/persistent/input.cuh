// x of a product: loaded, normalized, and stored in shared memory in f16. Requires weights.cuh.

// Stores a warp's columns, one load after the other. f16 has few exponents: values are scaled by the power of two that brings the largest
// below 2^15; returns its inverse.
template <int LOADS, int OF_LANE>
DEVICE float laid(const float (&value)[LOADS][OF_LANE], u32 to) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
#pragma unroll
    for (int j = 0; j < OF_LANE; j++) largest = fmaxf(largest, fabsf(value[i][j]));
  }
  const int exponent = min(268 - (int)(__reduce_max_sync(0xffffffff, __float_as_uint(largest)) >> 23), 253);
  const float there = __uint_as_float((u32)exponent << 23);
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const u32 at = to + (i * 32 + threadIdx.x % 32) * OF_LANE * 2;
    const u32 first = pair_f16(value[i][0] * there, value[i][1] * there);
    if constexpr (OF_LANE == 2) {
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(first) : "memory");
    } else {
      asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(first), "r"(pair_f16(value[i][2] * there, value[i][OF_LANE - 1] * there)) : "memory");
    }
  }
  __syncwarp();
  return __uint_as_float((u32)(254 - exponent) << 23);
}

// The columns that a warp multiplies: OF_WARP of each segment of x. A lane loads two adjacent ones in f32, or four in storage, at a time.
template <bool F32, int LOADS, bool NORMED>
struct Input {
  static constexpr int OF_LANE = F32 ? 2 : 4, OF_LOAD = 32 * OF_LANE;
  static constexpr int INPUTS = WORKING * LOADS * OF_LOAD, SEGMENTS = INPUTS / CHUNK, ROWS = 16 / SEGMENTS;
  static constexpr bool IS_NORMED = NORMED;
  static constexpr bool CONVOLVES = F32;  // only of a normalized residual stream
  static_assert(INPUTS % CHUNK == 0 && SEGMENTS <= 8 && INPUTS * 2 <= X_BYTES, "x is whole chunks and has room");
  float weight[LOADS][OF_LANE];
  float value[LOADS][OF_LANE];
  float squares = 0.0f;  // of the lane's columns
  float back;     // inverse of the power of two by which they are scaled

  static DEVICE u32 place(u32 x) { return x + threadIdx.x / 32 * (INPUTS * 2 / WORKING); }
  static DEVICE int column(int load) {
    const int at = load * OF_LOAD + (int)threadIdx.x % 32 * OF_LANE;
    return at / OF_WARP * CHUNK + (int)threadIdx.x / 32 * OF_WARP + at % OF_WARP;
  }

  // Loads the norm's weights, which no kernel writes.
  DEVICE void prepare(const float* norm) {
    if constexpr (NORMED) {
#pragma unroll
      for (int i = 0; i < LOADS; i++) {
        const float* const from = norm + column(i);
        if constexpr (F32) {
          const float2 two = __ldg((const float2*)from);
          weight[i][0] = two.x, weight[i][1] = two.y;
        } else {
          const float4 four = __ldg((const float4*)from);
          weight[i][0] = four.x, weight[i][1] = four.y, weight[i][2] = four.z, weight[i][3] = four.w;
        }
      }
    }
  }

  // Loads columns unchanged: from packets of that number, or from memory.
  DEVICE void take(const u64* packets, const char* x, u32 number) {
    Packets two[LOADS];
    if (packets != nullptr) {
      const u64* from[LOADS];
#pragma unroll
      for (int i = 0; i < LOADS; i++) from[i] = packets + column(i) / (F32 ? 1 : 2), two[i] = Packets::ask(from[i]);
      for (bool there = false; !there;) {
        there = true;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
          if (!two[i].are(number)) there = false, two[i] = Packets::ask(from[i]);
        }
      }
      __syncwarp();
    } else {
#pragma unroll
      for (int i = 0; i < LOADS; i++) two[i] = Packets::read(x + (i64)column(i) * (F32 ? 4 : 2));
    }
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const u32 words[2] = {(u32)two[i].a, (u32)two[i].b};
#pragma unroll
      for (int j = 0; j < OF_LANE; j++) value[i][j] = F32 ? __uint_as_float(words[j % 2]) : widen_half(j % 2 ? words[j / 2] >> 16 : words[j / 2] & 0xffff);
    }
  }
  // Multiplies by the norm's weights.
  DEVICE void weigh() {
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
#pragma unroll
      for (int j = 0; j < OF_LANE; j++) squares = fmaf(value[i][j], value[i][j], squares), value[i][j] *= weight[i][j];
    }
  }
  DEVICE void lay(u32 to) { back = laid<LOADS, OF_LANE>(value, to); }
};

// The residual stream, normalized.
using Stream = Input<true, CHOSEN ? HIDDEN / WORKING / 64 : 4, true>;
