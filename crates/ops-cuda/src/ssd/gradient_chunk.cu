// Gradients within chunks of ssd, the third of five launches (steps, states, chunk, sums, reduce): by MMA (mma.sync), from sm_80 on.
//
// Per chunk and head, with a = cumsum of D_ A within the chunk, L its last token, h the entering state, g the gradient of the
// leaving state, W_ts = dy_t . x_s, E_ts = exp(a_t - a_s) D_s W_ts for s <= t, S = C B^T:
//   R_s  = exp(a_L - a_s) g B_s + sum over t >= s of S_ts exp(a_t - a_s) dy_t;   dx_s = D_s R_s + D dy_s
//   dC_t = sum over heads of exp(a_t) h^T dy_t + sum over s of E_ts B_s
//   dB_s = sum over heads of exp(a_L - a_s) D_s g^T x_s + sum over t of E_ts C_t
//   alpha_t = sum over t' >= t of (sum over s < t' of S E_t's - sum over s > t' of S E_st' + exp(a_t') dy_t' . h C_t')
//             + sum over s < t of exp(a_L - a_s) D_s x_s . g B_s + exp(a_L) <h, g>      (gradient of D_t A)
//   dA = sum of alpha_t D_t;   ddt_t = slope_t (x_t . R_t + alpha_t A)
// A block processes one chunk and the heads of a group, or a part of them (splits), one head after another. It keeps the sums
// over heads in registers, dB and dC as 64 x N and E as 64 x 64, and multiplies E by B and C once, after the last head. Eight
// warps compute W, E, the mixing weights S exp(a_t - a_s) and dC, eight others R, dx, dB. gradient_sums.cu finishes the sums over
// tokens.
// alpha and ddt are sums of terms of both signs, so they use the float32 terms S exp(a_t - a_s) W, of which x_s . R_s is a column sum, and not
// the rounded mixing weights. In alpha the diagonal cancels, and its sums skip it.
//
// There is no gate: dy = do silu(z), rounded to bf16, would give dA an error of up to 9e-3. gradient_chunk_any.cu takes gated calls.
//
// x, dy, dx [B, T, H, P], b, c, db, dc [B, T, G, N], or packed with cu_seqlens [Nseq + 1] (null: dense); rate (A) [H];
// d [H] or [H, P] (d_per_channel), may be null.
// Workspace: entering, leaving, table as gradient_states.cu and gradient_steps.cu describe them;
// all_parts f32 [slots, H, PART_FLOATS] for gradient_sums.cu;
// partial f32 [2 (dB, dC), splits, total tokens, G, N], read by gradient_reduce.cu, if splits > 1; then db, dc are not written.
// All 16-byte aligned. x_row, b_row (of c too) are strides in elements between tokens, multiples of 8; gradients and dy are
// contiguous. total: all tokens.
//
// Launch: grid (G * splits, chunks of the longest sequence, Nseq); block (512); dynamic shared memory SHARED_BYTES:
// STAGES * 49920 + 3 * 16384 + 2 * 12288 + 8192 + 10240.
// Macros: DTYPE (bf16, f16), P (64), N (128), STAGES (1, 2).

constexpr int THREADS = 512;
constexpr int GROUP_THREADS = 256;

