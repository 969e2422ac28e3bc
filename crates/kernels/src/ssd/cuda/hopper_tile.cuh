// What the Hopper kernels of the scan share: the shape of a block, its shared memory, and how tiles come into it.
// Stands behind hopper.cuh, storage.cuh and decays.cuh (TILE_DECAYS = 1). Design: README.md.
//
// A block is two warpgroups that multiply, each with a head of P = 64 columns, and a third that loads, makes the
// decays and the mixing weights, a chunk ahead of them. Tiles in shared memory are panels of 64 rows of
// 128 bytes, in the order that wgmma takes as swizzled by 128 bytes: 16-byte piece p of row r lies at p ^ r % 8.
//
// Macros: DTYPE (bf16, f16), N (64, 128), STAGES, STATES_ONLY (0, 1).

#ifndef STATES_ONLY
#define STATES_ONLY 0
#endif

constexpr int P = 64;
constexpr int HEADS = 2;  // of a block, one a warpgroup
constexpr int MAKERS = 128;             // threads that load and make
constexpr int THREADS = 256 + MAKERS;
constexpr int PANEL = Q * 128;  // bytes
constexpr int PANELS = N / 64;  // of B and C

constexpr int VALUES_AT = 0;
constexpr int B_AT = HEADS * PANEL;
constexpr int C_AT = B_AT + PANELS * PANEL;
constexpr int STAGE_BYTES = C_AT + (STATES_ONLY ? 0 : PANELS * PANEL);
constexpr int TABLES = STATES_ONLY ? STAGES : 2;  // chunks whose decays and mixing weights are held
constexpr int MIX_BYTES = HEADS * PANEL;          // a panel a head
constexpr int MIX_AT = STAGES * STAGE_BYTES;
constexpr int DECAYS_AT = MIX_AT + (STATES_ONLY ? 0 : TABLES * MIX_BYTES);
constexpr int DECAY_BYTES = HEADS * DECAYS * Q * 4;
constexpr int BARRIERS_AT = DECAYS_AT + TABLES * DECAY_BYTES;
constexpr int SKIPS_AT = BARRIERS_AT + (2 * TABLES + STAGES) * 8;  // D of each column
constexpr int SHARED_BYTES = SKIPS_AT + HEADS * P * 4 + 1024;  // 1024: panels are aligned to it
static_assert(SHARED_BYTES <= 227 * 1024, "more shared memory than a block can have");

DEVICE u32 piece_at(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// Asks for the panels of one chunk: `token` is its first among all. Rows past the sequence's end belong to the next
// sequence or are zeros; their step sizes are 0.
DEVICE void load_chunk(u32 stage, u32 loaded, const TensorMap* x, const TensorMap* b, const TensorMap* c, int head,
                       int group, int token) {
  mbarrier_expect(loaded, STAGE_BYTES);
#pragma unroll
  for (int panel = 0; panel < PANELS; panel++) {
    if (!STATES_ONLY) tma_load_3d(stage + C_AT + panel * PANEL, c, loaded, panel * 64, group, token);
    tma_load_3d(stage + B_AT + panel * PANEL, b, loaded, panel * 64, group, token);
  }
#pragma unroll
  for (int own = 0; own < HEADS; own++) {
    tma_load_3d(stage + VALUES_AT + own * PANEL, x, loaded, 0, head + own, token);
  }
}

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

// ---- A chunk is handed over by three barriers: loaded, which the copy engine completes; full, at which the makers'
// four warps arrive when decays and mixing weights are there; and empty, the takers' eight.

DEVICE u32 full_barrier(u32 base, int table) { return base + BARRIERS_AT + table * 8; }
DEVICE u32 empty_barrier(u32 base, int table) { return base + BARRIERS_AT + (TABLES + table) * 8; }
DEVICE u32 loaded_barrier(u32 base, int stage) { return base + BARRIERS_AT + (2 * TABLES + stage) * 8; }

DEVICE void init_barriers(u32 base, int thread) {
  if (thread == 0) {
#pragma unroll
    for (int table = 0; table < TABLES; table++) {
      mbarrier_init(full_barrier(base, table), MAKERS / 32);
      mbarrier_init(empty_barrier(base, table), 8);
    }
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) mbarrier_init(loaded_barrier(base, stage), 1);
    fence_barrier_init();
  }
}

// The maker warp that asks for loads; the first HEADS make decays meanwhile.
constexpr int LOADER = 3;

// Lets the next kernel of the stream, if it was launched so as to overlap, start as blocks become free.
DEVICE void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Until the previous kernel has ended and what it wrote can be read.
DEVICE void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// What this warp has done before is done for whoever waits for the barrier.
DEVICE void hand_over(u32 barrier, int lane) {
  __syncwarp();
  if (lane == 0) mbarrier_arrive(barrier);
}
