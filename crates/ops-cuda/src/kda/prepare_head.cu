// Packages with one decay per head, of the first `gridDim.y` chunks of every sequence: a block per chunk and pair of value heads.
//
// Launch: grid (pairs of value heads, those of a key head are adjacent; chunks; sequences), 256 threads, SHARED_BYTES of dynamic
// shared memory. Macros as in prepare_head.cuh.
//
// `marks`, unless null, are `mark_count` words for prepare_rest.cu, set to 0 here. The first is zeroed before any dependent launch
// may start: the recurrence (kda_walk) may poll it while blocks of this launch still run.

extern "C" __global__ void __launch_bounds__(256, 3)
    gated_delta_prepare(const u16* q, const u16* k, const void* g, const void* beta, const void* a_log, const void* dt_bias,
                        unsigned char* packages, const int* offsets, const int* slots, int tokens, int heads,
                        int value_heads, int gate, int types, int l2norm, float lower_bound, float beta_factor, float scale,
                        u32* marks, int mark_count) {
  if (marks && blockIdx.x + blockIdx.y + blockIdx.z == 0) {
    if (threadIdx.x == 0) marks[0] = 0, __threadfence();
    __syncthreads();
  }
  let_next_start();
  extern __shared__ __align__(128) unsigned char shared[];
  if (marks) {
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z), step = gridDim.x * gridDim.y * gridDim.z * 256;
#pragma unroll 1
    for (int i = block * 256 + threadIdx.x + 1; i < mark_count; i += step) marks[i] = 0;
  }
  const Sequence sequence = find_sequence(offsets, blockIdx.z, tokens);
  if ((int)blockIdx.y * CHUNK >= sequence.count || (slots && slots[blockIdx.z] < 0)) return;
  const int of_key_head = value_heads / heads, pairs = (of_key_head + HEADS - 1) / HEADS;
  const Given given = {q,     k,           g,    beta,  a_log,  dt_bias,     packages,    heads,
                       value_heads, of_key_head, gate, types, l2norm, lower_bound, beta_factor, scale};
  prepare_chunk(given, shared, sequence, blockIdx.y, blockIdx.x / pairs, blockIdx.x % pairs, WholeBlock(), [] {});
}