constexpr int X_AT = 0;
constexpr int DY_AT = Q * Values::stride;
constexpr int ENTERING_AT = 2 * Q * Values::stride;
constexpr int LEAVING_AT = ENTERING_AT + P * Projection::stride;
constexpr int STAGE_BYTES = LEAVING_AT + P * Projection::stride;
constexpr int B_AT = STAGES * STAGE_BYTES;
constexpr int C_AT = B_AT + Q * Projection::stride;
constexpr int PLAIN_C_AT = C_AT + Q * Projection::stride;  // C with its columns in order
constexpr int SCORES_AT = PLAIN_C_AT + Q * Projection::stride;  // S: a lane's accumulators, [3][GROUP_THREADS] float4
constexpr int WEIGHTS_AT = SCORES_AT + 3 * GROUP_THREADS * 16;  // E, likewise
constexpr int MIX_AT = WEIGHTS_AT + 3 * GROUP_THREADS * 16;
constexpr int STEPS_AT = MIX_AT + Q * Mix::stride;
constexpr int STAGING_STRIDE = 80;  // 32 columns, padded by 16 bytes
constexpr int STAGING_AT = STEPS_AT + STAGES * STEP_BYTES;
constexpr int SHARED_BYTES = STAGING_AT + 8 * 16 * STAGING_STRIDE;
static_assert(SHARED_BYTES <= 227 * 1024, "more shared memory than any GPU has");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ssd_gradient_chunk(const u16* __restrict__ x, const u16* __restrict__ dy, const void* __restrict__ rate,
                       const u16* __restrict__ b, const u16* __restrict__ c, const void* __restrict__ d,
                       const int* __restrict__ cu_seqlens, const u16* __restrict__ entering,
                       const u16* __restrict__ leaving, const float* __restrict__ table, u16* __restrict__ dx,
                       u16* __restrict__ db, u16* __restrict__ dc, float* __restrict__ all_parts,
                       float* __restrict__ partial, i64 total, int tokens, int heads, int groups, int splits, int x_row,
                       int b_row, int d_f32, int d_per_channel) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const Chunks chunks(cu_seqlens, tokens, blockIdx.z);
  const int chunk = blockIdx.y;
  if (chunk >= chunks.count) return;
  const int group = blockIdx.x / splits, split = blockIdx.x % splits;
  const int per_group = heads / groups, per_split = (per_group + splits - 1) / splits;
  const int first_head = group * per_group + split * per_split;
  const int head_count = min(per_split, (group + 1) * per_group - first_head);
  const i64 token = chunks.start + chunk * Q;
  const int valid = min(Q, chunks.length - chunk * Q);
  const i64 slot_row = (i64)(chunks.slot + chunk) * heads;

  auto load = [&](int i) {
    if (i < head_count) {
      const int head = first_head + i;
      const u32 stage = base + i % STAGES * STAGE_BYTES;
      const i64 state = (slot_row + head) * (P * N);
      Values::load_range<Q, THREADS>(stage + X_AT, x + token * x_row + head * P, x_row, valid, thread);
      Values::load_range<Q, THREADS>(stage + DY_AT, dy + (token * heads + head) * P, heads * P, valid, thread);
      Projection::load_range<P, THREADS>(stage + ENTERING_AT, entering + state, N, P, thread);
      Projection::load_range<P, THREADS>(stage + LEAVING_AT, leaving + state, N, P, thread);
      if (thread < STEP_BYTES / 16) {
        copy_async<16>(base + STEPS_AT + i % STAGES * STEP_BYTES + thread * 16,
                       table + (slot_row + head) * (STEP_ARRAYS * Q) + thread * 4);
      }
    }
    copy_commit();
  };
#pragma unroll 1
  for (int i = 0; i < STAGES - 1; i++) load(i);

  // B and C, with the columns of N in the order of the states.
