// Shared by the scans over chunks (gradient_forward_any.cu, gradient_reverse_any.cu): a block has PART columns of V of one head's
// state in registers, in tiles of 4 x 4, and a copy in shared memory. Requires gradient_any.cuh and state.cuh.

constexpr int THREADS = 256;
constexpr int PART = 32;
constexpr int ROW_TILES = K4 / 4;
constexpr int OWN_TILES = ceil_div(ROW_TILES * (PART / 4), THREADS);

DEVICE float load_state(const float* at) { return *at; }
DEVICE float load_state(const u16* at) { return __uint_as_float((u32)*at << 16); }
DEVICE void store_state(float* at, float value) { *at = value; }
DEVICE void store_state(u16* at, float value) { *at = (u16)narrow_states(value, 0.0f); }

struct State {
  float h[OWN_TILES][4][4];

  static DEVICE int row(int tile) { return tile / (PART / 4) * 4; }
  static DEVICE int column(int tile) { return tile % (PART / 4) * 4; }

  // [K, V] of a head, columns from `part`; null is zero.
  template <typename Stored>
  DEVICE void read(const Stored* from, int part, int thread) {
#pragma unroll
    for (int i = 0; i < OWN_TILES; i++) {
      const int tile = thread + i * THREADS;
#pragma unroll
      for (int e = 0; e < 16; e++) {
        const int c = row(tile) + e / 4, v = part + column(tile) + e % 4;
        h[i][e / 4][e % 4] = from != nullptr && c < K && v < V ? load_state(from + c * V + v) : 0.0f;
      }
    }
  }
  DEVICE void write(Held* to, int part, int thread) const {
#pragma unroll
    for (int i = 0; i < OWN_TILES; i++) {
      const int tile = thread + i * THREADS;
#pragma unroll
      for (int e = 0; e < 16; e++) {
        const int c = row(tile) + e / 4, v = part + column(tile) + e % 4;
        if (c < K && v < V) store_state(to + c * V + v, h[i][e / 4][e % 4]);
      }
    }
  }
  // To shared memory [K4, PART], and to the workspace [K, V4].
  DEVICE void snapshot(float* tile_memory, float* to, int part, int thread) const {
#pragma unroll
    for (int i = 0; i < OWN_TILES; i++) {
      const int tile = thread + i * THREADS;
      if (tile >= ROW_TILES * (PART / 4)) continue;
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float4 v = make_float4(h[i][e][0], h[i][e][1], h[i][e][2], h[i][e][3]);
        *(float4*)(tile_memory + (row(tile) + e) * PART + column(tile)) = v;
        if (row(tile) + e < K && part + column(tile) < V4) *(float4*)(to + (row(tile) + e) * V4 + part + column(tile)) = v;
      }
    }
  }
  DEVICE void fade(const float* decay, int thread) {
#pragma unroll
    for (int i = 0; i < OWN_TILES; i++) {
      const int tile = thread + i * THREADS;
      if (tile >= ROW_TILES * (PART / 4)) continue;
#pragma unroll
      for (int e = 0; e < 16; e++) h[i][e / 4][e % 4] *= decay[row(tile) + e / 4];
    }
  }
  // h += sign * left^T right, left [Q, K4], right [Q, PART].
  DEVICE void add(const float* left, const float* right, float sign, int thread) {
#pragma unroll
    for (int i = 0; i < OWN_TILES; i++) {
      const int tile = thread + i * THREADS;
      if (tile >= ROW_TILES * (PART / 4)) continue;
#pragma unroll 4
      for (int t = 0; t < Q; t++) {
        float l[4], r[4];
        unpack(l, *(const float4*)(left + t * K4 + row(tile)));
        unpack(r, *(const float4*)(right + t * PART + column(tile)));
#pragma unroll
        for (int e = 0; e < 16; e++) h[i][e / 4][e % 4] = fmaf(sign * l[e / 4], r[e % 4], h[i][e / 4][e % 4]);
      }
    }
  }
};

DEVICE void copy_floats(float* to, const float* from, int count, int thread) {  // a multiple of 4
  for (int at = thread * 4; at < count; at += THREADS * 4) *(float4*)(to + at) = *(const float4*)(from + at);
}

// Element (i, v) of keys [Q, K4] times a state [K4, PART].
DEVICE float read_state(const float* keys, const float* state, int i, int v) {
  float sum[4] = {};
#pragma unroll 4
  for (int c = 0; c < K4; c += 4) {
    float l[4];
    unpack(l, *(const float4*)(keys + i * K4 + c));
#pragma unroll
    for (int e = 0; e < 4; e++) sum[e] = fmaf(l[e], state[(c + e) * PART + v], sum[e]);
  }
  return sum[0] + sum[1] + (sum[2] + sum[3]);
}
