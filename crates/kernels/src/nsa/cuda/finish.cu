// Puts the softmax of the selected branch of nsa together from those of its blocks (blocks.cu): o (+)= gate * sum over
// blocks of 2^(lse - max) partial / sum over blocks of 2^(lse - max). A warp takes one query and 16 heads.
//
// It also counts the tokens that the query's blocks hold (reads [.., Hkv, 3]: [1]), and leaves the bits of the chunk zero.
//
// Launch: grid (ceil(chunk_tokens / WARPS), Hkv * slabs, B), block 32 * WARPS, dynamic shared memory
// WARPS * 16 * n * 4 bytes. Macros: D, DV, DTYPE, WARPS. Tensors as in blocks.cu; accumulate: adds to what o holds.

constexpr int PIECES = Rows<DV>::padded / 16;

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    nsa_finish(const uint4* __restrict__ partial, const float* __restrict__ lse, u16* __restrict__ o,
               const int* __restrict__ indices, int* __restrict__ reads, u32* __restrict__ bits,
               const void* __restrict__ g_cmp, const void* __restrict__ g_slc, const void* __restrict__ g_swa,
               int gates_f32, int gate_kind, const int* __restrict__ cu_q, const int* __restrict__ cu_k, int tq, int tk,
               int heads, int kv_heads, int select_block, int select_count, int chunk_first, int chunk_tokens,
               int bit_words, int accumulate) {
  extern __shared__ float shared_lse[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Every thread of the launch clears its share of the bits.
  const i64 threads = (i64)gridDim.x * gridDim.y * gridDim.z * (WARPS * 32);
  for (i64 w = (((i64)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * (WARPS * 32) + threadIdx.x; w < bit_words;
       w += threads) {
    bits[w] = 0;
  }
  const Sequence here = sequence_at(blockIdx.z, cu_q, cu_k, tq, tk);
  const int group = heads / kv_heads, slabs = ceil_div(group, HEAD_ROWS);
  const int kv_head = blockIdx.y / slabs, slab = blockIdx.y % slabs;
  const int first_head = kv_head * group + slab * HEAD_ROWS, slab_heads = min(HEAD_ROWS, group - slab * HEAD_ROWS);
  const int in_chunk = blockIdx.x * WARPS + warp, token = chunk_first + in_chunk;
  if (in_chunk >= chunk_tokens || token >= here.queries) return;
  const int position = token + here.keys - here.queries;
  const i64 query = here.q_start + token;
  const int* blocks = indices + (query * kv_heads + kv_head) * select_count;
  int count = 0, tokens = 0;
  for (int first = 0; first < select_count; first += 32) {
    const int block = first + lane < select_count ? blocks[first + lane] : -1;
    count += __popc(__ballot_sync(0xffffffff, block >= 0));
    tokens += block >= 0 ? min(select_block, position + 1 - block * select_block) : 0;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) tokens += __shfl_xor_sync(0xffffffff, tokens, step);
  if (slab == 0 && lane == 0) reads[(query * kv_heads + kv_head) * 3 + 1] = tokens;

  const i64 item = (((i64)blockIdx.z * chunk_tokens + in_chunk) * (kv_heads * slabs) + blockIdx.y) * select_count;
  float* weights = shared_lse + warp * 16 * select_count;
  for (int i = lane; i < count * 16; i += 32) weights[i] = lse[item * 16 + i];
  __syncwarp();
  float maximum[2] = {-INFINITE, -INFINITE}, sum[2] = {};
  for (int s = 0; s < count; s++) {
#pragma unroll
    for (int half = 0; half < 2; half++) maximum[half] = fmaxf(maximum[half], weights[s * 16 + lane / 4 + half * 8]);
  }
  float output[Rows<DV>::padded / 8][4] = {};
  const uint4* from = partial + item * (PIECES * 32) + lane;
#pragma unroll 2
  for (int s = 0; s < count; s++) {
    float weight[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      weight[half] = exp2_approximate(weights[s * 16 + lane / 4 + half * 8] - maximum[half]);
      sum[half] += weight[half];
    }
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
      const uint4 piece = from[((i64)s * PIECES + p) * 32];
      const u32 both[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
      for (int e = 0; e < 4; e++) {
        output[p * 2 + e / 2][e % 2 * 2] += weight[e % 2] * to_float((u16)both[e]);
        output[p * 2 + e / 2][e % 2 * 2 + 1] += weight[e % 2] * to_float((u16)(both[e] >> 16));
      }
    }
  }
  const Gates gates = {g_cmp, g_slc, g_swa, gates_f32, gate_kind};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int head = lane / 4 + half * 8;
    if (head >= slab_heads) continue;
    const i64 row = query * heads + first_head + head;
    const float gate = gate_of(gates, 1, row);
    write_row(o + row * DV, output, half, count > 0 ? gate / sum[half] : 0.0f, accumulate, lane);
  }
}
