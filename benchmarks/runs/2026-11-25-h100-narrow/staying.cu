// Prototype 2: phases of a decode step by blocks that stay; weights come by bulk copies, x lies in registers.
constexpr int WARPS = 16, CONSUMERS = WARPS * 32, THREADS = CONSUMERS + 32;
constexpr int COLUMNS_OF_WARP = 64;
constexpr int CHUNK_MOST = WARPS * COLUMNS_OF_WARP;
constexpr int STAGE = 16 * CHUNK_MOST * WEIGHT_BITS / 8;
#ifndef RING_BYTES
#define RING_BYTES (160 << 10)
#endif
constexpr int STAGES = RING_BYTES / STAGE;
#ifndef UNDER_WAY
#define UNDER_WAY ((64 << 10) / STAGE)
#endif
#ifndef STAGES_MOST
#define STAGES_MOST 20
#endif
#define MOST_PHASES 256
#ifndef N_STATE
#define N_STATE 128
#endif
constexpr int GROUP = 128;

struct __align__(16) Phase {
  int kind;  // 0 linear, 1 scan
  int pad;
  const char* x; const Weight* w; const void* norm; const void* bias; const float* residual;
  char *o0, *o1, *o2, *o3, *o4, *o5;
  const void *conv_weight, *conv_bias; const float* initial_state; float* final_state; const int* state_indices;
  const float* w_scale;
  const void *dt, *rate, *b, *c, *d, *z, *dt_bias;
  int start1, start2, start3, start4, start5, tokens, inputs, columns, norm_f32, bias_f32, out_f32;
  float scale, eps;
  int conv_weight_f32, conv_bias_f32, conv_silu, conv_first, conv_channels;
  int x_f32, swiglu, convolved;
  int heads, groups, head_dim, x_row, dt_row, b_row, c_row, z_row, dt_f32, rate_f32, d_f32, d_per_channel, softplus;
  float dt_min, dt_max;
};
struct Source { const char* w; int inputs, columns, swiglu, segs; };

DEVICE void barrier_init(u32 at, int count) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory"); }
DEVICE void barrier_expect(u32 at, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory"); }
DEVICE void barrier_arrive(u32 at) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory"); }
DEVICE void barrier_wait(u32 at, int parity) {
  asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(at), "r"(parity) : "memory");
}
DEVICE void bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
DEVICE void meet_inside() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

// D += A B in f32, A and B in f16 (narrow weights) or bf16.
DEVICE void product(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if WEIGHT_BITS == 16
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE u32 pair_f16(float low, float high) { u32 v; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low)); return v; }

// 16 weights of a row as eight pairs.
struct Weights {
  u32 pair[8];
  DEVICE void load(u32 at) {
#if WEIGHT_BITS == 16
    const uint4 a = load_shared(at), b = load_shared(at + 16);
    pair[0] = a.x, pair[1] = a.y, pair[2] = a.z, pair[3] = a.w, pair[4] = b.x, pair[5] = b.y, pair[6] = b.z, pair[7] = b.w;
#elif WEIGHT_BITS == 8
    const uint4 a = load_shared(at);
    const u32 word[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}"
          : "=r"(pair[2 * i]), "=r"(pair[2 * i + 1]) : "r"(word[i]));
    }
#else
    u32 word[2];
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "r"(at) : "memory");
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const u32 q = h == 0 ? word[i] : word[i] >> 8;
        u32 low, high;
        asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(low) : "r"(q), "r"(0x000f000f), "r"(0x64006400));
        asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(high) : "r"(q), "r"(0x00f000f0), "r"(0x64006400));
        // 1024 + e - 1032; (1024 + 16 e) / 16 - 72.
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(pair[4 * i + 2 * h]) : "r"(low), "r"(0x3c003c00), "r"(0xe408e408));
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(pair[4 * i + 2 * h + 1]) : "r"(high), "r"(0x2c002c00), "r"(0xd480d480));
      }
    }
