// The five products of the Hopper attention backward kernel, issued and not waited for, and what follows hopper.cuh for
// them: products with both operands transposed, stores of matrices, bulk copies and counters in memory.

// d (64 x N) (+)= a b, both by descriptor_mn_major: the reduction runs over the rows of both tiles.
#define WGMMA_BOTH(columns, n, p1, p2)                                                                                \
  DEVICE void wgmma_both_transposed(float (&d)[n], u64 a, u64 b, int accumulate) {                                    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p2 ", 0;\n"                                                    \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." DTYPE_NAME "." DTYPE_NAME                    \
                 " {" WGMMA_NAMES_##n "}, %" #n ", %" #p1 ", p, 1, 1, 1, 1;\n}\n"                                     \
                 : WGMMA_FLOATS_##n                                                                                   \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                  \
  }
WGMMA_BOTH(64, 32, 33, 34)
WGMMA_BOTH(128, 64, 65, 66)

// Four 8 x 8 matrices to memory (stmatrix), the reverse of load_matrices.
DEVICE void store_matrices(u32 address, u32 w0, u32 w1, u32 w2, u32 w3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(w0), "r"(w1),
               "r"(w2), "r"(w3)
               : "memory");
}

// A pair of weights in the storage type times two floats, each product rounded once.
DEVICE u32 multiply_pair(u32 weights, float first, float second) {
  float low, high;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32." DTYPE_NAME " %0, low;\ncvt.f32." DTYPE_NAME
      " %1, high;\n}\n"
      : "=f"(low), "=f"(high)
      : "r"(weights));
  return pack(low * first, high * second);
}

// Bulk copies of a multiple of 16 bytes to memory, stored or added to floats.
DEVICE void bulk_store(void* to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}

DEVICE void bulk_add(void* to, u32 from, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}

// Whether a counter in memory has reached `value`; bulk copies after that come after what was counted.
DEVICE bool counter_reached(const int* counter, int value) {
  int now;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
  return now >= value;
}

DEVICE void counter_add(int* counter) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

// ---- Descriptors of tiles with 128-byte swizzle as sums: all are `units`, the address of the block's shared memory in
// units of 16 bytes, plus a constant, so that they need one register.
constexpr u32 DESCRIPTOR_HIGH = (8 * 128 >> 4) | 1u << 30;
constexpr u32 K_MAJOR = 1u << 16;
template <int box_bytes>
constexpr u32 MN_MAJOR = (u32)(box_bytes >> 4) << 16;

DEVICE u64 descriptor(u32 low) {
  u64 both;
  asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "n"(DESCRIPTOR_HIGH));
  return both;
}

// A product over the channels: s (64 keys x BLOCK_Q queries) = keys (or values) times queries (or grad_o), transposed.
DEVICE void issue_scores(float (&s)[BLOCK_Q / 2], u32 keys, u32 queries) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < D / 16; i++) {
    const int box = i / 4, within = i % 4 * 2;
    wgmma_ss<0>(s, descriptor(keys + (K_MAJOR + box * (BOX_K_BYTES >> 4) + within)),
                descriptor(queries + (K_MAJOR + box * (BOX_Q_BYTES >> 4) + within)), i > 0);
  }
  wgmma_commit();
}

// A product over the queries: g (64 keys x D) += weights (64 keys x BLOCK_Q, packed) times queries or grad_o.
template <int from = 0, int to = BLOCK_Q / 16>
DEVICE void issue_gradient(float (&g)[D / 2], const u32 (&weights)[BLOCK_Q / 4], u32 rows) {
  wgmma_fence();
#pragma unroll
  for (int i = from; i < to; i++) {
    wgmma_rs<1>(g, weights[4 * i], weights[4 * i + 1], weights[4 * i + 2], weights[4 * i + 3],
                descriptor(rows + (MN_MAJOR<BOX_Q_BYTES> + i * 128)), 1);
  }
  if (to == BLOCK_Q / 16) wgmma_commit();
}

// The product over the keys: 64 queries x 64 channels of dS K.
DEVICE void issue_query_gradient(float (&g)[32], u32 ds, u32 keys) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < BLOCK_K / 16; i++) {
    wgmma_both_transposed(g, descriptor(ds + (MN_MAJOR<BOX_DS_BYTES> + i * 128)),
                          descriptor(keys + (MN_MAJOR<BOX_K_BYTES> + i * 128)), i > 0);
  }
  wgmma_commit();
}
