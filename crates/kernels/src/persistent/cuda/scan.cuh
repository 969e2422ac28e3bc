// A step of Mamba-2's scan over all blocks: h <- exp(dt A) h + dt x (outer) B, y = (h C + D x) silu(z). A warp takes four rows of a
// head's state at once, a lane four neighbouring numbers of each.

constexpr int SCAN_ROWS = 4;
static_assert(N_STATE == 128, "a lane has four numbers of a row");

// Storage past the first cache, in which there may be what stood there before.
DEVICE float current_half(const void* from, i64 index) {
  u16 bits;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(bits) : "l"((const u16*)from + index) : "memory");
  return widen_half(bits);
}
DEVICE void current_halves(float (&to)[4], const void* from, i64 index) {
  u32 low, high;
  asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(low), "=r"(high) : "l"((const u16*)from + index) : "memory");
  to[0] = widen_half(low & 0xffff), to[1] = widen_half(low >> 16);
  to[2] = widen_half(high & 0xffff), to[3] = widen_half(high >> 16);
}

// `meet` is called once by each warp, before it reads what other phases write. States only this phase writes, so they are read before.
template <class Meet>
DEVICE void scan_phase(const Scan& p, Meet meet) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = lane % 4;
  const int rows = p.heads * p.head_dim, head_dim = p.head_dim;
  const int slot = p.state_indices != nullptr ? __ldg(p.state_indices) : 0;
  bool met = false;
  for (int first = (blockIdx.x * WARPS + warp) * SCAN_ROWS; first < rows || !met; first += gridDim.x * WARPS * SCAN_ROWS) {
    const bool there = first < rows && slot >= 0;
    const int head = there ? first / head_dim : 0, channel = first - head * head_dim, group = head / (p.heads / p.groups);
    float4 h[SCAN_ROWS];
    const i64 state = ((i64)max(slot, 0) * rows + (there ? first : 0)) * N_STATE + lane * 4;
#pragma unroll
    for (int r = 0; r < SCAN_ROWS; r++) {
      h[r] = there ? __ldcg((const float4*)(p.initial_state + state + r * N_STATE)) : make_float4(0, 0, 0, 0);
    }
    const float bias = p.dt_bias != nullptr ? number(p.dt_bias, head, p.bias_f32) : 0.0f;
    const float rate2 = number(p.rate, head, p.rate_f32) * 1.44269504f;
    const i64 skip_at = p.d_per_channel && there ? (i64)head * head_dim + channel + own : head;
    const float skip = p.d == nullptr ? 0.0f : number(p.d, skip_at, p.d_f32);
    if (!met) meet(), met = true;
    if (first >= rows) break;

    float b[4], c[4], x[SCAN_ROWS];
    current_halves(b, p.b, (i64)group * N_STATE + lane * 4);
    current_halves(c, p.c, (i64)group * N_STATE + lane * 4);
    float step = (p.dt_f32 ? load_current((const float*)p.dt + head) : current_half(p.dt, head)) + bias;
    current_halves(x, p.x, first);
    const float z = p.z != nullptr ? current_half(p.z, (i64)first + own) : 0.0f;
    if (p.softplus && step <= 20.0f) step = log1pf(expf(step));
    step = fminf(fmaxf(step, p.dt_min), p.dt_max);
    const float decay = exp2f(step * rate2);
    float sum[SCAN_ROWS];
#pragma unroll
    for (int r = 0; r < SCAN_ROWS; r++) {
      const float weight = step * x[r];
      h[r].x = fmaf(weight, b[0], decay * h[r].x), h[r].y = fmaf(weight, b[1], decay * h[r].y);
      h[r].z = fmaf(weight, b[2], decay * h[r].z), h[r].w = fmaf(weight, b[3], decay * h[r].w);
      sum[r] = fmaf(h[r].x, c[0], fmaf(h[r].y, c[1], fmaf(h[r].z, c[2], h[r].w * c[3])));
      if (there) __stcg((float4*)(p.final_state + state + r * N_STATE), h[r]);
    }
#pragma unroll
    for (int r = 0; r < SCAN_ROWS; r++) {
#pragma unroll
      for (int far = 16; far > 0; far /= 2) sum[r] += __shfl_xor_sync(0xffffffff, sum[r], far);
    }
    float y = own == 0 ? sum[0] : own == 1 ? sum[1] : own == 2 ? sum[2] : sum[3];
    y = fmaf(skip, own == 0 ? x[0] : own == 1 ? x[1] : own == 2 ? x[2] : x[3], y);
    if (p.z != nullptr) y *= silu(z);
    if (lane < SCAN_ROWS) *((u16*)p.o + first + lane) = narrow_half(slot < 0 ? 0.0f : y);
  }
}