#endif
  }
};
// Which of 16 columns stand in a pair's halves.
DEVICE constexpr int column_of(int pair, int half) {
  return WEIGHT_BITS == 4 ? pair / 4 * 8 + pair % 4 + half * 4 : pair * 2 + half;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) chain(const Phase* __restrict__ phases, int count_of_phases, u32* meeting, int unused0, int unused1, u64* stamps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ Source sources[MOST_PHASES];
  __shared__ __align__(16) Phase held_phase[2];
  __shared__ __align__(8) u64 full[STAGES], empty[STAGES];
  __shared__ float squares[WARPS];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const u32 ring = shared_address(shared), full_at = shared_address(full), empty_at = shared_address(empty);
  float* const sums = (float*)(shared + STAGES * STAGE);  // [STAGES_MOST][WARPS][16]
#if GROUPED
  float* const factors = sums + STAGES_MOST * WARPS * 16;  // [rows][groups]
#endif
  for (int i = thread; i < count_of_phases; i += THREADS) {
    const Phase& p = phases[i];
    int segs = 1;
    while (segs * CHUNK_MOST < p.inputs) segs *= 2;
    sources[i] = {(const char*)p.w, p.inputs, p.kind == 0 ? p.columns : 0, p.swiglu, segs};
  }
  constexpr int PHASE_WORDS = sizeof(Phase) / 16;
  if (thread < PHASE_WORDS) ((uint4*)&held_phase[0])[thread] = ((const uint4*)phases)[thread];
  if (thread == 0) {
    for (int s = 0; s < STAGES; s++) barrier_init(full_at + 8 * s, 1), barrier_init(empty_at + 8 * s, WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (warp == WARPS) {
    if (lane != 0) return;
    int at = 0;
    for (int phase = 0; phase < count_of_phases; phase++) {
      const Source s = sources[phase];
      if (s.columns == 0) continue;
      const u32 row_bytes = (u32)s.inputs * WEIGHT_BITS / 8;
      const int first = (u32)s.columns * blockIdx.x / gridDim.x, count = (u32)s.columns * (blockIdx.x + 1) / gridDim.x - first;
      const int rows = 16 / s.segs;
      for (int half = 0; half <= s.swiglu; half++) {
        const char* from = s.w + (i64)(first + half * s.columns) * row_bytes;
        for (int left = count; left > 0; left -= rows, at++) {
          const int slot = at % STAGES, turn = at / STAGES;
          if (turn > 0) barrier_wait(empty_at + 8 * slot, (turn - 1) & 1);
          if (at >= UNDER_WAY) barrier_wait(full_at + 8 * ((at - UNDER_WAY) % STAGES), (at - UNDER_WAY) / STAGES & 1);
          const u32 bytes = min(rows, left) * row_bytes;
          barrier_expect(full_at + 8 * slot, bytes);
#ifdef STAGE_STAMPS
          if (phase == 28) { u64 now; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); stamps[8448 + blockIdx.x * 32 + half * 8 + (count - left) / rows] = now; }
#endif
          bulk(ring + slot * STAGE, from, bytes, full_at + 8 * slot);
          from += bytes;
        }
      }
    }
    return;
  }

  wait_for_previous();
  let_next_start();
  u32 target = 0;
  const auto stamp = [&](int phase, int which) {
#ifdef STAMPS
    if (thread == 0 && stamps != nullptr) {
      u64 now; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      stamps[((u64)phase * gridDim.x + blockIdx.x) * 4 + which] = now;
    }
#endif
  };
  const auto meet = [&](int phase) {
    if (phase == 0) return;
    if (thread == 0) {
      u32 now;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(meeting) : "memory");
      } while ((int)(now - target) < 0);
    }
    meet_inside();
  };
  int at = 0;
  for (int phase = 0; phase < count_of_phases; phase++) {
    const Phase& p = held_phase[phase % 2];
    stamp(phase, 0);
    uint4 ahead;
    const bool takes = thread < PHASE_WORDS && phase + 1 < count_of_phases;
    if (takes) ahead = __ldg((const uint4*)(phases + phase + 1) + thread);
    if (p.kind == 1) {
      constexpr int SCAN_ROWS = 2;
      const int rows = p.heads * p.head_dim, head_dim = p.head_dim;
      const int slot = p.state_indices != nullptr ? __ldg(p.state_indices) : 0;
      bool met = false;
      for (int first = (blockIdx.x * WARPS + warp) * SCAN_ROWS; first < rows || !met; first += gridDim.x * WARPS * SCAN_ROWS) {
        const bool there = first < rows && slot >= 0;
        const int head = there ? first / head_dim : 0, channel = first - head * head_dim, group = head / (p.heads / p.groups);
        float4 h[SCAN_ROWS];
        const i64 state = ((i64)(slot < 0 ? 0 : slot) * rows + (there ? first : 0)) * N_STATE + lane * 4;
#pragma unroll
        for (int r = 0; r < SCAN_ROWS; r++) h[r] = there ? __ldcg((const float4*)(p.initial_state + state + r * N_STATE)) : make_float4(0, 0, 0, 0);
        const float bias = p.dt_bias != nullptr ? number(p.dt_bias, head, p.bias_f32) : 0.0f;
        const float rate2 = number(p.rate, head, p.rate_f32) * 1.44269504f;
        const float skip = p.d == nullptr ? 0.0f : number(p.d, p.d_per_channel ? (i64)head * head_dim + channel + lane % 2 : head, p.d_f32);
        if (!met) meet(phase), met = true;
        if (first >= rows) break;
        const auto current2 = [&](const void* from, i64 index) {
          u16 v; asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(v) : "l"((const u16*)from + index) : "memory"); return widen_half(v);
        };
        const auto current4 = [&](const void* from, i64 index, float (&to)[4]) {
          u32 a, b; asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "l"((const u16*)from + index) : "memory");
          to[0] = widen_half(a & 0xffff), to[1] = widen_half(a >> 16), to[2] = widen_half(b & 0xffff), to[3] = widen_half(b >> 16);
        };
        float bb[4], cc[4], xx[SCAN_ROWS];
        current4(p.b, (i64)group * N_STATE + lane * 4, bb);
        current4(p.c, (i64)group * N_STATE + lane * 4, cc);
        float step = (p.dt_f32 ? load_current((const float*)p.dt + head) : current2(p.dt, head)) + bias;
        u32 xs; asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(xs) : "l"((const u16*)p.x + first) : "memory");
        xx[0] = widen_half(xs & 0xffff), xx[1] = widen_half(xs >> 16);
        const float z = p.z != nullptr ? current2(p.z, (i64)first + lane % 2) : 0.0f;
        if (p.softplus && step <= 20.0f) step = log1pf(expf(step));
        step = fminf(fmaxf(step, p.dt_min), p.dt_max);
        const float decay = exp2f(step * rate2);
        float sum[SCAN_ROWS];
