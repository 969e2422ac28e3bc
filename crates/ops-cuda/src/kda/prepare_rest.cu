// Packages with one decay per head, of the chunks after the first ones: runs while kda_walk processes the first, on SMs that it leaves idle.
// A block takes a whole SM's shared memory, so that no block of kda_walk shares the SM, and has TEAMS of 256 threads; a team prepares one
// chunk and pair of value heads at a time, in the order in which kda_walk reads them.
//
// Marks are words in global memory, initially 0: the first is 1 when the preceding launch has ended; from word MARKS_AT on there is one for
// each (sequence, MARK_CHUNKS of the chunks after the first ones, key head), which counts completed (chunk, pair of value heads).
//
// No deadlock: no block waits for one that has not started. This launch starts when all blocks of the preceding launch have; a block
// permits kda_walk to start once it has started itself, and kda_walk starts when all have. No block here waits for kda_walk. Packages
// here need no result of the preceding launch: only the marks wait for its end.
//
// Packages are written by ordinary stores and read by TMA: a proxy fence precedes the update of a mark and follows its read.
//
// Launch: overlapping prepare_head.cu (PDL), any number of blocks, TEAMS * 256 threads, TEAMS * SHARED_BYTES + 8 bytes a warp of dynamic
// shared memory. Macros as in prepare_head.cuh, and REST=1.

constexpr int TEAMS = 3;

// State that the first lane of a warp keeps from chunk to chunk, in shared memory after the teams': no register is left for it, and
// for the same reason a thread reads its index each time.
constexpr int WARPS_AT = TEAMS * SHARED_BYTES;
struct Warp {
  int next, ready;  // its next work item, and the mark of a completed package that is not signaled yet, or 0
};

DEVICE u32 this_thread() {
  u32 thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// Barrier of a thread's team.
struct TeamBarrier {
  static DEVICE int thread() { return this_thread() % 256; }
  DEVICE void operator()() const { named_barrier_sync(1 + this_thread() / 256, 256); }
};

// Release: all writes that this thread has observed become visible before the mark.
DEVICE void count_mark(u32* mark) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(mark) : "memory"); }

// Signals the warp's completed package, once the preceding launch has set the marks to 0.
DEVICE void tell(const Warp* own, u32* marks) {
  const int first = this_thread() % 32 == 0, ready = __shfl_sync(~0u, first ? own->ready : 0, 0);
  if (!ready) return;
  wait_for_previous();
  if (first) count_mark(marks + ready);
}

extern "C" __global__ void __launch_bounds__(TEAMS * 256, 1)
    gated_delta_prepare_rest(const u16* q, const u16* k, const void* g, const void* beta, const void* a_log, const void* dt_bias,
                             unsigned char* packages, const int* offsets, const int* slots, int tokens, int heads,
                             int value_heads, int gate, int types, int l2norm, float lower_bound, float beta_factor, float scale,
                             u32* marks, int sequences, int first_chunk, int groups, int of_key_head, int pairs, int blocks, int end) {
  extern __shared__ __align__(128) unsigned char shared[];
  let_next_start();
  if (blockIdx.x == 0 && threadIdx.x < 32) {
    wait_for_previous();
    if (threadIdx.x == 0) count_mark(marks);
  }
  const Given given = {q,     k,           g,    beta,  a_log,  dt_bias,     packages,    heads,
                       value_heads, of_key_head, gate, types, l2norm, lower_bound, beta_factor, scale};
  {
    const u32 thread = this_thread();
    if (thread % 32 == 0) ((Warp*)(shared + WARPS_AT))[thread / 32] = {(int)(thread / 256 * gridDim.x + blockIdx.x), 0};
  }
#pragma unroll 1
  for (;;) {
    const u32 thread = this_thread();
    Warp* const own = (Warp*)(shared + WARPS_AT) + thread / 32;
    // The same in all lanes, and uniform for the compiler: values derived from them are kept once per warp.
    const int at = __shfl_sync(~0u, thread % 32 == 0 ? own->next : 0, 0), team = __shfl_sync(~0u, thread / 256, 0);
    if (at >= end) break;
    if (thread % 32 == 0) own->next = at + TEAMS * gridDim.x;
    const int block = at % blocks, row = at / blocks, number = row % sequences, chunk = first_chunk + row / sequences;
    const Sequence sequence = find_sequence(offsets, number, tokens);
    if (chunk * CHUNK >= sequence.count || (slots && slots[number] < 0)) continue;
    // Signaled while the next rows are in flight, because a release waits until all writes are visible.
    auto asked = [&] {
      if (thread % 256 < 224) return;
      tell(own, marks);
      if (thread % 32 == 0) own->ready = MARKS_AT + (number * groups + (u32)(chunk - first_chunk) / MARK_CHUNKS) * heads + block / pairs;
    };
    prepare_chunk(given, shared + team * SHARED_BYTES, sequence, chunk, block / pairs, block % pairs, TeamBarrier(), asked);
    fence_async_global();
    TeamBarrier()();
  }
  const u32 thread = this_thread();
  if (thread % 256 >= 224) tell((Warp*)(shared + WARPS_AT) + thread / 32, marks);
}
