// Layout of rows of x as direct.cu multiplies them: in its shared memory, and in the output of direct_ready.cu for several rows, in the
// same order. Follows direct_batch.cuh.
//
// Macros: those of direct.cu.

#define READY (TOKENS > 1 && !THROUGH)  // whether direct_ready.cu has prepared them

struct Layout {
  int stride, segments, all_segments;  // of a row: bytes, segments with squares, segments with scales
  int squares, backs, sums, bytes;     // their byte offsets, and the total size

  static DEVICE Layout of(int tokens, int inputs) {
    Layout of;
    const int rounds = ceil_div(inputs, ROUND);
    of.stride = THROUGH ? 0 : rounds * ROUND * 2 + 64;  // 64 more than whole lines: no bank conflicts
    of.segments = NORMED && TOKENS == 1 ? ceil_div(inputs, SEGMENT) : 0;
    of.all_segments = HALVED ? rounds * (ROUND / SEGMENT) : 0;
    of.squares = tokens * of.stride;
    of.backs = of.squares + 4 * tokens * of.segments;
    of.sums = round_up(of.backs + 4 * tokens * of.all_segments, 8);
    of.bytes = round_up(of.backs + tokens * OF_SEGMENT * of.all_segments + (WEIGHT_BITS == 4 ? 4 : 0), 16);
    return of;
  }

  // Rows that start at `base`; `at` is the same address in the form in which rows of x are addressed.
  template <class At>
  DEVICE TokensAt<At> rows(const char* x, const void* norm, int tokens, int inputs, int norm_f32, char* base, At at) const {
    return {x, norm, tokens, inputs, X_F32, norm_f32, at, stride, (float*)(base + squares), segments, (float*)(base + backs), all_segments, (float2*)(base + sums)};
  }
};

// Copies prepared rows to shared memory: by a TMA bulk copy from sm_90 on, otherwise by cp.async.
struct Arrival {
  u32 barrier;

  // Called by one thread; a barrier of the block must follow.
  DEVICE void expect(int bytes) const {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::"r"(barrier) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
  }
  DEVICE void begin(u32 to, const char* from, int bytes) const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
    }
#else
    for (int at = threadIdx.x * 16; at < bytes; at += THREADS * 16) copy_async<16>(to + at, from + at);
    copy_commit();
#endif
  }
  // A barrier of the block must follow.
  DEVICE void end() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred there;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 there, [%0], 0;\n@!there bra again;\n}" ::"r"(barrier) : "memory");
#else
    copy_wait<0>();
#endif
  }
};
