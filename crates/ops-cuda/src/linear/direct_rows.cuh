// Where rows of x lie as direct.cu multiplies them, in its shared memory, and where a launch ahead has left several of them, in the
// same order. Stands behind direct_batch.cuh.
//
// Macros: those of direct.cu.

#define READY (TOKENS > 1 && !THROUGH)  // whether a launch ahead has made them ready

struct Layout {
  int stride, segments, all_segments;  // of a row: bytes, and its segments that have squares, and that have factors
  int squares, backs, sums, bytes;     // where these begin, and where all of it ends

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

  // Rows that begin at `base` and, as rows of x are addressed, at `at`.
  template <class At>
  DEVICE TokensAt<At> rows(const char* x, const void* norm, int tokens, int inputs, int norm_f32, char* base, At at) const {
    return {x, norm, tokens, inputs, X_F32, norm_f32, at, stride, (float*)(base + squares), segments, (float*)(base + backs), all_segments, (float2*)(base + sums)};
  }
};

// Rows that are ready, on their way to shared memory: by the copy engine where there is one.
struct Arrival {
  u32 barrier;

  // By one thread; a barrier of the block must follow.
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
