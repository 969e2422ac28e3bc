// Small kernels that exercise the device crate on a GPU: y = a x + y, a copy by the TMA (cp.async.bulk.tensor), a read of
// the neighbour's shared memory in a cluster, and an out-of-bounds store. Macro KIND selects the kernel to compile.
#if KIND == 0
extern "C" __global__ void exercise(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
#elif KIND == 1
// One block copies a tile of 64 x 64 16-bit elements at (x, y) of a 2-D tensor to out, through swizzled shared memory.
struct alignas(64) TensorMap { unsigned long long words[16]; };
extern "C" __global__ void exercise(const __grid_constant__ TensorMap map, unsigned short* out, int x, int y) {
    extern __shared__ unsigned char raw[];
    unsigned base = ((unsigned)__cvta_generic_to_shared(raw) + 1023u) & ~1023u, barrier = base + 64 * 128;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(64 * 128));
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                     ::"r"(base), "l"(&map), "r"(barrier), "r"(x), "r"(y) : "memory");
    }
    __syncthreads();
    asm volatile("{\n.reg .pred done;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n@!done bra WAIT;\n}\n"
                 ::"r"(barrier) : "memory");
    for (int i = threadIdx.x; i < 64 * 64; i += blockDim.x) {
        unsigned byte = i * 2, swizzled = byte ^ ((byte >> 3) & 0x70);
        unsigned short value;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(base + swizzled));
        out[i] = value;
    }
}
#elif KIND == 2
// Each block of a cluster of two writes its number + 1 to its shared memory and reads its neighbour's.
extern "C" __global__ void exercise(int* out) {
    __shared__ int own;
    if (threadIdx.x == 0) own = blockIdx.x + 1;
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    unsigned rank, there, here = (unsigned)__cvta_generic_to_shared(&own);
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank ^ 1));
    int value;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(there));
    if (threadIdx.x == 0) out[blockIdx.x] = value;
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#else
extern "C" __global__ void exercise(int* out) { out[1ull << 40] = 1; }
#endif
