// A decode step of nsa in one launch on Hopper: a cluster of CLUSTER blocks of threads takes one query and one key head with up to
// 16 heads of its group. Each block scores its share of the compressed tokens; sums, then weights, are sent to the shared memory of
// all others; each block makes the same selection; each attends its share of the selected and of the window's tokens, and sends each
// 16 columns of its partial results to the block that merges these columns of the three branches, gated.
//
// q, o [B, Tq, HQ, D|DV], k, v [B, Tk, Hkv, D|DV], or packed with cu_q and cu_k. k_cmp, k_rest, v_cmp as in
// compressed.cu (k_rest only where KEY_COPIES is 2). indices [.., Hkv, n], reads [.., Hkv, 3] as written by select.cu in mode 1.
//
// Launch: grid (CLUSTER, Hkv, B * tq), block 32 * WARPS, dynamic shared memory ATTEND_BYTES + 3 * CLUSTER * (1024 *
// ceil(ceil(DV / 16) / CLUSTER) + 128) + 64 share + 4 (tokens + blocks + n), tokens and blocks of the longest sequence, share its
// compressed tokens / CLUSTER rounded up. Macros: D, DV, DTYPE, TILE, WARPS, KEY_COPIES, CLUSTER. n is at most 1024.
//
// Source: ampere.cuh, call.cuh, softmax.cuh, common.cuh, step.cuh, importance.cuh, step_select.cuh and this.

constexpr int OWN_PIECES = (PIECES + CLUSTER - 1) / CLUSTER;  // of 16 columns that a block merges
constexpr int INBOX_FLOATS = OWN_PIECES * 256 + 32;            // from one block of a branch: values, maximum and sum of each row

// A block has one mbarrier per kind of message from the other blocks: no cluster barrier is needed in between. (hopper.cuh has
// similar helpers; this kernel uses the rows and MMAs of ampere.cuh.)
enum Inbox { SUMS, WEIGHTS, RESULTS, INBOXES };

DEVICE void barrier_init(u32 barrier) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory"); }

DEVICE void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waits until all expected bytes have arrived.
DEVICE void barrier_wait(u32 barrier) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\n"
      "@p bra ready;\nbra again;\nready:\n}\n" ::"r"(barrier)
      : "memory");
}

