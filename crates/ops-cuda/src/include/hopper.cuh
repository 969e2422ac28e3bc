// Device helpers of the Hopper kernels (sm_90a): mbarriers, the Tensor Memory Accelerator (TMA), warpgroup matrix
// products (wgmma), clusters, register reallocation, named barriers and packing.
//
// This file is prepended to a kernel's source before NVRTC compiles it, so it includes nothing. Every function
// is one PTX instruction or a few; the kernels describe how their schedules use them.
//
// Macros: DTYPE is the storage type as PTX spells it, bf16 (default) or f16.
//
// Shared memory addresses are 32 bits (`u32`), as the instructions take them.

#ifndef DTYPE
#define DTYPE bf16
#endif
#define STRINGIZE_TOKEN(x) #x
#define STRINGIZE(x) STRINGIZE_TOKEN(x)
#define DTYPE_NAME STRINGIZE(DTYPE)
#define DEVICE __device__ __forceinline__

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// A CUtensorMap, passed by value as a __grid_constant__ parameter.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// ---- mbarriers. A wait takes the parity of the phase that it waits for: the first phase has parity 0.

DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialized barriers visible to TMA (the async proxy) and to the other blocks of a cluster; a block or cluster
// barrier must follow.
DEVICE void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Arrives once and adds `bytes` to the transaction count that copies must complete.
DEVICE void mbarrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

