// Gradients of q, k, g and beta within chunks by MMA (mma.sync), from sm_80 on: the third of four launches
// (gradient_prepare_any.cu with TF32, gradient_scan.cu, intra, gradient_reduce_any.cu). Formulas and arguments are those of
// gradient_intra_any.cu; entering, leaving, r, y as gradient_scan.cu writes them.
//
// A warp computes 16 channels of the three products with the states. The other terms need one exponential for each pair of tokens and
// channel; two threads share a channel, one has the odd tokens i of the pairs, one the even ones.
//
// Launch: grid (HV, chunks of the longest sequence, Nseq); block (256); dynamic shared memory SHARED_BYTES.
// Macros: those of gradient_any.cuh with K 128, V 128, DTYPE bf16 or f16.

constexpr int THREADS = 256;
static_assert(K == 128 && V == 128, "eight warps of 16 channels");
typedef Rows<K> States;  // [V, K]; tiles [Q, V] alike
constexpr int ENTERING_AT = 0;
constexpr int LEAVING_AT = ENTERING_AT + V * States::stride;
constexpr int DO_AT = LEAVING_AT + V * States::stride;
constexpr int U_AT = DO_AT + Q * States::stride;
constexpr int DX_AT = U_AT + Q * States::stride;
constexpr int FLOATS_AT = DX_AT + Q * States::stride;
// Floats from FLOATS_AT on.
constexpr int Q_AT = 0, K_AT = Q * K, HIGH_AT = 2 * Q * K, LOW_AT = 3 * Q * K;
constexpr int DAQ_AT = 4 * Q * K, DAK_AT = DAQ_AT + Q * Q, TRACE_AT = DAK_AT + Q * Q;
constexpr int OF_BETA_AT = TRACE_AT + K, OF_RATE_AT = OF_BETA_AT + Q;
[[maybe_unused]] constexpr int SHARED_BYTES = FLOATS_AT + (OF_RATE_AT + 8) * 4;
// Floats in the place of the states, after their products: S dO, S dX, dS U, and the gradient of the decays.
constexpr int FROM_Q_AT = 0, FROM_K_AT = Q * K, TO_END_AT = 2 * Q * K, BY_CHANNEL_AT = 3 * Q * K;