#pragma unroll
        for (int r = 0; r < SCAN_ROWS; r++) {
          const float weight = step * xx[r];
          h[r].x = fmaf(weight, bb[0], decay * h[r].x), h[r].y = fmaf(weight, bb[1], decay * h[r].y);
          h[r].z = fmaf(weight, bb[2], decay * h[r].z), h[r].w = fmaf(weight, bb[3], decay * h[r].w);
          sum[r] = fmaf(h[r].x, cc[0], fmaf(h[r].y, cc[1], fmaf(h[r].z, cc[2], h[r].w * cc[3])));
          if (there) __stcg((float4*)(p.final_state + state + r * N_STATE), h[r]);
        }
#pragma unroll
        for (int r = 0; r < SCAN_ROWS; r++) {
#pragma unroll
          for (int far = 16; far > 0; far /= 2) sum[r] += __shfl_xor_sync(0xffffffff, sum[r], far);
        }
        float mine = lane % 2 == 0 ? sum[0] : sum[1];
        mine = fmaf(skip, xx[lane % 2], mine);
        if (p.z != nullptr) mine *= silu(z);
        if (lane < 2) *((u16*)p.o0 + first + lane) = narrow_half(slot < 0 ? 0.0f : mine);
      }
      stamp(phase, 1), stamp(phase, 2);
    } else {
      const int inputs = p.inputs, columns = p.columns, segs = sources[phase].segs, chunk = inputs / segs, rows = 16 / segs;
      const bool swiglu = p.swiglu;
      const int first = (u32)columns * blockIdx.x / gridDim.x;
      const int count = (u32)columns * (blockIdx.x + 1) / gridDim.x - first, stages = ceil_div(count, rows);
      const int all = stages << (int)swiglu;
      const Outputs outputs = {p.bias, p.residual, p.o0, p.o1, p.o2, p.o3, p.o4, p.o5, p.start1, p.start2,
                               p.start3, p.start4, p.start5, columns, p.bias_f32, p.out_f32, swiglu, p.scale};
#if TAPS > 0
      const Convolution convolution = {p.conv_weight, p.conv_bias, p.initial_state, p.final_state, p.state_indices,
                                       p.conv_weight_f32, p.conv_bias_f32, p.conv_silu, p.conv_first, p.convolved ? p.conv_channels : 0};
#endif
      // ---- Before the meeting: what no kernel writes.
      const int seg = lane / 4, within = warp * COLUMNS_OF_WARP + lane % 4 * 16;
      const bool works = warp * COLUMNS_OF_WARP < chunk, reads = works && seg < segs;
      const int x_column = seg * chunk + within;
      float weight[16];
#pragma unroll
      for (int i = 0; i < 16; i++) weight[i] = 1.0f;
      if (p.norm != nullptr && reads) {
        float some[8];
        numbers<8>(some, p.norm, x_column, p.norm_f32);
#pragma unroll
        for (int i = 0; i < 8; i++) weight[i] = some[i];
        numbers<8>(some, p.norm, x_column + 8, p.norm_f32);
#pragma unroll
        for (int i = 0; i < 8; i++) weight[8 + i] = some[i];
      }
#if GROUPED
      {
        const int groups = inputs / GROUP, of_all = swiglu ? 2 * columns : columns, held = swiglu ? 2 * count : count;
        for (int i = thread; i < groups * held; i += CONSUMERS) {
          const int group = i / held, row = i - group * held;
          const int from = row < count ? first + row : columns + first + row - count;
          copy_async<4>(shared_address(factors + row * groups + group), p.w_scale + (i64)group * of_all + from);
        }
        copy_commit();
      }
#endif
      const int column = thread / 4, part = thread % 4;
      const bool finishes = part == 0 && column < count;
      const auto factor_of = [&](int column) { return WEIGHT_BITS != 8 || GROUPED ? 1.0f : __ldg(p.w_scale + first + column); };
      float factor = 1.0f, factor_of_up = 1.0f;
      if (finishes) {
        factor = factor_of(column);
        if (swiglu) factor_of_up = factor_of(columns + column);
      }
#if TAPS > 0
      const Convolution::Held state = convolution.held(0, first + column, finishes && p.convolved);
#endif
      meet(phase);
      stamp(phase, 1);
      // ---- x.
      float value[16];
      if (reads) {
        if (p.x_f32) {
          u32 word[16];
          const char* from = p.x + (i64)x_column * 4;
#pragma unroll
          for (int i = 0; i < 4; i++) load_current(word + 4 * i, from + 16 * i);
#pragma unroll
          for (int i = 0; i < 16; i++) value[i] = __uint_as_float(word[i]);
        } else {
          u32 word[8];
          const char* from = p.x + (i64)x_column * 2;
          load_current(word, from), load_current(word + 4, from + 16);
#pragma unroll
          for (int i = 0; i < 8; i++) value[2 * i] = widen_half(word[i] & 0xffff), value[2 * i + 1] = widen_half(word[i] >> 16);
        }
      } else {
#pragma unroll
        for (int i = 0; i < 16; i++) value[i] = 0.0f;
      }
      const Outputs::Around around = outputs.around(0, first + column, finishes);
      float squared = 0.0f;
#pragma unroll
      for (int i = 0; i < 16; i++) squared = fmaf(value[i], value[i], squared), value[i] *= weight[i];
      u32 x[8];
      float back = 1.0f;
#if WEIGHT_BITS == 16
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] = pack(value[column_of(i, 0)], value[column_of(i, 1)]);
#else
      u32 most = 0;