// The same address in block `rank` of the cluster.
DEVICE u32 remote_address(u32 address, u32 rank) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// Writes to another block's memory, counted on a barrier of that block.
DEVICE void send(u32 to, u32 barrier, float x) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(x), "r"(barrier)
               : "memory");
}
DEVICE void send(u32 to, u32 barrier, float x, float y) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to), "f"(x),
               "f"(y), "r"(barrier)
               : "memory");
}
DEVICE void send(u32 to, u32 barrier, const float (&x)[4]) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier)
               : "memory");
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
  __shared__ float lse[WARPS][16], gates[16][3];
  __shared__ u64 arrived[INBOXES];
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, warp = warp_number(), lane = thread % 32, rank = blockIdx.x;
  const int sequence = blockIdx.z / tq, token = blockIdx.z % tq;
  const Sequence here = sequence_at(sequence, cu_q, cu_k, tq, tk);
  if (token >= here.queries) return;  // the whole cluster
  const int group = heads / kv_heads, kv_head = blockIdx.y, first_head = kv_head * group;
  const int position = token + here.keys - here.queries;
  const Selecting selecting = selecting_at(position, block, stride, select_block, select_count, initial_blocks, local_blocks);
  const int seen = selecting.seen;
  const i64 query = here.q_start + token;
  float* inbox = (float*)(shared + ATTEND_BYTES);               // [branch][block][INBOX_FLOATS]
  float* scores = inbox + 3 * CLUSTER * INBOX_FLOATS;           // [16][share]
  float* weights = scores + 16 * most_share;                    // [tokens], all blocks'
  u32* keys = (u32*)weights + most_tokens;                      // [blocks], then those selected
  int* list = (int*)keys + most_blocks;                         // [n]
  Totals found;
  auto from = [&](int branch, int block_rank) { return inbox + (branch * CLUSTER + block_rank) * INBOX_FLOATS; };
  auto send_sums = [&](int branch, Inbox inbox_of) {
    for (int to = warp; to < CLUSTER; to += WARPS) {
      if (lane % 4 == 0) {
        const u32 sums = remote_address(shared_address(from(branch, rank) + OWN_PIECES * 256), to);
        const u32 barrier = remote_address(shared_address(arrived + inbox_of), to);
        send(sums + lane / 4 * 8, barrier, found.maximum[0], found.sum[0]);
        send(sums + lane / 4 * 8 + 64, barrier, found.maximum[1], found.sum[1]);
      }
    }
  };
  auto send_values = [&](int branch) {
#pragma unroll
    for (int p = 0; p < WARP_PIECES; p++) {
      const int piece = warp + p * WARPS;
      if (piece >= PIECES) break;
      const u32 to = remote_address(shared_address(from(branch, rank) + piece / CLUSTER * 256 + lane * 4), piece % CLUSTER);
      const u32 barrier = remote_address(shared_address(arrived + RESULTS), piece % CLUSTER);
      send(to, barrier, found.output[p][0]);
      send(to + 512, barrier, found.output[p][1]);
    }
  };
  if (thread == 0) {
    // Per branch, a block receives 128 bytes of sums and 1 KiB for each of its pieces from every block.
    const int pieces = (PIECES - rank + CLUSTER - 1) / CLUSTER, branches = g_swa != nullptr ? 2 : 1;
    for (int i = 0; i < INBOXES; i++) barrier_init(shared_address(arrived + i));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    barrier_expect(shared_address(arrived + SUMS), CLUSTER * 128);
    barrier_expect(shared_address(arrived + WEIGHTS), 4 * seen);
    barrier_expect(shared_address(arrived + RESULTS),
                   CLUSTER * (branches * 128 + (branches + (v_cmp != nullptr)) * pieces * 1024));
  }
  // All blocks have started and initialized their barriers before their memory is written. Whole warps arrive.
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  load_query(base, q, q + (query * heads + first_head) * D, group);

  // Thread 16 b + r loads the gate of branch b and row r after the scores, and uses it after the weights.
  const void* gates_of = thread / 16 == 0 ? g_cmp : thread / 16 == 1 ? g_slc : thread / 16 == 2 ? g_swa : nullptr;
  const bool gate_is_there = gates_of != nullptr && thread % 16 < group, gate_is_f32 = gates_f32 >> thread / 16 & 1;
  const int share = min(most_share, ceil_div(max(seen, 1), CLUSTER)), first_own = rank * share;
  const int own = max(0, min(seen, first_own + share) - first_own);  // compressed tokens
  const int count = min(selecting.blocks, select_count);
  const int window_first = max(0, position + 1 - window), in_window = g_swa != nullptr ? max(0, position + 1 - window_first) : 0;
  const int* chosen = (const int*)keys;
  int selected = 0;

  // Compressed tokens with the selection, selected tokens, the window: one loop, since a step executes its code only once (instruction cache).
#pragma unroll 1
  for (int branch = 0; branch < (g_swa != nullptr ? 3 : 2); branch++) {
    const int total = branch == 1 ? selected : in_window, share_of_all = ceil_div(total, CLUSTER);
    const int first = branch == 0 ? first_own : rank * share_of_all;
    const int end = branch == 0 ? first_own + own : min(total, first + share_of_all);
    const i64 row = (branch == 0 ? compressed_row(here, sequence, stride, rows_each) : here.k_start) * kv_heads + kv_head;
    Source source = {k + row * D, nullptr, v + row * DV, kv_heads};
    if (branch == 0) {
      source.keys = k_cmp + row * D;
      source.rest = k_rest != nullptr ? k_rest + row * D : nullptr;
      source.values = v_cmp != nullptr ? v_cmp + row * DV : nullptr;
    }
    attend(
        base, source, first, end, scale, found,
        [&](int n) {
          return branch == 0 ? n : branch == 1 ? chosen[n / select_block] * select_block + n % select_block : window_first + n;
        },
        [&](const float(&s)[PAIRS * 2][4], int at) {
          if (branch != 0) return;
#pragma unroll
          for (int n = 0; n < PAIRS * 2; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
              const int row = lane / 4 + e / 2 * 8, i = at - first + n * 8 + lane % 4 * 2 + e % 2;
              if (i < own) scores[row * most_share + i] = s[n][e];
            }
          }
        });
    if (branch == 0) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    send_sums(branch, branch == 0 ? SUMS : RESULTS);
    if (source.values != nullptr) send_values(branch);
    if (branch != 0) continue;

    // ---- Weights of all compressed tokens, and the selection.
    u32 gate_bits = 0;
    if (gate_is_there) {
      const i64 at = query * heads + first_head + thread % 16;
      gate_bits = gate_is_f32 ? ((const u32*)gates_of)[at] : ((const u16*)gates_of)[at];
    }
    barrier_wait(shared_address(arrived + SUMS));
    // Every warp computes the sums of all rows.
    if (lane < 16) {
      float largest = -INFINITE, sum = 0.0f, part[CLUSTER][2];
#pragma unroll
      for (int r = 0; r < CLUSTER; r++) {
        const float2 both = *(const float2*)(from(0, r) + OWN_PIECES * 256 + lane * 2);
        part[r][0] = both.x;
        part[r][1] = both.y;
        largest = fmaxf(largest, both.x);
      }
      const float center = largest == -INFINITE ? 0.0f : largest;
#pragma unroll
      for (int r = 0; r < CLUSTER; r++) sum += exp2_approximate(part[r][0] - center) * part[r][1];
      lse[warp][lane] = lane < group && sum > 0.0f ? largest + log2_approximate(sum) : INFINITE;
    }
    __syncwarp();
    // Four lanes take a token, four of its rows each, and divide the destination blocks among them.
