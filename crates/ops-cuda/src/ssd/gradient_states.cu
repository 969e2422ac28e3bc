// States of the gradient of ssd, the second of five launches (steps, states, chunk, sums, reduce): by MMA (mma.sync), from sm_80 on.
//
// Per head, with a = cumsum of D A within a chunk of 64 tokens, L its last token, D_ the step sizes:
//   forward:  entering[chunk] = h;  h <- exp(a_L) h + sum over t of exp(a_L - a_t) D_t x_t (outer) B_t
//   reverse:  leaving[chunk]  = g;  g <- exp(a_L) g + sum over t of exp(a_t) dy_t (outer) C_t
// A block scans one head of a sequence in one direction. A warp owns 16 rows of P and a quarter of the columns of N in registers.
// A value times its weight is multiplied as a sum of two values of the storage type, in two MMAs. Rounded to one bf16 value, it would give
// dA an error of 5.6e-3 instead of 1e-3 in calls without initial state, D and bias.
//
// x, dy [B, T, H, P], b, c [B, T, G, N], or packed with cu_seqlens [Nseq + 1] (null: dense); initial_state, final_gradient,
// initial_gradient [Nseq, H, P, N] as in state.cuh, each may be null. Workspace: weights from gradient_steps.cu; entering, leaving
// [slots, H, P, N] in the storage type, columns permuted (gradient.cuh). All 16-byte aligned.
// x_row, b_row (of c too) are strides in elements between tokens, multiples of 8; dy is contiguous.
//
// Launch: grid (H, 2, Nseq); block (512); dynamic shared memory SHARED_BYTES = 4 * 24576 + 4 * 272 for P 64, N 128.
// Macros: DTYPE (bf16, f16), P (64), N (128), STATE_BF16 (0, 1).

constexpr int STAGES = 4;
constexpr int SCAN_THREADS = 512;
constexpr int N_PARTS = SCAN_THREADS / 32 / (P / 16);
constexpr int TILES = N / 8 / N_PARTS;  // of 8 columns per warp
static_assert(P % 16 == 0 && N_PARTS * (P / 16) == SCAN_THREADS / 32 && TILES % 4 == 0, "tiles do not fit");
typedef Rows<N> Projection;
typedef Rows<P> Values;
constexpr int PROJECTION_AT = Q * Values::stride;
constexpr int STAGE_BYTES = PROJECTION_AT + Q * Projection::stride;
constexpr int WEIGHTS_AT = STAGES * STAGE_BYTES;
constexpr int SHARED_BYTES = WEIGHTS_AT + STAGES * WEIGHT_BYTES;

// Two stored values times their weights (a rounded weight and its remainder), as a rounded product and its remainder.
DEVICE void weigh(u32 pair, uint2 weight, u32& product, u32& remainder) {
  product = fma_pair(pair, weight.x, fma_pair(pair, weight.y, 0x80008000));  // the constant is -0 twice
  remainder = fma_pair(pair, weight.y, fma_pair(pair, weight.x, product ^ 0x80008000));
}

DEVICE float2 load_pair(const float* at) { return *(const float2*)at; }
DEVICE float2 load_pair(const u16* at) { return widen_states(*(const u32*)at); }
DEVICE void store_pair(float* at, float first, float second) { *(float2*)at = make_float2(first, second); }
DEVICE void store_pair(u16* at, float first, float second) { *(u32*)at = narrow_states(first, second); }

extern "C" __global__ void __launch_bounds__(SCAN_THREADS, 1)
    ssd_gradient_states(const u16* __restrict__ x, const u16* __restrict__ dy, const u16* __restrict__ b, const u16* __restrict__ c,
                        const Held* __restrict__ initial_state, const Held* __restrict__ final_gradient,
                        const int* __restrict__ cu_seqlens, const u32* __restrict__ weights, u16* __restrict__ entering,
                        u16* __restrict__ leaving, Held* __restrict__ initial_gradient, int tokens, int heads, int groups,
                        int x_row, int b_row) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int head = blockIdx.x, sequence = blockIdx.z;
  const bool reverse = blockIdx.y != 0;
  const Chunks chunks(cu_seqlens, tokens, sequence);
  const int group = head / (heads / groups);
  auto chunk_of = [&](int i) { return reverse ? chunks.count - 1 - i : i; };

  const int value_row = reverse ? heads * P : x_row;
  const u16* const values = (reverse ? dy : x) + chunks.start * value_row + head * P;
  const u16* const projection = (reverse ? c : b) + chunks.start * b_row + group * N;
  auto load = [&](int i) {
    if (i < chunks.count) {
      const u32 stage = base + i % STAGES * STAGE_BYTES;
      const int first = chunk_of(i) * Q;
      Values::load_range<Q, SCAN_THREADS>(stage, values + (i64)first * value_row, value_row, chunks.length - first, thread);
      Projection::load_range<Q, SCAN_THREADS>(stage + PROJECTION_AT, projection + (i64)first * b_row, b_row,
                                              chunks.length - first, thread);
      if (thread < WEIGHT_BYTES / 16) {
        const i64 row = (i64)(chunks.slot + chunk_of(i)) * heads + head;
        copy_async<16>(base + WEIGHTS_AT + i % STAGES * WEIGHT_BYTES + thread * 16,
                       weights + (row * 2 + reverse) * WEIGHT_WORDS + thread * 4);
      }
    }
    copy_commit();
  };