#pragma unroll 1
  for (int piece = thread; piece < Q * N / 8; piece += THREADS) {
    const int row = piece / (N / 8), column = piece % (N / 8);
    uint4 of_b = make_uint4(0, 0, 0, 0), of_c = of_b;
    if (row < valid) {
      const i64 at = (token + row) * b_row + group * N + column * 8;
      of_b = *(const uint4*)(b + at);
      of_c = *(const uint4*)(c + at);
    }
    const u32 words_b[4] = {of_b.x, of_b.y, of_b.z, of_b.w}, words_c[4] = {of_c.x, of_c.y, of_c.z, of_c.w};
#pragma unroll
    for (int q = 0; q < 4; q++) {
      const u32 to = Projection::offset(row, column / 4 * 4 + q) + column % 4 * 4;
      *(u32*)(shared + B_AT + to) = words_b[q];
      *(u32*)(shared + C_AT + to) = words_c[q];
    }
    *(uint4*)(shared + PLAIN_C_AT + Projection::offset(row, column)) = of_c;
  }
  __syncthreads();

  // The eight warps of a group have one each of the pieces of S and E, the 32 x 32 tiles of dC or dB, and the 16 x 32 tiles of R.
  const bool first_group = warp < 8;
  const int member = warp % 8;
  const int row_tile = piece_row(member), column_tile = piece_column(member), count = piece_count(member);
  const int row_half = member / 4, part = member % 4;
  const int r_tile = member < 4 ? member : 7 - member, r_half = member / 4;
  if (first_group) {
    float scores[3][4] = {};
    multiply_piece<Projection, N>(scores, base + C_AT, base + B_AT, row_tile, column_tile, count, lane);
#pragma unroll
    for (int n = 0; n < 3; n++) {
      *(float4*)(shared + SCORES_AT + (n * GROUP_THREADS + thread) * 16) =
          make_float4(scores[n][0], scores[n][1], scores[n][2], scores[n][3]);
      *(float4*)(shared + WEIGHTS_AT + (n * GROUP_THREADS + thread) * 16) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }
  float of_projection[2][4][4] = {};  // dC or dB
  auto steps_of = [&](int i) { return (const float*)(shared + STEPS_AT + i % STAGES * STEP_BYTES); };

#pragma unroll 1
  for (int i = 0; i < head_count; i++) {
    if (STAGES == 1) {
      __syncthreads();  // no warp reads the preceding head
      load(i);
    }
    copy_wait<(STAGES > 1 ? STAGES - 2 : 0)>();
    __syncthreads();  // this head has arrived; no warp reads the preceding one
    if (STAGES > 1) load(i + STAGES - 1);
    const int head = first_head + i;
    const u32 stage = base + i % STAGES * STAGE_BYTES;
    const unsigned char* const stage_memory = shared + i % STAGES * STAGE_BYTES;
    const float* const steps = steps_of(i);
    float* const parts = all_parts + (slot_row + head) * PART_FLOATS;
    const float end = steps[EXPONENT + Q - 1];
    auto skip_of = [&](int p) {  // D of two adjacent columns
      const i64 at = d_per_channel ? (i64)head * P + p : head;
      return make_float2(number_or_zero(d, rate, at, d_f32), number_or_zero(d, rate, at + d_per_channel, d_f32));
    };

    if (first_group) {
    // ---- W, the mixing weights S exp(a_t - a_s), E, and the sums of S E.
    {
      float w[3][4] = {};
      multiply_piece<Values, P>(w, stage + DY_AT, stage + X_AT, row_tile, column_tile, count, lane);
      const int row = row_tile * 16 + lane / 4;
      const float upper = steps[EXPONENT + row], lower = steps[EXPONENT + row + 8];
      float upper_sum = 0.0f, lower_sum = 0.0f;
#pragma unroll
      for (int n = 0; n < 3; n++) {
        if (n == 2 && count < 3) continue;
        const int column = (column_tile + n) * 8 + lane % 4 * 2;
        const float2 at = *(const float2*)(steps + EXPONENT + column), step = *(const float2*)(steps + STEP + column);
        const float4 own_scores = *(const float4*)(shared + SCORES_AT + (n * GROUP_THREADS + thread) * 16);
        const float scores[4] = {own_scores.x, own_scores.y, own_scores.z, own_scores.w};
        float mix[4], weights[4], sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int r = row + e / 2 * 8, s = column + e % 2;
          // Above the diagonal the exponent may be positive: selected away, because a product with 0 could be NaN.
          const float decay = s <= r ? exp2_approximate((e < 2 ? upper : lower) - (e % 2 ? at.y : at.x)) : 0.0f;
          const float weight = decay * (e % 2 ? step.y : step.x) * w[n][e];
          weights[e] = weight;
          mix[e] = decay * scores[e];
          const float term = mix[e] * w[n][e], off = s < r ? term : 0.0f;
          if (e < 2) upper_sum = fmaf(off, e % 2 ? step.y : step.x, upper_sum);
          if (e >= 2) lower_sum = fmaf(off, e % 2 ? step.y : step.x, lower_sum);
          sum[e % 2] += off;
          if (s == r) {
            parts[DIAGONAL + r] = w[n][e];
            parts[DIAGONAL_TERMS + r] = term;
          }
        }
        float4* const sums_of_weights = (float4*)(shared + WEIGHTS_AT + (n * GROUP_THREADS + thread) * 16);
        const float4 before = *sums_of_weights;
        *sums_of_weights = make_float4(before.x + weights[0], before.y + weights[1], before.z + weights[2], before.w + weights[3]);
        const u32 to = Mix::offset(row, column_tile + n) + lane % 4 * 4;
        *(u32*)(shared + MIX_AT + to) = pack(mix[0], mix[1]);
        *(u32*)(shared + MIX_AT + to + 8 * Mix::stride) = pack(mix[2], mix[3]);
        sum[0] = octet_sum(sum[0]);
        sum[1] = octet_sum(sum[1]);
        if (lane < 4) *(float2*)(parts + COLUMN_SUMS + row_tile * Q + column) = make_float2(sum[0], sum[1]);
      }
      upper_sum = quad_sum(upper_sum);
      lower_sum = quad_sum(lower_sum);
      if (lane % 4 == 0) {
        float* const to = parts + ROW_SUMS + piece_index(member) * Q + row;
        to[0] = upper_sum;
        to[8] = lower_sum;
      }
    }

    barrier_arrive<1, THREADS>();  // the mixing weights are written

    // ---- dC += exp(a_t) h^T dy_t, and its product with C.
    {
      float acc[2][4][4] = {};
      multiply_state(acc, stage + DY_AT, stage + ENTERING_AT, row_half * 32, part * 2, lane);
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int row = row_half * 32 + r * 8 + lane / 4;
        const float factor = exp2_approximate(steps[EXPONENT + row]);
        const uint4 own_c = *(const uint4*)(shared + PLAIN_C_AT + Projection::offset(row, part * 4 + lane % 4));
        const u32 pairs[4] = {own_c.x, own_c.y, own_c.z, own_c.w};
        float dot = 0.0f;
#pragma unroll
        for (int n = 0; n < 4; n++) {
          const float v0 = acc[r / 2][n][r % 2 * 2], v1 = acc[r / 2][n][r % 2 * 2 + 1];
          dot = fmaf(v0, low_half(pairs[n]), dot);
          dot = fmaf(v1, high_half(pairs[n]), dot);
          of_projection[r / 2][n][r % 2 * 2] = fmaf(factor, v0, of_projection[r / 2][n][r % 2 * 2]);
          of_projection[r / 2][n][r % 2 * 2 + 1] = fmaf(factor, v1, of_projection[r / 2][n][r % 2 * 2 + 1]);
        }
        dot = quad_sum(dot);
        if (lane % 4 == 0) parts[FROM_ENTERING + part * Q + row] = factor * dot;
      }
    }
    // ---- <h, g>: the diagonal of h g^T, 16 rows and half of the columns per warp.
    {
      float upper[4] = {}, lower[4] = {};
      const int rows = member % 4 * 16 * Projection::stride;
#pragma unroll
      for (int k = 0; k < N / 32; k++) {
        u32 left[4], right[4];
        load_matrix_x4(left, stage + ENTERING_AT + rows + Projection::advance(Projection::lane_offset(lane), member / 4 * (N / 32) + k));
        load_matrix_x4(right, stage + LEAVING_AT + rows + Projection::advance(Projection::lane_offset_right(lane), member / 4 * (N / 32) + k));
        multiply(upper, left, right[0], right[1]);
        multiply(lower, left, right[2], right[3]);
      }
      const int off = lane / 4 - lane % 4 * 2;
      const float own = off == 0 ? upper[0] + lower[2] : off == 1 ? upper[1] + lower[3] : 0.0f;
      const float trace = warp_sum(own);
      if (lane == 0) parts[TRACE + member] = trace;
    }
    } else {
    // Loaded early; a weight per channel is loaded where it is used.
    const float skip_of_head = number_or_zero(d, rate, head, d_f32);

    // ---- dB += exp(a_L - a_s) D_s g^T x_s.
    {
      float acc[2][4][4] = {};
      multiply_state(acc, stage + X_AT, stage + LEAVING_AT, row_half * 32, part * 2, lane);
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int row = row_half * 32 + r * 8 + lane / 4;
        const float factor = exp2_approximate(end - steps[EXPONENT + row]) * steps[STEP + row];
#pragma unroll
        for (int n = 0; n < 4; n++) {
#pragma unroll
          for (int e = 0; e < 2; e++) {
            float& to = of_projection[r / 2][n][r % 2 * 2 + e];
            to = fmaf(factor, acc[r / 2][n][r % 2 * 2 + e], to);
          }
        }
      }
    }
    // ---- R = exp(a_L - a_s) g B_s.
    float r[4][4] = {};
    multiply_projection(r, base + B_AT, stage + LEAVING_AT, r_tile, r_half * 32, lane);
    const int row = r_tile * 16 + lane / 4;
    u32 own_x[2][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float factor = exp2_approximate(end - steps[EXPONENT + row + half * 8]);
      float dot = 0.0f;
#pragma unroll
      for (int n = 0; n < 4; n++) {
        own_x[half][n] = *(const u32*)(stage_memory + X_AT + Values::offset(row + half * 8, r_half * 4 + n) + lane % 4 * 4);
        r[n][half * 2] *= factor;
        r[n][half * 2 + 1] *= factor;
        dot = fmaf(r[n][half * 2], low_half(own_x[half][n]), dot);
        dot = fmaf(r[n][half * 2 + 1], high_half(own_x[half][n]), dot);
      }
      dot = quad_sum(dot);
      if (lane % 4 == 0) parts[TO_LEAVING + r_half * Q + row + half * 8] = dot;
    }
    barrier_sync<1, THREADS>();  // the first group has written the mixing weights

    // ---- R += (S exp(a_t - a_s))^T dy.
