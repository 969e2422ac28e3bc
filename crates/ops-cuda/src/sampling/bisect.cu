// The next token of each row of logits, by a cluster of blocks per row: each block has keys (integers in the order of the logits) and weights
// (integers, whose sum does not depend on its order) of a share of the tokens; limits are found by bisection over the keys, and an exponential
// race among the remaining tokens draws one. Each arithmetic operation is rounded separately and in the order of exact.rs, so that the
// CPU draws the same tokens; sums of integers are the same in any order.
//
// Macros: CLUSTER blocks of a row; HELD 1: a block holds its share in shared memory, 0: it computes it from the logits each
// time; TOP tokens whose log-probabilities are wanted (0 to 20).
//
// logits [rows, vocabulary] f32; controls [rows, 6] f32: temperature, top-p, min-p, repetition, presence, frequency penalty;
// top_k [rows]; seed [rows, 2]; draw [rows]; mask [rows, ceil(vocabulary / 32)] or null; counts [slots, vocabulary] or null;
// slots [rows] or null (the row itself); token [rows]; logprob [rows], top_tokens and top_logprobs [rows, TOP] where TOP > 0.
// Launch: grid (CLUSTER, rows), clusters (CLUSTER), 1024 threads, 8 * share(vocabulary) bytes of dynamic shared memory if HELD.

#define DEVICE __device__ __forceinline__
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr int THREADS = 1024, WARPS = THREADS / 32;
// Pivots of a round, which reduces the range to a quarter.
#ifndef PIVOTS
#define PIVOTS 3
#endif
constexpr int IN_PROMPT = (int)0x80000000u;
constexpr u32 EVERY = 0xffffffffu;
#define INFINITY_F __int_as_float(0x7f800000)
// A limit that admits every token whose key is above 0.
constexpr u64 ALL = 1ull << 32;

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

