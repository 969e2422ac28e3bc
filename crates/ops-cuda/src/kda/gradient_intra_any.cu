// Gradients of q, k, g and beta within chunks: the fourth launch of the gradient of kda and gated_delta
// (prepare, forward, reverse, intra, reduce). Definitions: gradient_any.cuh; r, y: gradient_forward_any.cu, gradient_reverse_any.cu.
//
// With S the entering state, dS the gradient of the leaving one, U = Diag(beta) r, dX = Diag(beta) y, products over V:
//   dAq_ij = scale dO_i . U_j (j <= i);  dAk_ij = -dX_i . U_j (j < i);  dbeta_i = y_i . r_i
//   dq_i = scale e^{G_i} (S dO_i) + sum over j <= i of dAq_ij e^{G_i - G_j} k_j
//   dk_i = -e^{G_i} (S dX_i) + sum over j < i of dAk_ij e^{G_i - G_j} k_j
//        + e^{G_C - G_i} (dS U_i) + sum over t >= i of e^{G_t - G_i} (dAq_ti q_t + dAk_ti k_t)
//   dg_t = sums over i >= t of the first terms of q_i . dq_i + k_i . dk_i, over j < t of the third terms of k_j . dk_j, over pairs
//          j < t <= i of the second ones, and e^{G_C} <S, dS>, per channel. Pairs i = j are excluded: they do not depend on g.
//
// Inputs as in gradient_prepare_any.cu, output_gradient [total, HV, V]. dq, dk f32 [total, HV, K4] for the normalised q and k, per value
// head (reduced by gradient_reduce_any.cu); dg [total, HV, GATES], dbeta [total, HV] in the types of g and beta;
// sums f32 [slots, HV, 1 + GATES]: of the gradients of A_log and of dt_bias, written for a gate.
//
// Launch: grid (HV, chunks of the longest sequence, Nseq); block (256); dynamic shared memory
// 4 * (4 * 16 * K4 + 3 * 16 * V4 + 3 * 16 * K4 + 16 * K4 + 2 * 256 + 64). Macros: those of gradient_any.cuh.

constexpr int THREADS = 256;