#pragma unroll 1
  for (int i = 0; i < STAGES - 1; i++) load(i);
  const int own_row = warp % (P / 16) * 16, part = warp / (P / 16);
  const i64 own_state = ((i64)sequence * heads + head) * (P * N) + (own_row + lane / 4) * N + part * (TILES * 8) + lane % 4 * 2;
  float h[TILES][4];
  {
    const Held* const from = reverse ? final_gradient : initial_state;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float2 pair = make_float2(0.0f, 0.0f);
        if (from != nullptr) pair = load_pair(from + own_state + half * 8 * N + n * 8);
        h[n][half * 2] = pair.x;
        h[n][half * 2 + 1] = pair.y;
      }
    }
  }
  const u32 value_lane = Values::advance(Values::lane_offset_right(lane), warp % (P / 16));
  const u32 projection_lane = PROJECTION_AT + Projection::lane_offset(lane);
  u16* const snapshots =
      (reverse ? leaving : entering) + (own_row + lane / 4) * N + part * (TILES * 8) + lane % 4 * 8;

#pragma unroll 1
  for (int i = 0; i < chunks.count; i++) {
    copy_wait<STAGES - 2>();
    __syncthreads();  // this chunk and its weights are in shared memory; no warp reads the preceding ones
    load(i + STAGES - 1);
    const u32 stage = base + i % STAGES * STAGE_BYTES;
    const u32* const weight = (const u32*)(shared + WEIGHTS_AT + i % STAGES * WEIGHT_BYTES);
    u16* const to = snapshots + ((i64)(chunks.slot + chunk_of(i)) * heads + head) * (P * N);
    const float fade = __uint_as_float(weight[Q]);
#pragma unroll
    for (int n = 0; n < TILES; n += 4) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        *(uint4*)(to + half * 8 * N + n * 8) =
            make_uint4(pack(h[n][half * 2], h[n][half * 2 + 1]), pack(h[n + 1][half * 2], h[n + 1][half * 2 + 1]),
                       pack(h[n + 2][half * 2], h[n + 2][half * 2 + 1]), pack(h[n + 3][half * 2], h[n + 3][half * 2 + 1]));
      }
    }
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) h[n][e] *= fade;
    }
#pragma unroll
    for (int k = 0; k < Q / 16; k++) {
      u32 a[4];
      load_matrix_x4_transposed(a, stage + k * 16 * Values::stride + value_lane);
      const uint2 near = *(const uint2*)(weight + k * 16 + lane % 4 * 2);
      const uint2 far = *(const uint2*)(weight + k * 16 + 8 + lane % 4 * 2);
      u32 product[4], remainder[4];
#pragma unroll
      for (int e = 0; e < 4; e++) weigh(a[e], e < 2 ? near : far, product[e], remainder[e]);
#pragma unroll
      for (int n = 0; n < TILES; n += 2) {
        u32 right[4];
        load_matrix_x4_transposed(right, stage + k * 16 * Projection::stride +
                                             Projection::advance(projection_lane, part * (TILES / 2) + n / 2));
        multiply(h[n], product, right[0], right[1]);
        multiply(h[n + 1], product, right[2], right[3]);
        multiply(h[n], remainder, right[0], right[1]);
        multiply(h[n + 1], remainder, right[2], right[3]);
      }
    }
  }
  copy_wait<0>();
  if (reverse && initial_gradient != nullptr) {
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        store_pair(initial_gradient + own_state + half * 8 * N + n * 8, h[n][half * 2], h[n][half * 2 + 1]);
      }
    }
  }
}
