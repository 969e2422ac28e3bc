// Waiting for each other, and for copies: within a block by barriers in shared memory, among blocks by a count in memory.

DEVICE void barrier_init(u32 at, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
DEVICE void barrier_expect(u32 at, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u32 at) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory"); }
DEVICE void barrier_wait(u32 at, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(at),
      "r"(parity)
      : "memory");
}
DEVICE void barriers_are_there() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Brings bytes to shared memory, all of which the barrier counts.
DEVICE void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// The warps that compute.
DEVICE void meet_inside() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

// The first of these, before it says for the first time that the block is through, waits until the warp that waits has seen how
// often blocks met before this launch.
DEVICE void begun_is_known() { asm volatile("bar.arrive 2, 64;" ::: "memory"); }
DEVICE void until_begun_is_known() { asm volatile("bar.sync 2, 64;" ::: "memory"); }

// What a phase that no other one stands ahead of waits for: nothing.
struct NoMeeting {
  DEVICE void operator()() const {}
};

// Says that the block is through with a phase. What its other warps wrote is seen by who sees this: they met inside before.
DEVICE void say_through(u32* meeting) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(meeting) : "memory");
}

// The warp that waits: for each phase but the first until all blocks are through with the one before, and then `met`. A warp that
// computes would have its other instructions wait behind what it asks of memory.
//
// Each launch leaves a whole number of meetings. How many these are is read when the previous kernel has ended: it may be an earlier
// launch of this one, which still counts until then.
DEVICE void wait_for_blocks(const u32* meeting, int phases, u32 met) {
  wait_for_previous();
  u32 count;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(meeting) : "memory");
  u32 target = count - count % gridDim.x;
  begun_is_known();
  if (threadIdx.x % 32 != 0) return;
  for (int phase = 1; phase < phases; phase++) {
    target += gridDim.x;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(meeting) : "memory");
    } while ((int)(count - target) < 0);
    barrier_arrive(met);
  }
}
