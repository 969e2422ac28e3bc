// The state space scan in chunks of 64 tokens by warpgroup products (wgmma), for sm_90a: what chunk.cu computes, for
// P = 64 and without a gate z. The products, transposed so that what a thread holds is what the next one takes:
//
//   y^T [P, tokens] = h C^T + x^T mix^T,   h [P, N] += (to_end x)^T B
//
// h, rounded, and x^T are left operands from registers; C, mix and B are right ones from shared memory as they lie.
// A warpgroup has two heads' states in its registers for a whole segment.
//
// Arguments, shapes and grid as in chunk.cu, but for z; H / G is a multiple of 4. Block (256); dynamic shared memory
// SHARED_BYTES. Macros: those of hopper_tile.cuh.

// Scores of 64 rows and this warpgroup's 32 columns, and from them each head's mixing weights on and below the diagonal.
DEVICE void make_mix(u32 mix, u32 stage, const float* decays, int warp, int lane) {
  const int group = warp / 4, row_tile = warp % 4;
  float s[16];
  {
    const u64 c = descriptor_k_major<128>(stage + C_AT), b = descriptor_k_major<128>(stage + B_AT + group * 32 * 128);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
      const int at = k / 4 * (PANEL >> 4) + k % 4 * 2;
      wgmma_ss<0>(s, c + at, b + at, k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    keep(s);
  }
  if (group * 2 > row_tile) return;  // all above the diagonal
  const int row = row_tile * 16 + lane / 4;
#pragma unroll
  for (int head = 0; head < HEADS; head++) {
    const float* const decay = decays + head * (DECAYS * Q);
    const float upper_in = decay[IN_TILE + row], lower_in = decay[IN_TILE + row + 8];
    const u32 to = mix + head * PANEL + lane % 4 * 4;
#pragma unroll
    for (int n = 0; n < 4; n++) {
      const int column_tile = group * 2 + n / 2, first = group * 32 + n * 8 + lane % 4 * 2;
      if (column_tile > row_tile) continue;
      float w[4];
      if (column_tile < row_tile) {
        const float2 across = *(const float2*)(decay + ACROSS + (row_tile - 1) * Q + first);
        w[0] = s[n * 4] * (upper_in * across.x);
        w[1] = s[n * 4 + 1] * (upper_in * across.y);
        w[2] = s[n * 4 + 2] * (lower_in * across.x);
        w[3] = s[n * 4 + 3] * (lower_in * across.y);
      } else {
        const float upper = decay[ROW + row], lower = decay[ROW + row + 8];
        const float2 at = *(const float2*)(decay + COLUMN + first);
        // Above the diagonal the exponent may be positive: chosen away, not multiplied away.
        w[0] = first <= row ? s[n * 4] * exp2_approximate(upper - at.x) : 0.0f;
        w[1] = first + 1 <= row ? s[n * 4 + 1] * exp2_approximate(upper - at.y) : 0.0f;
        w[2] = first <= row + 8 ? s[n * 4 + 2] * exp2_approximate(lower - at.x) : 0.0f;
        w[3] = first + 1 <= row + 8 ? s[n * 4 + 3] * exp2_approximate(lower - at.y) : 0.0f;
      }
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + piece_at(row, group * 4 + n)), "r"(pack(w[0], w[1])) : "memory");
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + piece_at(row + 8, group * 4 + n)), "r"(pack(w[2], w[3])) : "memory");
    }
  }
}

// One chunk of one head: y into its panel of x, and h on to the end of the chunk.
DEVICE void take_chunk(State& h, u32 panel, u32 stage, u32 mix, const float* decay, float2 skip, int warp, int lane) {
  float y[Q / 2];
  u32 rounded[N / 4];
#pragma unroll
  for (int i = 0; i < N / 4; i++) rounded[i] = pack(h[i * 2], h[i * 2 + 1]);
  const u64 c = descriptor_k_major<128>(stage + C_AT);
  keep(rounded);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < N / 16; k++) {
    wgmma_rs<0>(y, rounded[k * 4], rounded[k * 4 + 1], rounded[k * 4 + 2], rounded[k * 4 + 3],
                c + k / 4 * (PANEL >> 4) + k % 4 * 2, k > 0);
  }
  wgmma_commit();
  // Meanwhile: x, and the state's decay.
  u32 values[Q / 16][4], weighed[Q / 16][4];
