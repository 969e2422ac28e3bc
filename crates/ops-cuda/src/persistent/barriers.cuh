// Synchronization of a block's warps with each other and with copies of weights, and of blocks with results of other blocks. Requires phase.cuh.

DEVICE void barrier_init(u32 at, int count) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory"); }
DEVICE void barrier_expect(u32 at, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory"); }
DEVICE void barrier_arrive(u32 at) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory"); }
DEVICE void barrier_wait(u32 at, int parity) {
  asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(at), "r"(parity) : "memory");
}
DEVICE void barriers_are_there() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Barrier of the warps that compute.
DEVICE void meet_inside() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

DEVICE uint4 load_shared(u32 from) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(from) : "memory");
  return value;
}
// Bypasses L1, in which a line may be older than an earlier kernel's write.
DEVICE uint2 load_current(const char* from) {
  uint2 value;
  asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(from) : "memory");
  return value;
}

// A packet is 32 bits of content, one f32 or two values in storage, and the number of the phase that wrote it. A reader polls until that
// number arrives, so that no block waits for more than it reads. 64 bits are written and read atomically, so content and number match.
struct Packets {
  u64 a, b;

  static DEVICE Packets ask(const u64* from) {
    Packets two;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(two.a), "=l"(two.b) : "l"(from) : "memory");
    return two;
  }
  // Reads the output of an earlier kernel.
  static DEVICE Packets read(const char* from) {
    const uint2 words = load_current(from);
    return {words.x, words.y};
  }
  DEVICE bool are(u32 number) const { return (u32)(a >> 32) == number && (u32)(b >> 32) == number; }
};
DEVICE u64 ask(const u64* from) {
  u64 packet;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(packet) : "l"(from) : "memory");
  return packet;
}
DEVICE void give(u64* to, u32 content, u32 number) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"((u64)number << 32 | content) : "memory");
}

// Prefetches into L2, before weights that are loaded later. Whole pieces of 16 bytes.
DEVICE void prefetch(const char* from, u32 bytes) {
  const u64 first = (u64)from & ~15ull;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(first), "r"((u32)((u64)from - first) + bytes + 15 & ~15u) : "memory");
}

// The pipeline of weights in flight, and the position in it of the warps that multiply.
struct Ring {
  u32 at, full, empty;  // addresses in shared memory: of the stages, and of a barrier of each
  int slot, turn;       // of the next stage

  DEVICE void begin() const {
    for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, WARPS);
  }
  DEVICE void advance() {
    if (++slot == STAGES) slot = 0, turn ^= 1;
  }
  // For one thread: waits until the next stage is free. Only two stages are in flight at once, because other loads of the block queue after them.
  DEVICE void make_room() const {
    constexpr int UNDER_WAY = 2;
    barrier_wait(empty + 8 * slot, turn ^ 1);
    const bool same = slot >= UNDER_WAY;
    barrier_wait(full + 8 * (same ? slot - UNDER_WAY : slot - UNDER_WAY + STAGES), same ? turn : turn ^ 1);
  }
  DEVICE void expect(u32 bytes) const { barrier_expect(full + 8 * slot, bytes); }
  DEVICE void copy(u32 to, const char* from, u32 bytes) const {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at + slot * STAGE + to), "l"(from), "r"(bytes), "r"(full + 8 * slot)
                 : "memory");
  }
  // For one thread.
  DEVICE void bring(const Source& of) {
    const u32 row_bytes = (u32)of.inputs * WEIGHT_BITS / 8;
    const int rows = 16 * CHUNK / of.inputs;
    for (int half = 0; half <= of.swiglu; half++) {
      const char* from = of.w + (i64)(of.own.first + half * of.columns) * row_bytes;
      for (int left = of.own.count; left > 0; left -= rows) {
        const u32 bytes = min(rows, left) * row_bytes;
        make_room();
        expect(bytes);
        copy(0, from, bytes);
        from += bytes;
        advance();
      }
    }
  }
};

// Scales of the columns of half a phase: gates or ups, or all there are. There is room for two halves, so they load ahead as weights do.
struct Factors {
  u32 at, full, empty;
  int halves;  // so far

  DEVICE void begin() const {
    for (int i = 0; i < 2; i++) barrier_init(full + 8 * i, 32), barrier_init(empty + 8 * i, WARPS);
  }
  // The copy of a group of columns starts at a 16-byte boundary, some rows before the block's first.
  static DEVICE int before(const Columns& own, int size) { return own.first % (16 / size); }
  static DEVICE int stride(const Columns& own, int size) { return ceil_div(before(own, size) + own.count, 16 / size) * 16; }
  DEVICE u32 half() const { return at + halves % 2 * HALF_BYTES; }
  DEVICE u32 barrier(u32 of) const { return of + 8 * (halves % 2); }

  // A warp has used the scales of a half.
  DEVICE void leave() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier(empty));
    halves++;
  }

  // For one warp. A block without columns has no halves.
  DEVICE void bring(const Source& of) {
    if (of.own.count == 0) return;
    for (int part = 0; part <= of.swiglu; part++, halves++) {
      barrier_wait(barrier(empty), 1 ^ halves / 2 % 2);
      const auto copy = [&](u32 to, const char* from, int size) {
        const int bytes = stride(of.own, size);
        from += (i64)(of.own.first - before(of.own, size) + part * of.columns) * size;
        for (int group = threadIdx.x % 32; group < of.inputs / max(BLOCKS, 1); group += 32) {
          for (int i = 0; i < bytes; i += 16) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + group * bytes + i), "l"(from + (i64)group * (of.columns << of.swiglu) * size + i) : "memory");
          }
        }
      };
      copy(half(), of.w_scale, FACTOR_SIZE);
      if constexpr (OFFSET) copy(half() + FACTOR_BYTES, of.beside, 4);
      asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier(full)) : "memory");
    }
  }
};