#pragma unroll
      for (int i = 0; i < 16; i++) value[i] = widen_half(narrow_half(value[i])), most = max(most, __float_as_uint(value[i]) & 0x7fffffff);
      most = __reduce_max_sync(0xffffffff, most);
      const int exponent = min(268 - (int)(most >> 23), 253);
      const float there = __uint_as_float((u32)exponent << 23);
      back = __uint_as_float((u32)(254 - exponent) << 23);
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] = pair_f16(value[column_of(i, 0)] * there, value[column_of(i, 1)] * there);
#endif
      stamp(phase, 2);
      // ---- Products, a stage of 16 chunks at once.
      const int lane_row = lane / 4;
      const bool keeps = (lane_row % segs) / 2 == lane % 4;
      const bool odd = lane_row % segs % 2;
      const u32 row_at = lane_row * chunk * WEIGHT_BITS / 8 + within * WEIGHT_BITS / 8, eight_rows = chunk * WEIGHT_BITS;
      float* to = sums + warp * 16 + lane_row;
#if GROUPED
      copy_wait<0>();
      meet_inside();
      const int groups = inputs / GROUP, group = ((lane_row % segs) * chunk + within) / GROUP;
      const float* factor_from = factors + lane_row / segs * groups + group;
#endif
      for (int stage = 0; stage < all; stage++, at++) {
        const int slot = at % STAGES;
#ifdef STAGE_STAMPS
        const auto note = [&](int which) { if (thread == 0 && phase == 28) { u64 now; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); stamps[(blockIdx.x * 32 + stage) * 2 + which] = now; } };
        note(0);