DEVICE void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the barrier of the same address in block `rank` of the cluster.
DEVICE void mbarrier_arrive_cluster(u32 barrier, u32 rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

DEVICE bool mbarrier_test(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra ready;\nbra again;\nready:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// The same, ordered after what other blocks of the cluster did before they arrived.
DEVICE void mbarrier_wait_cluster(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
      "@p bra ready;\nbra again;\nready:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- TMA. Coordinates start at the innermost dimension; elements outside the tensor are read as zero and not written.

DEVICE void tma_prefetch(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

DEVICE void tma_load_3d(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

DEVICE void tma_load_4d(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// Copies the box to the same address, and counts it on the same barrier, in every block of the cluster in `blocks`.
DEVICE void tma_load_4d_multicast(u32 to, const TensorMap* map, u32 barrier, u16 blocks, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(barrier), "h"(blocks), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

DEVICE void tma_store_3d(const TensorMap* map, u32 from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(from),
               "r"(x), "r"(y), "r"(z)
               : "memory");
}

DEVICE void tma_store_4d(const TensorMap* map, u32 from, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(from), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}

DEVICE void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most `pending` groups of stores still read their shared memory.
template <int pending>
DEVICE void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

template <int pending>
DEVICE void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}

// Makes plain stores to shared memory before this visible to wgmma and TMA after the next barrier.
DEVICE void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- Clusters.

DEVICE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The address, in the cluster's window, of `address` in block `rank`.
DEVICE u32 cluster_address(u32 address, u32 rank) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// ---- Warps and warpgroups.

// True in one lane of the warp, the same one every time; all 32 lanes must call it.
DEVICE bool elect_one() {
  u32 elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n" : "=r"(elected));
  return elected != 0;
}

template <int registers>
DEVICE void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers>
DEVICE void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Barrier 0 is __syncthreads; `threads` counts those that sync and those that only arrive.
DEVICE void named_barrier_sync(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

DEVICE void named_barrier_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements (ldmatrix): lanes 8 i to 8 i + 7 give the addresses of the rows of matrix i,
// and words[i] gets elements t % 4 * 2 and the next of row t / 4.
DEVICE void load_matrices(u32 (&words)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

// d (16 x 8) += a (16 x 16) b (16 x 8) by one warp. With t = the lane: d[0], d[1] are row t / 4, columns t % 4 * 2 and
// the next, d[2], d[3] the same of row t / 4 + 8; a as load_matrices gives rows 0-7 and 8-15 of the first 8 columns,
// then of the last 8; b0 and b1 as it gives the first and the last 8 columns of the transpose of b.
DEVICE void mma_m16n8k16(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." DTYPE_NAME "." DTYPE_NAME
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- Arithmetic.

// Two floats rounded to the storage type; `low` gets the lower half.
DEVICE u32 pack(float low, float high) {
  u32 packed;
  asm volatile("cvt.rn." DTYPE_NAME "x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// 2^x; -inf gives 0. Subnormal results are flushed, which no sum of probabilities notices.
DEVICE float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEVICE float log2_approximate(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEVICE float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- wgmma.
//
// Descriptors are of tiles that TMA wrote in boxes of `swizzle` bytes (64 or 128) by any number of rows, one box after
// the other, each box aligned to 8 * swizzle bytes.

// A tile whose contiguous dimension is the reduction dimension K (Q and K of Q K^T). Advance 16 along it by adding 2
// within a box; advance 8 rows by adding swizzle / 2.
template <int swizzle>
DEVICE u64 descriptor_k_major(u32 address) {
  return (u64)((address & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(8 * swizzle >> 4) << 32 |
         (u64)(swizzle == 128 ? 1 : 2) << 62;
}

// A tile whose rows are the reduction dimension K (V of P V), `box_bytes` from one box of columns to the next.
// Advance 16 rows by adding swizzle.
template <int swizzle>
DEVICE u64 descriptor_mn_major(u32 address, u32 box_bytes) {
  return (u64)((address & 0x3ffff) >> 4) | (u64)(box_bytes >> 4) << 16 | (u64)(8 * swizzle >> 4) << 32 |
         (u64)(swizzle == 128 ? 1 : 2) << 62;
}

// Orders register writes before this, accumulators included, before the wgmmas after it.
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int pending>
DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Keeps the compiler from moving uses of these registers across a wait: it does not know that the wait concerns them.
template <int count>
DEVICE void keep(float (&values)[count]) {
#pragma unroll
  for (int i = 0; i < count; i++) asm volatile("" : "+f"(values[i])::"memory");
}

template <int count>
DEVICE void keep(u32 (&values)[count]) {
#pragma unroll
  for (int i = 0; i < count; i++) asm volatile("" : "+r"(values[i])::"memory");
}

// wgmma_ss<transposed>(d, a, b, accumulate): d (64 x N, N / 2 floats a thread) = a b, plus d where accumulate is not
// 0; a and b by descriptors; `transposed` 1: b is descriptor_mn_major.
// wgmma_rs<transposed>(d, a0..a3, b, accumulate): the same with a (64 x 16) in registers.
// N follows from the size of d. Thread t of a warpgroup has of a 64 x N tile the rows
// t / 32 * 16 + t % 32 / 4 (first) and that + 8 (second), columns 8 i + t % 4 * 2 and the next:
// d[4 i], d[4 i + 1] of the first row and d[4 i + 2], d[4 i + 3] of the second. a0: first row, columns
// t % 4 * 2 and the next of 16; a1: second row; a2 and a3: the same 8 columns on.
#define WGMMA_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_NAMES_16 WGMMA_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_24 WGMMA_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_NAMES_32 WGMMA_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_40 WGMMA_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_NAMES_48 WGMMA_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_NAMES_56 WGMMA_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_NAMES_64 WGMMA_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_NAMES_72 WGMMA_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_NAMES_80 WGMMA_NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_NAMES_88 WGMMA_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_NAMES_96 WGMMA_NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_NAMES_104 WGMMA_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define WGMMA_NAMES_112 WGMMA_NAMES_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_NAMES_120 WGMMA_NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define WGMMA_NAMES_128 WGMMA_NAMES_120 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_FLOATS(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA_FLOATS_8 WGMMA_FLOATS(0)
#define WGMMA_FLOATS_16 WGMMA_FLOATS_8, WGMMA_FLOATS(8)
#define WGMMA_FLOATS_24 WGMMA_FLOATS_16, WGMMA_FLOATS(16)
#define WGMMA_FLOATS_32 WGMMA_FLOATS_24, WGMMA_FLOATS(24)
#define WGMMA_FLOATS_40 WGMMA_FLOATS_32, WGMMA_FLOATS(32)
#define WGMMA_FLOATS_48 WGMMA_FLOATS_40, WGMMA_FLOATS(40)
#define WGMMA_FLOATS_56 WGMMA_FLOATS_48, WGMMA_FLOATS(48)
#define WGMMA_FLOATS_64 WGMMA_FLOATS_56, WGMMA_FLOATS(56)
#define WGMMA_FLOATS_72 WGMMA_FLOATS_64, WGMMA_FLOATS(64)
#define WGMMA_FLOATS_80 WGMMA_FLOATS_72, WGMMA_FLOATS(72)
#define WGMMA_FLOATS_88 WGMMA_FLOATS_80, WGMMA_FLOATS(80)
#define WGMMA_FLOATS_96 WGMMA_FLOATS_88, WGMMA_FLOATS(88)
#define WGMMA_FLOATS_104 WGMMA_FLOATS_96, WGMMA_FLOATS(96)
#define WGMMA_FLOATS_112 WGMMA_FLOATS_104, WGMMA_FLOATS(104)
#define WGMMA_FLOATS_120 WGMMA_FLOATS_112, WGMMA_FLOATS(112)
#define WGMMA_FLOATS_128 WGMMA_FLOATS_120, WGMMA_FLOATS(120)

// n is the number of accumulators, p1.. are n + 1 and so on: the operands' numbers must be literals.
#define WGMMA(columns, n, p1, p2, p3, p4, p5, p6)                                                                     \
  template <int transposed>                                                                                           \
  DEVICE void wgmma_ss(float (&d)[n], u64 a, u64 b, int accumulate) {                                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p2 ", 0;\n"                                                    \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." DTYPE_NAME "." DTYPE_NAME                    \
                 " {" WGMMA_NAMES_##n "}, %" #n ", %" #p1 ", p, 1, 1, 0, %" #p3 ";\n}\n"                              \
                 : WGMMA_FLOATS_##n                                                                                   \
                 : "l"(a), "l"(b), "r"(accumulate), "n"(transposed));                                                 \
  }                                                                                                                   \
  template <int transposed>                                                                                           \
  DEVICE void wgmma_rs(float (&d)[n], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int accumulate) {                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p5 ", 0;\n"                                                    \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." DTYPE_NAME "." DTYPE_NAME                    \
                 " {" WGMMA_NAMES_##n "}, {%" #n ", %" #p1 ", %" #p2 ", %" #p3 "}, %" #p4 ", p, 1, 1, %" #p6 ";\n}\n" \
                 : WGMMA_FLOATS_##n                                                                                   \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate), "n"(transposed));                     \
  }

WGMMA(16, 8, 9, 10, 11, 12, 13, 14)
WGMMA(32, 16, 17, 18, 19, 20, 21, 22)
WGMMA(48, 24, 25, 26, 27, 28, 29, 30)
WGMMA(64, 32, 33, 34, 35, 36, 37, 38)
WGMMA(80, 40, 41, 42, 43, 44, 45, 46)
WGMMA(96, 48, 49, 50, 51, 52, 53, 54)
WGMMA(112, 56, 57, 58, 59, 60, 61, 62)
WGMMA(128, 64, 65, 66, 67, 68, 69, 70)
WGMMA(144, 72, 73, 74, 75, 76, 77, 78)
WGMMA(160, 80, 81, 82, 83, 84, 85, 86)
WGMMA(176, 88, 89, 90, 91, 92, 93, 94)
WGMMA(192, 96, 97, 98, 99, 100, 101, 102)
WGMMA(208, 104, 105, 106, 107, 108, 109, 110)
WGMMA(224, 112, 113, 114, 115, 116, 117, 118)
WGMMA(240, 120, 121, 122, 123, 124, 125, 126)
WGMMA(256, 128, 129, 130, 131, 132, 133, 134)