DEVICE u32 block_rank() {
  u32 rank = 0;
  if (CLUSTER > 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits for every thread of the row; their writes to shared memory of any block are then visible.
DEVICE void row_barrier() {
  if (CLUSTER > 1) {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  } else {
    __syncthreads();
  }
}

// The same address in block `rank` of the row.
DEVICE u32 remote(u32 address, u32 rank) {
  if (CLUSTER == 1) return address;
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

DEVICE void put(u32 address, u64 value) {
  if (CLUSTER > 1) {
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address), "l"(value) : "memory");
  } else {
    asm volatile("st.shared.u64 [%0], %1;" ::"r"(address), "l"(value) : "memory");
  }
}

// ---- Arithmetic of exact.rs.

DEVICE u32 key_of(float x) {
  const u32 bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

DEVICE float value_of(u32 key) { return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key); }

// p * x + c, rounded twice.
DEVICE float then(float p, float x, float c) { return __fadd_rn(__fmul_rn(p, x), c); }

DEVICE u32 weight_of(float z) {
  z = fmaxf(z, -30.0f);
  const float n = __fsub_rn(__fadd_rn(__fmul_rn(z, 1.442695f), 12582912.0f), 12582912.0f);
  const float r = __fsub_rn(__fsub_rn(z, __fmul_rn(n, 0.6933594f)), __fmul_rn(n, -2.1219444e-4f));
  float p = 1.0f / 720.0f;
  p = then(p, r, 1.0f / 120.0f);
  p = then(p, r, 1.0f / 24.0f);
  p = then(p, r, 1.0f / 6.0f);
  p = then(p, r, 0.5f);
  p = then(p, r, 1.0f);
  p = then(p, r, 1.0f);
  const float two_to_n = __int_as_float(((int)n + 127) << 23);
  return (u32)(int)then(fminf(__fmul_rn(p, two_to_n), 1.0f), 1073741824.0f, 0.5f);
}

struct Four {
  u32 word[4];
};

DEVICE Four philox(u32 c0, u32 c1, u32 key0, u32 key1) {
  u32 c2 = 0, c3 = 0;
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const u32 high0 = __umulhi(c0, 0xd2511f53u), low0 = c0 * 0xd2511f53u;
    const u32 high1 = __umulhi(c2, 0xcd9e8d57u), low1 = c2 * 0xcd9e8d57u;
    c0 = high1 ^ c1 ^ key0;
    c1 = low1;
    c2 = high0 ^ c3 ^ key1;
    c3 = low0;
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return {{c0, c1, c2, c3}};
}

DEVICE float exponential(u32 word) {
  word |= 1;
  const int halvings = __clz(word);
  const float lacks = __fmul_rn(__uint2float_rn(0u - (word << halvings)), 1.0f / 4294967296.0f);
  const float s = __fdiv_rn(lacks, __fsub_rn(2.0f, lacks)), q = __fmul_rn(s, s);
  float p = 1.0f / 13.0f;
  p = then(p, q, 1.0f / 11.0f);
  p = then(p, q, 1.0f / 9.0f);
  p = then(p, q, 1.0f / 7.0f);
  p = then(p, q, 0.2f);
  p = then(p, q, 1.0f / 3.0f);
  p = then(p, q, 1.0f);
  return __fadd_rn(__fmul_rn((float)halvings, 0.6931472f), __fmul_rn(__fadd_rn(s, s), p));
}

// ---- Reductions over the threads of a row.

struct Add {
  static DEVICE u64 of(u64 a, u64 b) { return a + b; }
};
struct Most {
  static DEVICE u64 of(u64 a, u64 b) { return a > b ? a : b; }
};

struct Meeting {
  u64 of_warps[WARPS][PIVOTS];
  // Two buffers, because a block may be in the next reduction while another one still reads this one's.
  u64 of_blocks[2][CLUSTER][PIVOTS];
};

// The sum or the largest of each of `N` integers over all threads of the row, in each of them.
template <class Op, int N>
DEVICE void meet(Meeting& at, u32& turn, u64 (&mine)[N]) {
#pragma unroll
  for (int n = 0; n < N; n++) {
#pragma unroll
    for (int far = 16; far > 0; far /= 2) mine[n] = Op::of(mine[n], __shfl_xor_sync(EVERY, mine[n], far));
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) {
#pragma unroll
    for (int n = 0; n < N; n++) at.of_warps[warp][n] = mine[n];
  }
  __syncthreads();
  if (warp == 0) {
#pragma unroll
    for (int n = 0; n < N; n++) {
      u64 all = at.of_warps[lane][n];
#pragma unroll
      for (int far = 16; far > 0; far /= 2) all = Op::of(all, __shfl_xor_sync(EVERY, all, far));
      if (lane < CLUSTER) put(remote(shared_address(&at.of_blocks[turn][block_rank()][n]), lane), all);
    }
  }
  row_barrier();
#pragma unroll
  for (int n = 0; n < N; n++) {
    u64 all = at.of_blocks[turn][0][n];
#pragma unroll 3
    for (int b = 1; b < CLUSTER; b++) all = Op::of(all, at.of_blocks[turn][b][n]);
    mine[n] = all;
  }
  turn ^= 1;
}

// ---- A row.

extern __shared__ uint2 held[];

struct Row {
  const float* logits;
  const u32* mask;
  const int* counts;
  float repetition, presence, frequency;
  float most, factor;
  // This block's tokens.
  int first, end;
  int vocabulary;
  bool as_given;

  DEVICE float penalised(int token) const {
    float x = logits[token];
    if (as_given || counts == nullptr) return x;
    const int count = counts[token], times = count & ~IN_PROMPT;
    if (count != 0) x = x > 0.0f ? __fdiv_rn(x, repetition) : __fmul_rn(x, repetition);
    if (times > 0) x = __fsub_rn(__fsub_rn(x, __fmul_rn(frequency, (float)times)), presence);
    return x;
  }

  DEVICE bool allows(int token) const {
    return as_given || mask == nullptr || mask[token / 32] >> token % 32 & 1;
  }

  // 0 for tokens that may not be chosen.
  DEVICE u32 fresh_key(int token) const {
    const float x = penalised(token);
    return allows(token) && x > -INFINITY_F ? key_of(x) : 0;
  }

  DEVICE u32 fresh_weight(u32 key) const {
    return key == 0 ? 0 : weight_of(__fmul_rn(__fsub_rn(value_of(key), most), factor));
  }

  DEVICE u32 key(int token) const { return HELD ? held[token - first].x : fresh_key(token); }
  DEVICE u32 weight(int token, u32 key) const { return HELD ? held[token - first].y : fresh_weight(key); }
};

// Order of choice: by key, of equal ones the lower token first.
DEVICE u64 place(u32 key, int token) { return (u64)key << 32 | ~(u32)token; }

// The last place of the smallest set of first tokens whose weights, or number, reach the target; the tokens at `limit` or before
// reach it.
template <bool BY_WEIGHT>
DEVICE u64 cut(const Row& row, Meeting& meeting, u32& turn, u64 limit, u64 target, u32 largest) {
  // From `low` on the target is reached, from `high` on it is not. No logit has the largest possible key.
  u32 low = (u32)(limit >> 32), high = largest + 1;
  u64 above = 0;
  while (high - low > 1) {
    u32 pivots[PIVOTS];
    u64 sums[PIVOTS];
#pragma unroll
    for (int p = 0; p < PIVOTS; p++) {
      pivots[p] = low + (u32)((u64)(high - low) * (p + 1) / (PIVOTS + 1));
      sums[p] = 0;
    }
    for (int token = row.first + threadIdx.x; token < row.end; token += THREADS) {
      const u32 key = row.key(token);
      const u32 counts = BY_WEIGHT ? row.weight(token, key) : 1;
#pragma unroll
      for (int p = 0; p < PIVOTS; p++) sums[p] += key >= pivots[p] ? counts : 0;
    }
    meet<Add>(meeting, turn, sums);
    // Pivots rise and sums fall. One that is `low` itself reaches the target, as it is known to.
    u32 next_low = low;
#pragma unroll
    for (int p = 0; p < PIVOTS; p++) {
      const bool reached = pivots[p] == low || sums[p] >= target;
      if (reached) {
        next_low = pivots[p];
      } else if (pivots[p] < high) {
        high = pivots[p];
        above = sums[p];
      }
    }
    low = next_low;
  }
  const u32 key = low;
  u64 left = target - above;
  if (BY_WEIGHT) {
    const u64 one = row.fresh_weight(key);
    left = (left + one - 1) / one;
  }
  // The first `left` tokens of equal keys, among those within the limit: usually all of them, because one token has the key.
  const u64 worst = key == (u32)(limit >> 32) ? limit : (u64)key << 32;
  int last = (int)~(u32)worst, before = -1;
  bool first_time = true;
  if (last < 0) last = row.vocabulary - 1;
  while (last - before > 1 || first_time) {
    const int middle = first_time ? last : before + (last - before) / 2;
    u64 same[1] = {0};
    for (int token = row.first + threadIdx.x; token < row.end; token += THREADS) {
      same[0] += token <= middle && row.key(token) == key;
    }
    meet<Add>(meeting, turn, same);
    if (first_time && same[0] <= left) return worst;
    first_time = false;
    if (same[0] >= left) {
      last = middle;
    } else {
      before = middle;
    }
  }
  return place(key, last);
}

#if TOP
// The first tokens in the order of choice, in the order in which they are found.
struct Found {
  u64 places[TOP];
  u32 count;
};

// The most probable tokens by the logits as given, and log-probabilities of these and of the chosen one.
DEVICE void likeliest(Row row, Meeting& meeting, u32& turn, Found& found, int token, float* logprob, int* top_tokens,
                      float* top_logprobs) {
  row.as_given = true;
  if (threadIdx.x == 0) found.count = 0;
  float sum = 0.0f;
  u64 largest[1] = {0};
  for (int i = row.first + threadIdx.x; i < row.end; i += THREADS) {
    const u32 key = row.fresh_key(i);
    if (HELD) held[i - row.first].x = key;
    largest[0] = Most::of(largest[0], key);
  }
  meet<Most>(meeting, turn, largest);
  const float most = value_of((u32)largest[0]);
  for (int i = row.first + threadIdx.x; i < row.end; i += THREADS) {
    const u32 key = row.key(i);
    if (key != 0) sum += expf(value_of(key) - most);
  }
  // In integers, units of 2^-30 of the largest, so that the order of the sum does not matter.
  u64 all[1] = {(u64)((double)sum * 1073741824.0)};
  meet<Add>(meeting, turn, all);
  const float least = logf((float)((double)all[0] / 1073741824.0));
  const u64 limit = cut<false>(row, meeting, turn, ALL, TOP, (u32)largest[0]);
  const u32 list = remote(shared_address(&found), 0);
  for (int i = row.first + threadIdx.x; i < row.end; i += THREADS) {
    const u64 here = place(row.key(i), i);
    if (here < limit) continue;
    u32 at;
    if (CLUSTER > 1) {
      asm volatile("atom.shared::cluster.add.u32 %0, [%1], 1;"
                   : "=r"(at)
                   : "r"(list + (u32)sizeof(found.places))
                   : "memory");
    } else {
      at = atomicAdd(&found.count, 1u);
    }
    if (at < TOP) put(list + 8 * at, here);
  }
  row_barrier();
  if (block_rank() == 0 && threadIdx.x < 32) {
    const u32 lane = threadIdx.x, count = found.count < TOP ? found.count : TOP;
    const u64 mine = lane < count ? found.places[lane] : 0;
    int rank = 0;
    for (int other = 0; other < TOP; other++) rank += other < count && found.places[other] > mine;
    if (lane < count) {
      top_tokens[rank] = (int)~(u32)mine;
      top_logprobs[rank] = value_of((u32)(mine >> 32)) - most - least;
    } else if (lane < TOP) {
      top_tokens[lane] = -1;
      top_logprobs[lane] = -INFINITY_F;
    }
    if (lane == 0) *logprob = token < 0 ? -INFINITY_F : row.logits[token] - most - least;
  }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sampling_bisect(const float* __restrict__ logits, const float* __restrict__ controls, const int* __restrict__ top_k,
                    const u32* __restrict__ seed, const u32* __restrict__ draw, const u32* __restrict__ mask,
                    const int* __restrict__ counts, const int* __restrict__ slots, int* __restrict__ token_of,
                    float* __restrict__ logprob, int* __restrict__ top_tokens, float* __restrict__ top_logprobs,
                    int vocabulary) {
  __shared__ Meeting meeting;
#if TOP
  __shared__ Found found;
#endif
  let_next_start();
  wait_for_previous();
  logits = read_from_now_on(logits);
  controls = read_from_now_on(controls);
  top_k = read_from_now_on(top_k);
  seed = read_from_now_on(seed);
  draw = read_from_now_on(draw);
  counts = read_from_now_on(counts);
  slots = read_from_now_on(slots);
  const int at = blockIdx.y, slot = slots == nullptr ? at : slots[at];
  const float* const own = controls + 6 * at;
  const float temperature = own[0], top_p = own[1], min_p = own[2];
  const int share = ((vocabulary + CLUSTER - 1) / CLUSTER + 3) / 4 * 4;
  Row row;
  row.logits = logits + (i64)at * vocabulary;
  row.mask = mask == nullptr ? nullptr : mask + (i64)at * ((vocabulary + 31) / 32);
  row.counts = counts == nullptr || slot < 0 ? nullptr : counts + (i64)slot * vocabulary;
  row.repetition = own[3];
  row.presence = own[4];
  row.frequency = own[5];
  row.most = row.factor = 0.0f;
  row.first = min((int)block_rank() * share, vocabulary);
  row.end = min(row.first + share, vocabulary);
  row.vocabulary = vocabulary;
  row.as_given = false;
  u32 turn = 0;
  // No block writes to another's shared memory before that one has started.
  row_barrier();

  // The largest, and whether a logit is NaN or infinity.
  u64 largest[2] = {0, 0};
  for (int token = row.first + threadIdx.x; token < row.end; token += THREADS) {
    const float x = row.logits[token];
    const u32 key = row.fresh_key(token);
    if (HELD) held[token - row.first].x = key;
    if (key != 0) largest[0] = Most::of(largest[0], place(key, token));
    if (!(x < INFINITY_F)) largest[1] = 1;
  }
  meet<Most>(meeting, turn, largest);
  u64 first = largest[0];
  const u32 most = (u32)(first >> 32);
  bool some = most != 0 && largest[1] == 0;
  if (some && temperature > 0.0f) {
    row.most = value_of(most);
    row.factor = fminf(__fdiv_rn(1.0f, temperature), 1e30f);
    u64 limit = ALL, within[2] = {0, 0};
    const int k = top_k[at];
    const bool limited = k > 0 && k < vocabulary;
    // Each thread reads only its own writes.
    for (int token = row.first + threadIdx.x; token < row.end; token += THREADS) {
      const u32 key = row.key(token), weight = row.fresh_weight(key);
      if (HELD) held[token - row.first].y = weight;
      within[0] += weight;
      within[1] += key != 0;
    }
    // In the race a thread takes four consecutive tokens, which other threads wrote.
    if (limited || top_p < 1.0f) {
      meet<Add>(meeting, turn, within);
    } else {
      __syncthreads();
    }
    if (limited && within[1] >= k) {
      limit = cut<false>(row, meeting, turn, limit, k, most);
      if (top_p < 1.0f) {
        within[0] = 0;
        for (int token = row.first + threadIdx.x; token < row.end; token += THREADS) {
          const u32 key = row.key(token);
          if (place(key, token) >= limit) within[0] += row.weight(token, key);
        }
        u64 sum[1] = {within[0]};
        meet<Add>(meeting, turn, sum);
        within[0] = sum[0];
      }
    }
    if (top_p < 1.0f) {
      const u64 target = (u64)ceil((double)top_p * (double)within[0]);
      limit = cut<true>(row, meeting, turn, limit, target > 0 ? target : 1, most);
    }
    const u32 least = max((u32)(int)__fmul_rn(min_p, 1073741824.0f), 1u);
    u64 race[1] = {0};
    for (int four = row.first + 4 * threadIdx.x; four < row.end; four += 4 * THREADS) {
      u32 weights[4];
      bool any = false;
#pragma unroll
      for (int t = 0; t < 4; t++) {
        const int token = four + t;
        weights[t] = 0;
        if (token >= row.end) continue;
        const u32 key = row.key(token), weight = row.weight(token, key);
        if (place(key, token) >= limit && weight >= least) weights[t] = weight;
        any |= weights[t] != 0;
      }
      if (!any) continue;
      const Four words = philox(four / 4, draw[at], seed[2 * at], seed[2 * at + 1]);
#pragma unroll
      for (int t = 0; t < 4; t++) {
        if (weights[t] == 0) continue;
        const float early = __fdiv_rn(__uint2float_rn(weights[t]), exponential(words.word[t]));
        race[0] = Most::of(race[0], place(__float_as_uint(early), four + t));
      }
    }
    meet<Most>(meeting, turn, race);
    first = race[0];
  }
  const int token = some ? (int)~(u32)first : -1;
  if (block_rank() == 0 && threadIdx.x == 0) token_of[at] = token;
#if TOP
  likeliest(row, meeting, turn, found, token, logprob + at, top_tokens + at * TOP, top_logprobs + at * TOP);
#endif
  // No block exits while another one may still access its shared memory.
  row_barrier();
}
