// The state space scan in chunks of 64 tokens by warpgroup products (wgmma), for sm_90a: what chunk.cu computes, for
// P = 64 and without a gate z. The products, transposed so that what a thread holds is what the next one takes:
//
//   y^T [P, tokens] = h C^T + x^T mix^T,   h [P, N] += (to_end x)^T B
//
// h, rounded, and x^T are left operands from registers; C, mix and B are right ones from shared memory as they lie.
// A warpgroup has a head's state in its registers for a whole segment.
//
// x, b and c by the copy engine's maps over [total, H, P] and [total, G, N] in boxes of 64 tokens of one head or group and
// 64 columns, swizzled by 128 bytes. Other arguments, shapes and grid as in chunk.cu, but for z; H / G is even. Block (384); dynamic shared memory
// SHARED_BYTES. Macros: those of hopper_tile.cuh.

// The scores of this warp's 16 rows, issued and not waited for.
DEVICE void issue_scores(float (&s)[Q / 2], u32 stage) {
  const u64 c = descriptor_k_major<128>(stage + C_AT), b = descriptor_k_major<128>(stage + B_AT);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < N / 16; k++) {
    const int at = k / 4 * (PANEL >> 4) + k % 4 * 2;
    wgmma_ss<0>(s, c + at, b + at, k > 0);
  }
  wgmma_commit();
}

DEVICE void store_weights(u32 to, int row, int piece, const float (&w)[4]) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + piece_at(row, piece)), "r"(pack(w[0], w[1])) : "memory");
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + piece_at(row + 8, piece)), "r"(pack(w[2], w[3])) : "memory");
}

// From the scores, each head's mixing weights on and below the diagonal.
DEVICE void make_mix(const float (&s)[Q / 2], u32 mix, const float* decays, int row_tile, int lane) {
  const int row = row_tile * 16 + lane / 4;
#pragma unroll 1
  for (int head = 0; head < HEADS; head++) {
    const float* const decay = decays + head * (DECAYS * Q);
    const u32 to = mix + head * PANEL + lane % 4 * 4;
    const float upper_in = decay[IN_TILE + row], lower_in = decay[IN_TILE + row + 8];
    const float* const across = decay + ACROSS + (row_tile - 1) * Q + lane % 4 * 2;
    const float upper = decay[ROW + row], lower = decay[ROW + row + 8];
#pragma unroll
    for (int tile = 0; tile < Q / 16; tile++) {
      if (tile > row_tile) break;
      if (tile < row_tile) {
#pragma unroll
        for (int n = tile * 2; n < tile * 2 + 2; n++) {
          const float2 at = *(const float2*)(across + n * 8);
          const float w[4] = {s[n * 4] * (upper_in * at.x), s[n * 4 + 1] * (upper_in * at.y),
                              s[n * 4 + 2] * (lower_in * at.x), s[n * 4 + 3] * (lower_in * at.y)};
          store_weights(to, row, n, w);
        }
      } else {
#pragma unroll
        for (int n = tile * 2; n < tile * 2 + 2; n++) {
          const int first = n * 8 + lane % 4 * 2;
          const float2 at = *(const float2*)(decay + COLUMN + first);
          // Above the diagonal the exponent may be positive: chosen away, not multiplied away.
          const float w[4] = {first <= row ? s[n * 4] * exp2_approximate(upper - at.x) : 0.0f,
                              first + 1 <= row ? s[n * 4 + 1] * exp2_approximate(upper - at.y) : 0.0f,
                              first <= row + 8 ? s[n * 4 + 2] * exp2_approximate(lower - at.x) : 0.0f,
                              first + 1 <= row + 8 ? s[n * 4 + 3] * exp2_approximate(lower - at.y) : 0.0f};
          store_weights(to, row, n, w);
        }
      }
    }
  }
}

