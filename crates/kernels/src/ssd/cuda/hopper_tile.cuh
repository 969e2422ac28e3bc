// What the Hopper kernels of the scan share: the shape of a block, its shared memory, and how tiles come into it.
// Stands behind hopper.cuh, storage.cuh and decays.cuh (TILE_DECAYS = 1). Design: README.md.
//
// A block is two warpgroups, each with HEADS / 2 heads of P = 64 columns. Tiles in shared memory are panels of 64 rows of
// 128 bytes, in the order that wgmma takes as swizzled by 128 bytes: 16-byte piece p of row r lies at p ^ r % 8.
//
// Macros: DTYPE (bf16, f16), N (64, 128), STAGES, STATES_ONLY (0, 1).

#ifndef STATES_ONLY
#define STATES_ONLY 0
#endif

constexpr int P = 64;
constexpr int HEADS = 4;
constexpr int OWN_HEADS = HEADS / 2;  // of a warpgroup
constexpr int THREADS = 256;
constexpr int PANEL = Q * 128;  // bytes
constexpr int PANELS = N / 64;  // of B and C

constexpr int VALUES_AT = 0;
constexpr int B_AT = HEADS * PANEL;
constexpr int C_AT = B_AT + PANELS * PANEL;
constexpr int STAGE_BYTES = C_AT + (STATES_ONLY ? 0 : PANELS * PANEL);
constexpr int MIX_AT = STAGES * STAGE_BYTES;  // a panel a head
constexpr int DECAYS_AT = MIX_AT + (STATES_ONLY ? 0 : HEADS * PANEL);
constexpr int DECAY_BYTES = HEADS * DECAYS * Q * 4;
constexpr int SHARED_BYTES = DECAYS_AT + 2 * DECAY_BYTES + 1024;  // 1024: panels are aligned to it
static_assert(SHARED_BYTES <= 227 * 1024, "more shared memory than a block can have");

DEVICE u32 piece_at(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// Starts copying 64 rows of 64 columns; rows from `valid` on are zeros.
DEVICE void load_panel(u32 to, const u16* from, int stride, int valid, int thread) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = i * 32 + thread / 8, piece = thread % 8;
    const u16* const at = from + (i64)(row < valid ? row : 0) * stride + piece * 8;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + piece_at(row, piece)), "l"(at),
                 "r"(row < valid ? 16 : 0)
                 : "memory");
  }
}

DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int pending>
DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// The warp that makes the decays of each head: one on each scheduler, two of each warpgroup. -1 for the others.
DEVICE int scan_head(int warp) { return (warp & 1) == warp / 4 ? warp & 3 : -1; }

// x of 16 tokens from `token` on, transposed: the left operand [16 columns of this warp, 16 tokens].
DEVICE void load_values(u32 (&a)[4], u32 panel, int token, int warp, int lane) {
  const u32 address = panel + piece_at(token + lane % 16, warp % 4 * 2 + lane / 16);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[2]), "=r"(a[1]), "=r"(a[3])
               : "r"(address)
               : "memory");
}

// That, times the weights of these tokens.
DEVICE void weigh_values(u32 (&to)[4], const u32 (&a)[4], const float* weights, int lane) {
  const float2 near = *(const float2*)(weights + lane % 4 * 2), far = *(const float2*)(weights + 8 + lane % 4 * 2);
  to[0] = weigh(a[0], near);
  to[1] = weigh(a[1], near);
  to[2] = weigh(a[2], far);
  to[3] = weigh(a[3], far);
}

// A head's state as accumulators of h [P, N]: of the element's pairs, see hopper.cuh.
typedef float State[N / 2];

DEVICE int state_index(int warp, int lane, int n, int half) {
  return (warp % 4 * 16 + lane / 4 + half * 8) * N + n * 8 + lane % 4 * 2;
}

DEVICE void read_state(State& h, const float* from, int warp, int lane) {
#pragma unroll
  for (int n = 0; n < N / 8; n++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float2 pair = make_float2(0.0f, 0.0f);
      if (from != nullptr) pair = *(const float2*)(from + state_index(warp, lane, n, half));
      h[n * 4 + half * 2] = pair.x;
      h[n * 4 + half * 2 + 1] = pair.y;
    }
  }
}

DEVICE void write_state(const State& h, float* to, int warp, int lane) {
#pragma unroll
  for (int n = 0; n < N / 8; n++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      *(float2*)(to + state_index(warp, lane, n, half)) = make_float2(h[n * 4 + half * 2], h[n * 4 + half * 2 + 1]);
    }
  }
}

// h += left B over the chunk's tokens, issued and not waited for.
DEVICE void issue_state(State& h, const u32 (&left)[Q / 16][4], u32 b_panels) {
  const u64 b = descriptor_mn_major<128>(b_panels, PANEL);
#pragma unroll
  for (int j = 0; j < Q / 16; j++) {
    wgmma_rs<1>(h, left[j][0], left[j][1], left[j][2], left[j][3], b + j * 128, 1);
  }
}