// acc += left right^T: 4 rows of each, `depth` long, a multiple of 4; rows outside `right_rows` are not read.
DEVICE void multiply_rows(float (&acc)[4][4], const float* left, int left_row, const float* right, int right_row, int right_rows,
                          int depth) {
#pragma unroll 2
  for (int c = 0; c < depth; c += 4) {
    float l[4][4], r[4][4] = {};
#pragma unroll
    for (int e = 0; e < 4; e++) {
      unpack(l[e], *(const float4*)(left + e * left_row + c));
      if (e < right_rows) unpack(r[e], *(const float4*)(right + (i64)e * right_row + c));
    }
#pragma unroll
    for (int e = 0; e < 16; e++) {
#pragma unroll
      for (int j = 0; j < 4; j++) acc[e / 4][e % 4] = fmaf(l[e / 4][j], r[e % 4][j], acc[e / 4][e % 4]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    kda_gradient_intra_any(const void* __restrict__ q, const void* __restrict__ k, const void* __restrict__ g,
                           const void* __restrict__ beta, const void* __restrict__ a_log, const void* __restrict__ dt_bias,
                           const void* __restrict__ output_gradient, const int* __restrict__ cu_seqlens,
                           const float* __restrict__ entering, const float* __restrict__ leaving, const float* __restrict__ r,
                           const float* __restrict__ y, float* __restrict__ dq, float* __restrict__ dk, void* __restrict__ dg,
                           void* __restrict__ dbeta, float* __restrict__ sums, int tokens, int heads, int value_heads, int slots,
                           int q_row, int k_row, int l2norm, float scale, int gate, float lower_bound, float factor, int g_f32,
                           int beta_f32, int rate_f32, int bias_f32) {
  extern __shared__ __align__(128) unsigned char shared[];
  float* const q_tile = (float*)shared;
  float* const k_tile = q_tile + Q * K4;
  float* const high = k_tile + Q * K4;
  float* const low = high + Q * K4;
  float* const d_o = low + Q * K4;
  float* const u = d_o + Q * V4;
  float* const dx = u + Q * V4;
  float* const from_q = dx + Q * V4;      // S dO
  float* const from_k = from_q + Q * K4;  // S dX
  float* const to_end = from_k + Q * K4;  // dS U
  float* const by_channel = to_end + Q * K4;
  float* const daq = by_channel + Q * K4;
  float* const dak = daq + Q * Q;
  float* const of_beta = dak + Q * Q;
  float* const of_rate = of_beta + Q;  // [8 warps]
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, head = blockIdx.x, chunk = blockIdx.y;
  const Chunks chunks(cu_seqlens, tokens, blockIdx.z);
  // Slots that no chunk uses: their sums are 0.
  if (chunk == 0 && gate != GATE_NONE) {
    const int sequence = blockIdx.z;
    const int next = sequence + 1 == gridDim.z ? slots : cu_seqlens != nullptr ? cu_seqlens[sequence + 1] / Q + sequence + 1
                                                                               : chunks.slot + chunks.count;
    for (int slot = chunks.slot + chunks.count; slot < next; slot++) {
      for (int c = thread; c < 1 + GATES; c += THREADS) sums[((i64)slot * value_heads + head) * (1 + GATES) + c] = 0.0f;
    }
  }
  if (chunk >= chunks.count) return;
  const i64 token = chunks.start + chunk * Q, row = (i64)(chunks.slot + chunk) * value_heads + head;
  const int valid = min(Q, chunks.length - chunk * Q);
  const Gates gates = {g, beta, a_log, dt_bias, gate, g_f32, beta_f32, rate_f32, bias_f32, lower_bound, factor};
  const int shared_head = head / (value_heads / heads);
  load_keys<THREADS>(q_tile, k_tile, (const char*)q + (token * q_row + shared_head * K) * ELEMENT_BYTES,
                     (const char*)k + (token * k_row + shared_head * K) * ELEMENT_BYTES, q_row, k_row, valid, l2norm, thread);
  load_sums<THREADS>(high, low, gates, token, value_heads, head, valid, thread);
  for (int i = warp; i < Q; i += THREADS / 32) {
    const float own = i < valid ? gates.strength(token + i, value_heads, head) : 0.0f;
    float sum = 0.0f;
    for (int c = lane; c < V4; c += 32) {
      const bool there = i < valid && c < V;
      const i64 at = ((token + i) * value_heads + head) * V4 + c;
      const float own_r = there ? r[at] : 0.0f, own_y = there ? y[at] : 0.0f;
      d_o[i * V4 + c] = there ? number(output_gradient, ((token + i) * value_heads + head) * V + c, false) : 0.0f;
      u[i * V4 + c] = own * own_r;
      dx[i * V4 + c] = own * own_y;
      sum = fmaf(own_r, own_y, sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) of_beta[i] = sum;
  }
  __syncthreads();
  const float* const s = entering + row * (K * V4);
  const float* const ds = leaving + row * (K * V4);
  // Products with the states: three of [Q, K4], in tiles of 4 x 4; then the two of [Q, Q].
  constexpr int TILES = Q / 4 * (K4 / 4);
  for (int tile = thread; tile < 3 * TILES + 32; tile += THREADS) {
    float acc[4][4] = {};
    if (tile < 3 * TILES) {
      const int which = tile / TILES, i = tile % TILES / (K4 / 4) * 4, c = tile % TILES % (K4 / 4) * 4;
      const float* const left = which == 0 ? d_o : which == 1 ? dx : u;
      multiply_rows(acc, left + i * V4, V4, (which == 2 ? ds : s) + c * V4, V4, K - c, V4);
      float* const to = which == 0 ? from_q : which == 1 ? from_k : to_end;
#pragma unroll
      for (int e = 0; e < 4; e++) *(float4*)(to + (i + e) * K4 + c) = make_float4(acc[e][0], acc[e][1], acc[e][2], acc[e][3]);
    } else {
      const int which = (tile - 3 * TILES) / 16, i = (tile - 3 * TILES) % 16 / 4 * 4, j = (tile - 3 * TILES) % 4 * 4;
      multiply_rows(acc, (which == 0 ? d_o : dx) + i * V4, V4, u + j * V4, V4, 4, V4);
#pragma unroll
      for (int e = 0; e < 16; e++) {
        const int row_i = i + e / 4, row_j = j + e % 4;
        if (which == 0) daq[row_i * Q + row_j] = row_j <= row_i ? scale * acc[e / 4][e % 4] : 0.0f;
        if (which == 1) dak[row_i * Q + row_j] = row_j < row_i ? -acc[e / 4][e % 4] : 0.0f;
      }
    }
  }
  __syncthreads();

  // A channel per thread.
  for (int c = thread; c < K4; c += THREADS) {
    float own_q[Q], own_k[Q], own_high[Q], own_low[Q], of_q[Q], of_k[Q], change[Q];
#pragma unroll
    for (int i = 0; i < Q; i++) {
      own_q[i] = q_tile[i * K4 + c];
      own_k[i] = k_tile[i * K4 + c];
      own_high[i] = high[i * K4 + c];
      own_low[i] = low[i * K4 + c];
      const float from_start = exp2_fast(own_high[i]);
      of_q[i] = scale * from_start * from_q[i * K4 + c];
      of_k[i] = -from_start * from_k[i * K4 + c];
      change[i] = own_q[i] * of_q[i] + own_k[i] * of_k[i];
    }
    float trace = 0.0f;
    if (c < K) {
      for (int v = 0; v < V4; v += 4) {
        float a[4], b[4];
        unpack(a, *(const float4*)(s + c * V4 + v));
        unpack(b, *(const float4*)(ds + c * V4 + v));
#pragma unroll
        for (int e = 0; e < 4; e++) trace = fmaf(a[e], b[e], trace);
      }
    }
    trace *= exp2_fast(own_high[Q - 1]);
#pragma unroll
    for (int i = 0; i < Q; i++) {
#pragma unroll
      for (int j = 0; j <= i; j++) {
        const float decay = i == j ? 1.0f : exp2_fast(own_high[i] - own_high[j] + (own_low[i] - own_low[j]));
        const float of_aq = daq[i * Q + j] * decay, of_ak = j < i ? dak[i * Q + j] * decay : 0.0f;
        of_q[i] = fmaf(of_aq, own_k[j], of_q[i]);
        const float right = fmaf(of_aq, own_q[i], of_ak * own_k[i]);
        of_k[j] += right;
        if (j < i) {
          of_k[i] = fmaf(of_ak, own_k[j], of_k[i]);
          change[i] = fmaf(right, own_k[j], change[i]);
          change[j] = fmaf(-right, own_k[j], change[j]);
        }
      }
    }
    float after = 0.0f;
#pragma unroll
    for (int i = Q - 1; i >= 0; i--) {
      after += change[i];
      change[i] = after;
    }
    float before = trace;
#pragma unroll
    for (int i = 0; i < Q; i++) {
      change[i] += before;
      const float end = exp2_fast(own_high[Q - 1] - own_high[i] + (own_low[Q - 1] - own_low[i])) * to_end[i * K4 + c];
      of_k[i] += end;
      before = fmaf(end, own_k[i], before);
      by_channel[i * K4 + c] = change[i];
      if (i < valid) {
        const i64 at = ((token + i) * value_heads + head) * K4 + c;
        dq[at] = of_q[i];
        dk[at] = of_k[i];
      }
    }
  }
  __syncthreads();

  // ---- The gate and the write strength.
  const float rate = gates.rate(head);
  if (GATES == 1) {  // one decay per head: summed over channels
    for (int i = warp; i < Q; i += THREADS / 32) {
      float sum = 0.0f;
      for (int c = lane; c < K4; c += 32) sum += by_channel[i * K4 + c];
      sum = warp_sum(sum);
      if (lane == 0) by_channel[i * K4] = sum;
    }
    __syncthreads();
  }
  float rate_sum = 0.0f;
  for (int c = thread; c < GATES; c += THREADS) {
    float bias_sum = 0.0f;
    for (int i = 0; i < valid; i++) {
      float gradient = by_channel[i * K4 + c];
      gradient = gates.of_logit(gradient, gates.x(token + i, value_heads, head, c), rate, rate_sum);
      bias_sum += gradient;
      store_number(dg, ((token + i) * value_heads + head) * GATES + c, gradient, g_f32);
    }
    if (gate != GATE_NONE) sums[row * (1 + GATES) + 1 + c] = bias_sum;
  }
  rate_sum = warp_sum(rate_sum);
  if (lane == 0) of_rate[warp] = rate_sum;
  if (thread < valid) {
    const float gradient = of_beta[thread] * gates.strength_slope(token + thread, value_heads, head);
    store_number(dbeta, (token + thread) * value_heads + head, gradient, beta_f32);
  }
  __syncthreads();
  if (thread == 0 && gate != GATE_NONE) {
    float sum = 0.0f;
    for (int k = 0; k < THREADS / 32; k++) sum += of_rate[k];
    sums[row * (1 + GATES)] = sum;
  }
}