DEVICE float low_half(u32 pair) { return widen_half(STORAGE == STORED_bf16 ? pair : pair & 0xffff); }
DEVICE float high_half(u32 pair) {
  return STORAGE == STORED_bf16 ? __uint_as_float(pair & 0xffff0000u) : widen_half(pair >> 16);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    kda_gradient_intra(const void* __restrict__ q, const void* __restrict__ k, const void* __restrict__ g,
                       const void* __restrict__ beta, const void* __restrict__ a_log, const void* __restrict__ dt_bias,
                       const u16* __restrict__ output_gradient, const int* __restrict__ cu_seqlens,
                       const u16* __restrict__ entering, const u16* __restrict__ leaving, const u16* __restrict__ r,
                       const u16* __restrict__ y, float* __restrict__ dq, float* __restrict__ dk, void* __restrict__ dg,
                       void* __restrict__ dbeta, float* __restrict__ sums, int tokens, int heads, int value_heads, int slots,
                       int q_row, int k_row, int l2norm, float scale, int gate, float lower_bound, float factor, int g_f32,
                       int beta_f32, int rate_f32, int bias_f32) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 base = shared_address(shared);
  float* const floats = (float*)(shared + FLOATS_AT);
  float* const products = (float*)shared;
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
  const i64 own_rows = (token * value_heads + head) * V;
  States::load_range<V, THREADS>(base + ENTERING_AT, entering + row * (K * V), K, V, thread);
  States::load_range<V, THREADS>(base + LEAVING_AT, leaving + row * (K * V), K, V, thread);
  copy_commit();

  const Gates gates = {g, beta, a_log, dt_bias, gate, g_f32, beta_f32, rate_f32, bias_f32, lower_bound, factor};
  const int shared_head = head / (value_heads / heads);
  load_keys<THREADS>(floats + Q_AT, floats + K_AT, (const char*)q + (token * q_row + shared_head * K) * ELEMENT_BYTES,
                     (const char*)k + (token * k_row + shared_head * K) * ELEMENT_BYTES, q_row, k_row, valid, l2norm, thread);
  load_sums<THREADS>(floats + HIGH_AT, floats + LOW_AT, gates, token, value_heads, head, valid, thread);
  // dO, U, dX: 16 threads per token, 8 columns each.
  {
    const int t = thread / 16, column = thread % 16;
    const bool there = t < valid;
    const float strength = there ? gates.strength(token + t, value_heads, head) : 0.0f;
    const i64 at = own_rows + (i64)t * value_heads * V + column * 8;
    uint4 of_o = make_uint4(0, 0, 0, 0), of_r = of_o, of_y = of_o;
    if (there) {
      of_o = *(const uint4*)(output_gradient + at);
      of_r = *(const uint4*)(r + at);
      of_y = *(const uint4*)(y + at);
    }
    const u32 pairs_r[4] = {of_r.x, of_r.y, of_r.z, of_r.w}, pairs_y[4] = {of_y.x, of_y.y, of_y.z, of_y.w};
    u32 u[4], dx[4];
    float sum = 0.0f;
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const float r0 = low_half(pairs_r[e]), r1 = high_half(pairs_r[e]), y0 = low_half(pairs_y[e]), y1 = high_half(pairs_y[e]);
      sum = fmaf(r0, y0, fmaf(r1, y1, sum));
      u[e] = pack(strength * r0, strength * r1);
      dx[e] = pack(strength * y0, strength * y1);
    }
    const u32 to = States::offset(t, column);
    *(uint4*)(shared + DO_AT + to) = of_o;
    *(uint4*)(shared + U_AT + to) = make_uint4(u[0], u[1], u[2], u[3]);
    *(uint4*)(shared + DX_AT + to) = make_uint4(dx[0], dx[1], dx[2], dx[3]);
#pragma unroll
    for (int far = 8; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffff, sum, far);
    if (column == 0) floats[OF_BETA_AT + t] = sum;
  }
  copy_wait<0>();
  __syncthreads();

  // ---- Products with the states, a warp's 16 channels: columns of K in the order of the workspace.
  float from_q[2][4] = {}, from_k[2][4] = {}, to_end[2][4] = {}, trace[2][4] = {}, pairs[2][4] = {};
  {
    const u32 own = States::lane_offset(lane), column = States::advance(own, warp);
    // dAq by the first warp, dAk by the second.
    const u32 right = base + U_AT + States::lane_offset_right(lane);
#pragma unroll
    for (int step = 0; step < V / 16; step++) {
      u32 of_o[4], of_dx[4], of_u[4], s[4], ds[4];
      load_matrix_x4(of_o, base + DO_AT + States::advance(own, step));
      load_matrix_x4(of_dx, base + DX_AT + States::advance(own, step));
      load_matrix_x4(of_u, base + U_AT + States::advance(own, step));
      load_matrix_x4_transposed(s, base + ENTERING_AT + step * 16 * States::stride + column);
      load_matrix_x4_transposed(ds, base + LEAVING_AT + step * 16 * States::stride + column);
      const u32 left[4] = {s[0], s[2], s[1], s[3]};  // the same values as the left operand S [16 channels, 16 of V]
#pragma unroll
      for (int n = 0; n < 2; n++) {
        multiply(from_q[n], of_o, s[n * 2], s[n * 2 + 1]);
        multiply(from_k[n], of_dx, s[n * 2], s[n * 2 + 1]);
        multiply(to_end[n], of_u, ds[n * 2], ds[n * 2 + 1]);
        multiply(trace[n], left, ds[n * 2], ds[n * 2 + 1]);
      }
      if (warp < 2) {
        u32 b[4];
        load_matrix_x4(b, States::advance(right, step));
        multiply(pairs[0], warp == 0 ? of_o : of_dx, b[0], b[1]);
        multiply(pairs[1], warp == 0 ? of_o : of_dx, b[2], b[3]);
      }
    }
  }
  __syncthreads();  // no warp reads the states any more
  {
    // A lane's four columns are adjacent channels.
    const int channel = warp / 2 * 32 + lane % 4 * 8 + warp % 2 * 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int at = (lane / 4 + half * 8) * K + channel, e = half * 2;
      *(float4*)(products + FROM_Q_AT + at) = make_float4(from_q[0][e], from_q[0][e + 1], from_q[1][e], from_q[1][e + 1]);
      *(float4*)(products + FROM_K_AT + at) = make_float4(from_k[0][e], from_k[0][e + 1], from_k[1][e], from_k[1][e + 1]);
      *(float4*)(products + TO_END_AT + at) = make_float4(to_end[0][e], to_end[0][e + 1], to_end[1][e], to_end[1][e + 1]);
    }
    // The diagonal: column 2 q + e of tile n is row lane / 4 of its half n.
    const int off = lane / 4 - lane % 4 * 2;
    if (off == 0 || off == 1) {
      floats[TRACE_AT + channel + off] = off == 0 ? trace[0][0] : trace[0][1];
      floats[TRACE_AT + channel + 2 + off] = off == 0 ? trace[1][2] : trace[1][3];
    }
    if (warp < 2) {
#pragma unroll
      for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int i = lane / 4 + e / 2 * 8, j = n * 8 + lane % 4 * 2 + e % 2;
          if (warp == 0) floats[DAQ_AT + i * Q + j] = j <= i ? scale * pairs[n][e] : 0.0f;
          if (warp == 1) floats[DAK_AT + i * Q + j] = j < i ? -pairs[n][e] : 0.0f;
        }
      }
    }
  }
  __syncthreads();

  // ---- A channel per pair of threads.
  {
    const int c = thread / 2, odd = thread % 2;
    float own_k[Q], own_high[Q], own_low[Q], of_k[Q], change[Q];
#pragma unroll
    for (int i = 0; i < Q; i++) {
      own_k[i] = floats[K_AT + i * K + c];
      own_high[i] = floats[HIGH_AT + i * K + c];
      own_low[i] = floats[LOW_AT + i * K + c];
      of_k[i] = change[i] = 0.0f;
    }
#pragma unroll
    for (int m = 0; m < Q / 2; m++) {
      // Pairs of token i = 2 m + odd with the earlier ones; both threads run the same code, the even one with a mask.
      const int i = 2 * m + odd;
      const float own_q = floats[Q_AT + i * K + c];
      const float high = odd ? own_high[2 * m + 1] : own_high[2 * m], low = odd ? own_low[2 * m + 1] : own_low[2 * m];
      const float key = odd ? own_k[2 * m + 1] : own_k[2 * m];
      const float from_start = exp2_fast(high);
      float of_q = scale * from_start * products[FROM_Q_AT + i * K + c];
      float row_k = -from_start * products[FROM_K_AT + i * K + c];
      float row_change = own_q * of_q + key * row_k;
#pragma unroll
      for (int j = 0; j < 2 * m + 1; j++) {
        if (j == 2 * m && !odd) continue;
        const float decay = exp2_fast(high - own_high[j] + (low - own_low[j]));
        const float of_aq = floats[DAQ_AT + i * Q + j] * decay, of_ak = floats[DAK_AT + i * Q + j] * decay;
        of_q = fmaf(of_aq, own_k[j], of_q);
        row_k = fmaf(of_ak, own_k[j], row_k);
        const float right = fmaf(of_aq, own_q, of_ak * key), term = right * own_k[j];
        of_k[j] += right;
        row_change += term;
        change[j] -= term;
      }
      const float diagonal = floats[DAQ_AT + i * Q + i];
      of_q = fmaf(diagonal, key, of_q);
      row_k = fmaf(diagonal, own_q, row_k);
      if (i < valid) dq[((token + i) * value_heads + head) * K4 + c] = of_q;
      if (odd) {
        of_k[2 * m + 1] += row_k;
        change[2 * m + 1] += row_change;
      } else {
        of_k[2 * m] += row_k;
        change[2 * m] += row_change;
      }
    }
#pragma unroll
    for (int i = 0; i < Q; i++) {
      of_k[i] += __shfl_xor_sync(0xffffffff, of_k[i], 1);
      change[i] += __shfl_xor_sync(0xffffffff, change[i], 1);
    }
    float after = 0.0f;
#pragma unroll
    for (int i = Q - 1; i >= 0; i--) {
      after += change[i];
      change[i] = after;
    }
    float before = floats[TRACE_AT + c] * exp2_fast(own_high[Q - 1]);
#pragma unroll
    for (int i = 0; i < Q; i++) {
      change[i] += before;
      const float end = exp2_fast(own_high[Q - 1] - own_high[i] + (own_low[Q - 1] - own_low[i])) * products[TO_END_AT + i * K + c];
      of_k[i] += end;
      before = fmaf(end, own_k[i], before);
      if (i % 2 == odd) {
        products[BY_CHANNEL_AT + i * K + c] = change[i];
        if (i < valid) dk[((token + i) * value_heads + head) * K4 + c] = of_k[i];
      }
    }
  }
  __syncthreads();

  // ---- The gate and the write strength.
  float* const by_channel = products + BY_CHANNEL_AT;
  const float rate = gates.rate(head);
  if (GATES == 1) {  // one decay per head: summed over channels
    for (int i = warp; i < Q; i += THREADS / 32) {
      float sum = 0.0f;
      for (int c = lane; c < K; c += 32) sum += by_channel[i * K + c];
      sum = warp_sum(sum);
      if (lane == 0) by_channel[i * K] = sum;
    }
    __syncthreads();
  }
  float rate_sum = 0.0f;
  for (int c = thread; c < GATES; c += THREADS) {
    float bias_sum = 0.0f;
    for (int i = 0; i < valid; i++) {
      float gradient = by_channel[i * K + c];
      gradient = gates.of_logit(gradient, gates.x(token + i, value_heads, head, c), rate, rate_sum);
      bias_sum += gradient;
      store_number(dg, ((token + i) * value_heads + head) * GATES + c, gradient, g_f32);
    }
    if (gate != GATE_NONE) sums[row * (1 + GATES) + 1 + c] = bias_sum;
  }
  rate_sum = warp_sum(rate_sum);
  if (lane == 0) floats[OF_RATE_AT + warp] = rate_sum;
  if (thread < valid) {
    const float gradient = floats[OF_BETA_AT + thread] * gates.strength_slope(token + thread, value_heads, head);
    store_number(dbeta, (token + thread) * value_heads + head, gradient, beta_f32);
  }
  __syncthreads();
  if (thread == 0 && gate != GATE_NONE) {
    float sum = 0.0f;
    for (int w = 0; w < THREADS / 32; w++) sum += floats[OF_RATE_AT + w];
    sums[row * (1 + GATES)] = sum;
  }
}