#pragma unroll
    for (int k = 0; k < Q / 16; k++) {
      if (k < r_tile) continue;
      u32 a[4];
      load_matrix_x4_transposed(a, base + MIX_AT + k * 16 * Mix::stride + Mix::advance(Mix::lane_offset_right(lane), r_tile));
#pragma unroll
      for (int n = 0; n < 2; n++) {
        u32 right[4];
        load_matrix_x4_transposed(right, stage + DY_AT + k * 16 * Values::stride +
                                             Values::advance(Values::lane_offset(lane), r_half * 2 + n));
        multiply(r[n * 2], a, right[0], right[1]);
        multiply(r[n * 2 + 1], a, right[2], right[3]);
      }
    }
    unsigned char* const staging = shared + STAGING_AT + member * 16 * STAGING_STRIDE;
    float2 skip[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
      skip[n] = make_float2(skip_of_head, skip_of_head);
      if (d_per_channel) skip[n] = skip_of(r_half * 32 + n * 8 + lane % 4 * 2);
    }
    float of_d[4][2] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float step = steps[STEP + row + half * 8];
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const float x0 = low_half(own_x[half][n]), x1 = high_half(own_x[half][n]);
        const u32 own_dy =
            *(const u32*)(stage_memory + DY_AT + Values::offset(row + half * 8, r_half * 4 + n) + lane % 4 * 4);
        const float dy0 = low_half(own_dy), dy1 = high_half(own_dy);
        of_d[n][0] = fmaf(x0, dy0, of_d[n][0]);
        of_d[n][1] = fmaf(x1, dy1, of_d[n][1]);
        *(u32*)(staging + (lane / 4 + half * 8) * STAGING_STRIDE + n * 16 + lane % 4 * 4) =
            pack(fmaf(step, r[n][half * 2], skip[n].x * dy0), fmaf(step, r[n][half * 2 + 1], skip[n].y * dy1));
      }
    }
    if (d_per_channel) {
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const float2 v = make_float2(octet_sum(of_d[n][0]), octet_sum(of_d[n][1]));
        if (lane < 4) *(float2*)(parts + D_SUMS + r_tile * P + r_half * 32 + n * 8 + lane * 2) = v;
      }
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 2; j++) {
      const int at = (j * 32 + lane) / 4, piece = lane % 4;
      const uint4 out = *(const uint4*)(staging + at * STAGING_STRIDE + piece * 16);
      const int t = r_tile * 16 + at;
      if (t < valid) *(uint4*)(dx + ((token + t) * heads + head) * P + r_half * 32 + piece * 8) = out;
    }
    __syncwarp();
    }
  }
  copy_wait<0>();
  __syncthreads();

  // ---- dC += E B, dB += E^T C.
  if (first_group) {
    const int row = row_tile * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < 3; n++) {
      if (n == 2 && count < 3) continue;
      const float4 weights = *(const float4*)(shared + WEIGHTS_AT + (n * GROUP_THREADS + thread) * 16);
      const u32 to = Mix::offset(row, column_tile + n) + lane % 4 * 4;
      *(u32*)(shared + MIX_AT + to) = pack(weights.x, weights.y);
      *(u32*)(shared + MIX_AT + to + 8 * Mix::stride) = pack(weights.z, weights.w);
    }
  }
  __syncthreads();
  const int out_row = row_half * 32 + lane / 4;
  const i64 row_stride = (i64)groups * N, at = token * row_stride + group * N + part * 32 + lane % 4 * 8;
  float* const to_partial =
      splits > 1 ? partial + ((first_group ? splits : 0) + split) * total * row_stride + at : nullptr;
  if (first_group) {
    multiply_triangle<false>(of_projection, base + MIX_AT, base + B_AT, row_half, part * 2, lane);
  } else {
    multiply_triangle<true>(of_projection, base + MIX_AT, base + C_AT, row_half, part * 2, lane);
  }
  write_projection(of_projection, (first_group ? dc : db) + at, to_partial, row_stride, out_row, valid);
}