#pragma unroll 1
    for (int i = thread / 4; i - thread / 4 < own; i += THREADS / 4) {
      float weight = 0.0f;
      if (i < own) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
          const int row = thread % 4 * 4 + r;
          if (row < group) weight += exp2_approximate(scores[row * most_share + i] - lse[warp][row]);
        }
      }
      weight = row_sum(weight);
      if (i < own) {
#pragma unroll
        for (int to = thread % 4; to < CLUSTER; to += 4) {
          send(remote_address(shared_address(weights + first_own + i), to), remote_address(shared_address(arrived + WEIGHTS), to), weight);
        }
      }
    }
    asm volatile("" : "+r"(gate_bits)::"memory");
    if (thread < 48) {
      const float stored = gate_is_f32 ? __uint_as_float(gate_bits) : to_float((u16)gate_bits);
      gates[thread % 16][thread / 16] = gate_is_there ? stored : -INFINITE;
    }
    barrier_wait(shared_address(arrived + WEIGHTS));
    select_blocks(selecting, weights, keys, list);
    if (count > 0) selected = (count - 1) * select_block + min(select_block, position + 1 - chosen[count - 1] * select_block);
  }
  if (rank == 0) {
    int* to = indices + (query * kv_heads + kv_head) * select_count;
#pragma unroll 1
    for (int s = thread; s < select_count; s += THREADS) to[s] = s < count ? chosen[s] : -1;
    if (thread == 0) {
      int* read = reads + (query * kv_heads + kv_head) * 3;
      read[0] = seen;
      read[1] = selected;
      read[2] = in_window;
    }
  }
  barrier_wait(shared_address(arrived + RESULTS));

  // ---- Merge of all branches in this block's columns.
#pragma unroll 1
  for (int e = thread; e < OWN_PIECES * 256; e += THREADS) {
    const int row = e / 16 % 16, in_piece = e % 16, column = (e / 256 * CLUSTER + rank) * 16 + in_piece;
    if (row >= group || column >= DV) continue;
    // In the layout of send_values: eight columns of all rows, four values per lane.
    const int place = e / 256 * 256 + in_piece / 8 * 128 + (row % 8 * 4 + in_piece % 8 / 2) * 4 + row / 8 * 2 + in_piece % 2;
    float all = 0.0f;
#pragma unroll 1
    for (int b = 0; b < 3; b++) {
      if (b == 0 && v_cmp == nullptr || b == 2 && g_swa == nullptr) continue;
      float largest = -INFINITE, sum = 0.0f, value = 0.0f;
      float2 part[CLUSTER];
#pragma unroll
      for (int r = 0; r < CLUSTER; r++) {
        part[r] = *(const float2*)(from(b, r) + OWN_PIECES * 256 + row * 2);
        largest = fmaxf(largest, part[r].x);
      }
      if (largest == -INFINITE) continue;
#pragma unroll
      for (int r = 0; r < CLUSTER; r++) {
        const float weight = exp2_approximate(part[r].x - largest);
        sum += weight * part[r].y;
        value += weight * from(b, r)[place];
      }
      all += gate_from(gates[row], gate_kind, b) * value * reciprocal_approximate(sum);
    }
    o[(query * heads + first_head + row) * DV + column] = to_storage(all);
  }
}