#pragma unroll
  for (int j = 0; j < Q / 16; j++) load_values(values[j], panel, j * 16, warp, lane);
  const float fade = decay[FROM_START + Q - 1];
#pragma unroll
  for (int i = 0; i < N / 2; i++) h[i] *= fade;
  wgmma_wait<0>();
  keep(y);
#pragma unroll
  for (int j = 0; j < Q / 16; j++) weigh_values(weighed[j], values[j], decay + TO_END + j * 16, lane);
#pragma unroll
  for (int i = 0; i < Q / 8; i++) {
    const float2 from_start = *(const float2*)(decay + FROM_START + i * 8 + lane % 4 * 2);
    y[i * 4] *= from_start.x;
    y[i * 4 + 1] *= from_start.y;
    y[i * 4 + 2] *= from_start.x;
    y[i * 4 + 3] *= from_start.y;
  }
  keep(y);
  keep(h);
  wgmma_fence();
  const u64 right = descriptor_k_major<128>(mix);
#pragma unroll
  for (int j = 0; j < Q / 16; j++) {
    wgmma_rs<0>(y, values[j][0], values[j][1], values[j][2], values[j][3], right + j * 2, 1);
  }
  wgmma_commit();
  issue_state(h, weighed, stage + B_AT);
  wgmma_commit();
  wgmma_wait<1>();
  keep(y);
#pragma unroll
  for (int i = 0; i < Q / 8; i++) {
    const u32 first = values[i / 2][i % 2 * 2], second = values[i / 2][i % 2 * 2 + 1];
    y[i * 4] = fmaf(low_half(first), skip.x, y[i * 4]);
    y[i * 4 + 1] = fmaf(high_half(first), skip.x, y[i * 4 + 1]);
    y[i * 4 + 2] = fmaf(low_half(second), skip.y, y[i * 4 + 2]);
    y[i * 4 + 3] = fmaf(high_half(second), skip.y, y[i * 4 + 3]);
  }
  // Transposed back over x, of which only this warp has read these columns.