// One chunk of one head: y into its panel of x, and h on to the end of the chunk.
DEVICE void take_chunk(State& h, u32 panel, u32 stage, u32 mix, const float* decay, const float* skips, int warp, int lane) {
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
  const float fade = decay[FROM_START + Q - 1];
#pragma unroll
  for (int i = 0; i < N / 2; i++) h[i] *= fade;
  wgmma_wait<0>();
  keep(y);
  // Only now are the registers of the rounded state free for x.
  u32 values[Q / 16][4], weighed[Q / 16][4];
#pragma unroll
  for (int j = 0; j < Q / 16; j++) {
    load_values(values[j], panel, j * 16, warp, lane);
    weigh_values(weighed[j], values[j], decay + TO_END + j * 16, lane);
  }
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
  const float2 skip = make_float2(skips[warp % 4 * 16 + lane / 4], skips[warp % 4 * 16 + lane / 4 + 8]);
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
    ssd_hopper(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap b,
               const __grid_constant__ TensorMap c, const void* __restrict__ dt, const void* __restrict__ rate,
               const void* __restrict__ d,
               const void* __restrict__ dt_bias, const float* __restrict__ initial_state,
               const int* __restrict__ cu_seqlens, const int* __restrict__ state_indices,
               const float* __restrict__ states, u16* __restrict__ o, float* __restrict__ final_state, int tokens,
               int heads, int groups, int segments, int dt_f32, int rate_f32, int d_f32, int bias_f32, int d_per_channel,
               int softplus, float dt_min, float dt_max) {
  extern __shared__ __align__(128) unsigned char raw_shared[];
  const u32 base = (shared_address(raw_shared) + 1023) & ~1023u;
  unsigned char* const shared = raw_shared + (base - shared_address(raw_shared));
  // By a shuffle, so that the compiler knows that a warp takes one branch.
  const int thread = threadIdx.x, warp = __shfl_sync(0xffffffff, thread / 32, 0), lane = thread % 32;
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
  init_barriers(base, thread);
  // What lies above the diagonal is never written again.
  for (int i = thread; i < TABLES * MIX_BYTES / 16; i += THREADS) {
    ((uint4*)(shared + MIX_AT))[i] = make_uint4(0, 0, 0, 0);
  }
  for (int i = thread; i < HEADS * P; i += THREADS) {
    const i64 at = d_per_channel ? (i64)head_block * P + i : head_block + i / P;
    ((float*)(shared + SKIPS_AT))[i] = d != nullptr ? number(d, at, d_f32) : 0.0f;
  }
  fence_async_shared();
  __syncthreads();
  float* const tables = (float*)(shared + DECAYS_AT);

  if (warp >= 8) {
    // ---- Loads, decays, mixing weights.
    const Steps steps = {dt, rate, dt_bias, dt_min, dt_max, dt_f32, rate_f32, bias_f32, softplus};
    const int group = head_block / (heads / groups), maker = warp - 8;
    const i64 dt_row = segment.start * heads + head_block + maker;
    const HeadSteps of_head = steps.of_head(head_block + min(maker, HEADS - 1));
    const int chunks = (segment.end - segment.first + Q - 1) / Q;
    auto load = [&](int chunk) {
      if (maker != LOADER || chunk >= chunks || !elect_one()) return;
      const int place = chunk % STAGES;
      load_chunk(base + place * STAGE_BYTES, loaded_barrier(base, place), &x, &b, &c, head_block, group,
                 (int)segment.start + segment.first + chunk * Q);
    };
    RawSteps raw;
    auto fetch = [&](int first) {
      if (maker < HEADS) raw.fetch(steps, dt_row, heads, first, segment.end, lane);
    };
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ahead++) load(ahead);
    fetch(segment.first);
    int count = 0;
#pragma unroll 1
    for (int first = segment.first; first < segment.end; first += Q, count++) {
      const int parity = count % 2;
      const u32 stage = base + count % STAGES * STAGE_BYTES;
      float* const decays = tables + parity * (HEADS * DECAYS * Q);
      if (maker < HEADS) {
        make_decays(decays + maker * (DECAYS * Q), raw, steps, of_head, segment.end - first, lane, 0.0f);
        fetch(first + Q);
      }
      named_barrier_sync(1, MAKERS);
      mbarrier_wait(loaded_barrier(base, count % STAGES), count / STAGES % 2);
      float s[Q / 2];
      issue_scores(s, stage);
      wgmma_wait<0>();
      keep(s);
      make_mix(s, base + MIX_AT + parity * MIX_BYTES, decays, maker, lane);
      fence_async_shared();
      hand_over(full_barrier(base, parity), lane);
      // Into the stage of the chunk before; its weights and decays are then free too.
      if (count > 0) mbarrier_wait(empty_barrier(base, 1 - parity), (count - 1) / 2 % 2);
      load(count + STAGES - 1);
    }
    return;
  }

  // ---- Products.
  const int head = warp / 4;  // of the block
  State h;
  {
    const i64 row = head_block + head;
    const float* from = nullptr;
    if (!segment.is_first) {
      wait_for_previous();
      from = states + (((i64)sequence * (segments - 1) + blockIdx.y - 1) * heads + row) * (P * N);
    } else if (initial_state != nullptr) {
      from = initial_state + ((i64)slot * heads + row) * (P * N);
    }
    read_state(h, from, warp, lane);
  }
  const float* const skips = (const float*)(shared + SKIPS_AT) + head * P;
  int count = 0;
#pragma unroll 1
  for (int first = segment.first; first < segment.end; first += Q, count++) {
    const int parity = count % 2;
    const u32 stage = base + count % STAGES * STAGE_BYTES, panel = stage + VALUES_AT + head * PANEL;
    mbarrier_wait(loaded_barrier(base, count % STAGES), count / STAGES % 2);
    mbarrier_wait(full_barrier(base, parity), count / 2 % 2);
    take_chunk(h, panel, stage, base + MIX_AT + parity * MIX_BYTES + head * PANEL,
               tables + (parity * HEADS + head) * (DECAYS * Q), skips, warp, lane);
    // This warp's 16 columns of 64 tokens.
    const int column = warp % 4 * 2 + lane % 2, row = lane / 2, valid = segment.end - first - row;
    u16* to = o + ((segment.start + first + row) * heads + head_block + head) * P + column * 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint4 out;
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                   : "r"(panel + piece_at(i * 16 + row, column))
                   : "memory");
      if (i * 16 < valid) *(uint4*)to = out;
      to += 16 * heads * P;
    }
    hand_over(empty_barrier(base, parity), lane);
  }
  if (segment.is_last) write_state(h, final_state + ((i64)slot * heads + head_block + head) * (P * N), warp, lane);
}