#endif
        barrier_wait(full_at + 8 * slot, at / STAGES & 1);
#ifdef STAGE_STAMPS
        note(1);
#endif
        if (works) {
          Weights low, high;
          low.load(ring + slot * STAGE + row_at);
          high.load(ring + slot * STAGE + row_at + eight_rows);
          float sum[2][4] = {};
#pragma unroll
          for (int i = 0; i < 4; i++) product(sum[i % 2], low.pair[2 * i], high.pair[2 * i], low.pair[2 * i + 1], high.pair[2 * i + 1], x[2 * i], x[2 * i + 1]);
          __syncwarp();
          if (lane == 0) barrier_arrive(empty_at + 8 * slot);
          if (keeps) {
            float a = odd ? sum[0][1] + sum[1][1] : sum[0][0] + sum[1][0], b = odd ? sum[0][3] + sum[1][3] : sum[0][2] + sum[1][2];
#if GROUPED
            // Rows of this stage: those of the gates, and behind `count` those of the ups.
            const int of_half = stage >= stages ? stage - stages : stage, base = (stage >= stages ? count : 0) + of_half * rows;
            const float* const f = factor_from + base * groups;
            a *= f[0], b *= f[8 / segs * groups];
#endif
            to[0] = a * back, to[8] = b * back;
          }
        } else {
          __syncwarp();
          if (lane == 0) barrier_arrive(empty_at + 8 * slot);
          if (keeps) to[0] = to[8] = 0.0f;
        }
        to += WARPS * 16;
      }
      if (p.norm != nullptr) {
#pragma unroll
        for (int far = 16; far > 0; far /= 2) squared += __shfl_xor_sync(0xffffffff, squared, far);
        if (lane == 0) squares[warp] = squared;
      }
      meet_inside();
#ifdef STAGE_STAMPS
      if (thread == 0 && phase == 28) { u64 now; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); stamps[(blockIdx.x * 32 + 30) * 2 + 0] = now; }
#endif
      // ---- The warps' sums.
      const auto total = [&](int stage, int row) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS / 4; w++) {
          const float* const from = sums + (stage * WARPS + part * (WARPS / 4) + w) * 16 + row * segs;
          for (int s = 0; s < segs; s++) sum += from[s];
        }
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        return sum + __shfl_xor_sync(0xffffffff, sum, 2);
      };
      for (int c = column; c - column < count; c += CONSUMERS / 4) {
        const int safe = min(c, count - 1), stage = safe / rows, row = safe - stage * rows;
        const float value = total(stage, row), up = swiglu ? total(stages + stage, row) : 0.0f;
        if (part == 0 && c < count) {
          float root = 1.0f;
          if (p.norm != nullptr) {
            float all_squares = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) all_squares += squares[w];
            root = rsqrtf(all_squares / inputs + p.eps);
          }
          Outputs::Around of = around;
          float here = factor, here_up = factor_of_up;
#if TAPS > 0
          Convolution::Held held = state;
#endif
          if (c != column) {
            of = outputs.around(0, first + c, true);
            here = factor_of(c);
            if (swiglu) here_up = factor_of(columns + c);
#if TAPS > 0
            held = convolution.held(0, first + c, p.convolved);
#endif
          }
          outputs.finish(value * here * root, up * here_up * root, of, [&](float finished) {
#if TAPS > 0
            return p.convolved ? convolution.step(held, finished) : finished;
#else
            return finished;
#endif
          });
        }
      }
    }
#ifdef STAGE_STAMPS
      if (thread == 0 && phase == 28) { u64 now; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); stamps[(blockIdx.x * 32 + 30) * 2 + 1] = now; }
#endif
    stamp(phase, 3);
    if (takes) ((uint4*)&held_phase[(phase + 1) % 2])[thread] = ahead;
    meet_inside();
    if (phase + 1 < count_of_phases && thread == 0) {
      __threadfence();
      if (phase == 0) {
        const u32 old = atomicAdd(meeting, 1u);
        target = old - old % gridDim.x + gridDim.x;
      } else {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(meeting) : "memory");
        target += gridDim.x;
      }
    }
  }
}