#pragma unroll
  for (int i = 0; i < Q / 8; i += 2) {
    const u32 address = panel + piece_at((i + lane / 16) * 8 + lane % 8, warp % 4 * 2 + lane / 8 % 2);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(pack(y[i * 4], y[i * 4 + 1])), "r"(pack(y[i * 4 + 2], y[i * 4 + 3])),
                 "r"(pack(y[i * 4 + 4], y[i * 4 + 5])), "r"(pack(y[i * 4 + 6], y[i * 4 + 7]))
                 : "memory");
  }
  __syncwarp();
  wgmma_wait<0>();
  keep(h);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ssd_hopper(const u16* __restrict__ x, const void* __restrict__ dt, const void* __restrict__ rate,
               const u16* __restrict__ b, const u16* __restrict__ c, const void* __restrict__ d,
               const void* __restrict__ dt_bias, const float* __restrict__ initial_state,
               const int* __restrict__ cu_seqlens, const int* __restrict__ state_indices,
               const float* __restrict__ states, u16* __restrict__ o, float* __restrict__ final_state, int tokens,
               int heads, int groups, int segments, int dt_f32, int rate_f32, int d_f32, int bias_f32, int d_per_channel,
               int softplus, float dt_min, float dt_max) {
  extern __shared__ __align__(128) unsigned char raw_shared[];
  const u32 base = (shared_address(raw_shared) + 1023) & ~1023u;
  unsigned char* const shared = raw_shared + (base - shared_address(raw_shared));
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int head_block = blockIdx.x * HEADS, sequence = blockIdx.z;
  const Segment segment(cu_seqlens, tokens, sequence, blockIdx.y, segments);
  if (!segment.there) return;
  const int slot = state_indices != nullptr ? state_indices[sequence] : sequence;
  if (slot < 0) {
    constexpr int pieces = HEADS * P / 8;
    for (i64 i = thread; i < (i64)(segment.end - segment.first) * pieces; i += THREADS) {
      const i64 row = (segment.start + segment.first + i / pieces) * heads + head_block;
      *(uint4*)(o + row * P + i % pieces * 8) = make_uint4(0, 0, 0, 0);
    }
    return;
  }
  const Steps steps = {dt, rate, dt_bias, dt_min, dt_max, dt_f32, rate_f32, bias_f32, softplus};
  const int group = head_block / (heads / groups);
  const i64 dt_row = segment.start * heads + head_block;

  auto load_chunk = [&](int first) {
    const u32 stage = base + first / Q % STAGES * STAGE_BYTES;
    const i64 token = segment.start + first;
    const int valid = segment.end - first;
    if (valid > 0) {
      const i64 projection = (token * groups + group) * N;
#pragma unroll
      for (int panel = 0; panel < PANELS; panel++) {
        load_panel(stage + C_AT + panel * PANEL, c + projection + panel * 64, groups * N, valid, thread);
        load_panel(stage + B_AT + panel * PANEL, b + projection + panel * 64, groups * N, valid, thread);
      }
#pragma unroll
      for (int head = 0; head < HEADS; head++) {
        load_panel(stage + VALUES_AT + head * PANEL, x + (token * heads + head_block + head) * P, heads * P, valid, thread);
      }
    }
    copy_commit();
  };
  float* const tables = (float*)(shared + DECAYS_AT);
  auto table = [&](int first, int head) { return tables + (first / Q % 2 * HEADS + head) * (DECAYS * Q); };
  auto scan = [&](int first) {
    const int head = scan_head(warp);
    if (head < 0 || first >= segment.end) return;
    RawSteps raw;
    raw.fetch(steps, dt_row + head, head_block + head, heads, first, segment.end, lane);
    RawSteps::announce(steps, dt_row + head, heads, first + Q, segment.end, lane);
    make_decays(table(first, head), raw, steps, segment.end - first, lane, 0.0f);
  };

  load_chunk(segment.first);
  scan(segment.first);
  // What lies above the diagonal is never written again.
  for (int i = thread; i < HEADS * PANEL / 16; i += THREADS) ((uint4*)(shared + MIX_AT))[i] = make_uint4(0, 0, 0, 0);
  State h[OWN_HEADS];
  float2 skips[OWN_HEADS];
#pragma unroll
  for (int own = 0; own < OWN_HEADS; own++) {
    const int head = head_block + warp / 4 * OWN_HEADS + own;
    const float* from = nullptr;
    if (!segment.is_first) {
      from = states + (((i64)sequence * (segments - 1) + blockIdx.y - 1) * heads + head) * (P * N);
    } else if (initial_state != nullptr) {
      from = initial_state + ((i64)slot * heads + head) * (P * N);
    }
    read_state(h[own], from, warp, lane);
    const i64 column = (i64)head * P + warp % 4 * 16 + lane / 4;
    skips[own] = make_float2(0.0f, 0.0f);
    if (d != nullptr) {
      skips[own].x = number(d, d_per_channel ? column : head, d_f32);
      skips[own].y = number(d, d_per_channel ? column + 8 : head, d_f32);
    }
  }

#pragma unroll 1
  for (int first = segment.first; first < segment.end; first += Q) {
    copy_wait<0>();
    fence_async_shared();
    __syncthreads();  // this chunk has come; everyone has left the one before
    load_chunk(first + Q);
    const u32 stage = base + first / Q % STAGES * STAGE_BYTES;
    make_mix(base + MIX_AT, stage, table(first, 0), warp, lane);
    fence_async_shared();
    __syncthreads();
    scan(first + Q);
#pragma unroll
    for (int own = 0; own < OWN_HEADS; own++) {
      const int head = warp / 4 * OWN_HEADS + own;
      const u32 panel = stage + VALUES_AT + head * PANEL;
      take_chunk(h[own], panel, stage, base + MIX_AT + head * PANEL, table(first, head), skips[own], warp, lane);
      // This warp's 16 columns of 64 tokens.
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = i * 16 + lane / 2;
        uint4 out;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                     : "r"(panel + piece_at(row, warp % 4 * 2 + lane % 2))
                     : "memory");
        if (first + row < segment.end) {
          *(uint4*)(o + ((segment.start + first + row) * heads + head_block + head) * P + warp % 4 * 16 + lane % 2 * 8) = out;
        }
      }
    }
  }
  copy_wait<0>();
  if (segment.is_last) {
#pragma unroll
    for (int own = 0; own < OWN_HEADS; own++) {
      const i64 row = (i64)slot * heads + head_block + warp / 4 * OWN_HEADS + own;
      write_state(h[own], final_state + row * (P * N), warp, lane);
    }
  }
}
