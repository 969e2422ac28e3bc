// A decode step of nsa in one launch on Hopper: a cluster of CLUSTER blocks of threads takes one query and one key head with up to
// 16 heads of its group. Each block scores its share of the compressed tokens and keeps the scores; sums and weights are
// exchanged through the cluster's shared memory; each block selects, all alike; each attends its share of the
// selected and of the window's tokens; and each puts a few rows of the three branches together, gated.
//
// q, o [B, Tq, HQ, D|DV], k, v [B, Tk, Hkv, D|DV], or packed with cu_q and cu_k. k_cmp, k_rest, v_cmp as in
// compressed.cu (k_rest only where KEY_COPIES is 2). indices [.., Hkv, n], reads [.., Hkv, 3] as select.cu leaves them. The call selects.
//
// Launch: grid (CLUSTER, Hkv, B * tq), block 32 * WARPS, dynamic shared memory 16 row(D) + WARPS * max(TILE (KEY_COPIES
// row(D) + row(DV)), 64 DV padded to 16) + 3 (64 DV padded to 16 + 128) + 68 share + 4 (tokens + blocks + n), tokens and blocks of
// the longest sequence. Macros: D, DV, DTYPE, TILE, WARPS, KEY_COPIES, CLUSTER. n is at most 1024.

constexpr u32 TAKEN = 0, NONE = 0xffffffff;
constexpr int RESULT_FLOATS = 16 * COLUMNS + 32;  // values, then maximum and sum of each row
constexpr int RESULTS_AT = QUERY_BYTES + WARPS * WARP_BYTES;

DEVICE u32 warp_max(u32 x) {
  u32 y;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
  return y;
}

DEVICE u32 warp_min(u32 x) {
  u32 y;
  asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
  return y;
}

DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The float at the same place in block `rank` of the cluster.
DEVICE float read_remote(u32 address, u32 rank) {
  float x;
  asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %1, %2;\nld.shared::cluster.f32 %0, [remote];\n}\n"
               : "=f"(x)
               : "r"(address), "r"(rank)
               : "memory");
  return x;
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    nsa_step_cluster(const u16* __restrict__ q, const u16* __restrict__ k, const u16* __restrict__ v,
                     const u16* __restrict__ k_cmp, const u16* __restrict__ k_rest, const u16* __restrict__ v_cmp,
                     u16* __restrict__ o, int* __restrict__ indices, int* __restrict__ reads,
                     const void* __restrict__ g_cmp, const void* __restrict__ g_slc, const void* __restrict__ g_swa,
                     int gates_f32, int gate_kind, const int* __restrict__ cu_q, const int* __restrict__ cu_k, int tq,
                     int tk, int heads, int kv_heads, int block, int stride, int rows_each, int most_share,
                     int most_tokens, int most_blocks, int select_block, int select_count, int initial_blocks,
                     int local_blocks, int window, float scale) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float lse[16];
  __shared__ u32 found[2][WARPS][2];
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, rank = blockIdx.x;
  const int sequence = blockIdx.z / tq, token = blockIdx.z % tq;
  const Sequence here = sequence_at(sequence, cu_q, cu_k, tq, tk);
  if (token >= here.queries) return;  // the whole cluster
  const int group = heads / kv_heads, kv_head = blockIdx.y, first_head = kv_head * group;
  const int position = token + here.keys - here.queries;
  const int seen = compressed_before(position, block, stride);
  const i64 query = here.q_start + token;
  const i64 row0 = compressed_row(here, sequence, stride, rows_each) * kv_heads + kv_head;
  float* results = (float*)(shared + RESULTS_AT);  // compressed, selected, window
  float* scores = results + 3 * RESULT_FLOATS;     // [16][share]
  float* p = scores + 16 * most_share;             // [share], this block's weights
  float* weights = p + most_share;                 // [tokens], all blocks'
  u32* keys = (u32*)weights + most_tokens;         // [blocks]
  int* list = (int*)keys + most_blocks;            // [n], then in order
  auto result = [&](int branch) { return Partial{results + branch * RESULT_FLOATS, results + branch * RESULT_FLOATS + 16 * COLUMNS}; };

  // ---- Compressed tokens.
  load_query(base, q, q + (query * heads + first_head) * D, group);
  const int share = min(most_share, ceil_div(max(seen, 1), CLUSTER)), first = rank * share;
  const int mine = max(0, min(seen, first + share) - first);
  attend(
      base, shared, q, first, first + mine, k_rest != nullptr, v_cmp != nullptr, scale, result(0), 0,
      [&](int i) { return k_cmp + (row0 + (i64)i * kv_heads) * D; },
      [&](int i) { return k_rest + (row0 + (i64)i * kv_heads) * D; },
      [&](int i) { return v_cmp + (row0 + (i64)i * kv_heads) * DV; },
      [&](const float(&s)[PAIRS * 2][4], int at) {
#pragma unroll
        for (int n = 0; n < PAIRS * 2; n++) {
#pragma unroll
          for (int e = 0; e < 4; e++) {
            const int row = lane / 4 + e / 2 * 8, i = at - first + n * 8 + lane % 4 * 2 + e % 2;
            if (i < mine) scores[row * most_share + i] = s[n][e];
          }
        }
      });
  cluster_sync();
  if (thread < 16) {
    const u32 sums = shared_address(result(0).sums) + thread * 8;
    float largest = -INFINITE, sum = 0.0f, part[CLUSTER][2];
#pragma unroll
    for (int r = 0; r < CLUSTER; r++) {
      part[r][0] = read_remote(sums, r);
      part[r][1] = read_remote(sums + 4, r);
    }
#pragma unroll
    for (int r = 0; r < CLUSTER; r++) largest = fmaxf(largest, part[r][0]);
#pragma unroll
    for (int r = 0; r < CLUSTER; r++) sum += exp2_approximate(part[r][0] - (largest == -INFINITE ? 0.0f : largest)) * part[r][1];
    lse[thread] = thread < group && sum > 0.0f ? largest + log2_approximate(sum) : INFINITE;
  }
  __syncthreads();
  for (int i = thread; i < mine; i += THREADS) {
    float weight = 0.0f;
#pragma unroll
    for (int r = 0; r < 16; r++) {
      if (r < group) weight += exp2_approximate(scores[r * most_share + i] - lse[r]);
    }
    p[i] = weight;
  }
  cluster_sync();
  for (int i = thread; i < seen; i += THREADS) weights[i] = read_remote(shared_address(p) + i % share * 4, i / share);
  __syncthreads();

  // ---- Selection, as in step_score.cu.
  const int blocks = position < 0 ? 0 : position / select_block + 1;
  int count = min(blocks, select_count);
  if (blocks <= select_count) {
    for (int s = thread; s < blocks; s += THREADS) keys[s] = s;
  } else {
    const float of_stride = 1.0f / (float)stride;
    const bool same_blocks = block == stride && block == select_block;
    u32 best = TAKEN, best_at = NONE;
    auto look = [&](int j, u32 key) {
      if (key > best) {
        best = key;
        best_at = j;
      }
    };
    const int front = min(initial_blocks, blocks), back = max(front, blocks - local_blocks), forced = front + blocks - back;
    for (int f = thread; f < forced; f += THREADS) list[f] = f < front ? f : back + f - front;
    for (int j = thread; j < blocks; j += THREADS) {
      u32 key = TAKEN;
      if (j >= front && j < back) {
        float sum = 0.0f;
        if (same_blocks) {
          if (j < seen) sum = weights[j];
        } else {
          const int start = j * select_block, end = start + select_block;
          const int begin = start < block ? 0 : (start - block) / stride + 1, last = min(seen - 1, (end - 1) / stride);
          for (int i = begin; i <= last; i++) {
            sum += (float)(min(i * stride + block, end) - max(i * stride, start)) * of_stride * weights[i];
          }
        }
        key = __float_as_uint(sum) + 1;
      }
      keys[j] = key;
      look(j, key);
    }
    for (int taken = forced; taken < select_count; taken++) {
      const u32 largest = warp_max(best), at = warp_min(best == largest ? best_at : NONE);
      u32(&round)[WARPS][2] = found[taken % 2];
      if (lane == 0) {
        round[warp][0] = largest;
        round[warp][1] = at;
      }
      __syncthreads();
      u32 top = round[0][0], top_at = round[0][1];
#pragma unroll
      for (int w = 1; w < WARPS; w++) {
        if (round[w][0] > top || (round[w][0] == top && round[w][1] < top_at)) {
          top = round[w][0];
          top_at = round[w][1];
        }
      }
      if (thread == 0) list[taken] = (int)top_at;
      if (best_at == top_at) {
        keys[top_at] = TAKEN;
        best = TAKEN;
        best_at = NONE;
        for (int j = thread; j < blocks; j += THREADS) look(j, keys[j]);
      }
    }
    __syncthreads();
    // In order; the keys' place is free now.
    for (int s = thread; s < select_count; s += THREADS) {
      int before = 0;
      for (int other = 0; other < select_count; other++) before += list[other] < list[s];
      keys[before] = list[s];
    }
  }
  __syncthreads();
  const int* chosen = (const int*)keys;
  const int selected = count == 0 ? 0 : (count - 1) * select_block + min(select_block, position + 1 - chosen[count - 1] * select_block);
  const int window_first = max(0, position + 1 - window), in_window = g_swa != nullptr ? max(0, position + 1 - window_first) : 0;
  if (rank == 0) {
    int* to = indices + (query * kv_heads + kv_head) * select_count;
    for (int s = thread; s < select_count; s += THREADS) to[s] = s < count ? chosen[s] : -1;
  }

  // ---- Selected tokens and the window.
  const i64 key_row = (i64)here.k_start * kv_heads + kv_head;
  const u16* none = nullptr;
  auto branch = [&](int which, int total, auto token_at) {
    const int share = ceil_div(total, CLUSTER), first = rank * share;
    attend(
        base, shared, q, first, min(total, first + share), false, true, scale, result(which), 0,
        [&](int n) { return k + (key_row + (i64)token_at(n) * kv_heads) * D; }, [&](int n) { return none; },
        [&](int n) { return v + (key_row + (i64)token_at(n) * kv_heads) * DV; }, [](const float(&s)[PAIRS * 2][4], int at) {});
    __syncthreads();  // the warps' tiles are free again
  };
  branch(1, selected, [&](int n) { return chosen[n / select_block] * select_block + n % select_block; });
  if (g_swa != nullptr) branch(2, in_window, [&](int n) { return window_first + n; });
  if (rank == 0 && thread == 0) {
    int* to = reads + (query * kv_heads + kv_head) * 3;
    to[0] = seen;
    to[1] = selected;
    to[2] = in_window;
  }
  cluster_sync();

  // ---- All branches: a block takes every CLUSTER-th row.
  const Gates gates = {g_cmp, g_slc, g_swa, gates_f32, gate_kind};
  for (int e = thread; e < ceil_div(group, CLUSTER) * COLUMNS; e += THREADS) {
    const int row = e / COLUMNS * CLUSTER + rank, column = e % COLUMNS;
    if (row >= group || column >= DV) continue;
    const i64 head = query * heads + first_head + row;
    float all = 0.0f;
#pragma unroll
    for (int b = 0; b < 3; b++) {
      if (b == 0 && v_cmp == nullptr || b == 2 && g_swa == nullptr) continue;
      const u32 values = shared_address(result(b).values) + (row * COLUMNS + column) * 4, sums = shared_address(result(b).sums) + row * 8;
      float part[CLUSTER][3], largest = -INFINITE, sum = 0.0f, value = 0.0f;
#pragma unroll
      for (int r = 0; r < CLUSTER; r++) {
        part[r][0] = read_remote(sums, r);
        part[r][1] = read_remote(sums + 4, r);
        part[r][2] = read_remote(values, r);
        largest = fmaxf(largest, part[r][0]);
      }
      if (largest == -INFINITE) continue;
#pragma unroll
      for (int r = 0; r < CLUSTER; r++) {
        const float weight = exp2_approximate(part[r][0] - largest);
        sum += weight * part[r][1];
        value += weight * part[r][2];
      }
      all += gate_of(gates, b, head) * value / sum;
    }
    o[head * DV + column] = to_storage(all);
  }
  cluster_sync();  // nobody leaves while others read its shared memory
}
