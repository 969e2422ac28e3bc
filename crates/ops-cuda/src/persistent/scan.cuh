// A token's step of a scan: h <- exp(dt A) h + dt x (outer) B, y = h C + D x, times silu(z). A warp takes SCAN_ROWS rows of the state at once,
// a lane four of their columns. Requires barriers.cuh.

// Four values in storage.
struct Four {
  float of[4];
  DEVICE explicit Four(const Packets& two) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const u32 word = (u32)(i < 2 ? two.a : two.b);
      of[i] = widen_half(i % 2 ? word >> 16 : word & 0xffff);
    }
  }
  DEVICE float at(int i) const { return i == 0 ? of[0] : i == 1 ? of[1] : i == 2 ? of[2] : of[3]; }
};

// A token's inputs for one row, its head and its group.
struct Token {
  Packets b, c, x, z;
  u64 dt;

  // `row`: the warp's first row, counted over all heads; `column`: of the state.
  DEVICE void ask_for(const Scan& of, int row, int head, int column, u32 number) {
    do {
      b = Packets::ask(of.b_packets + column / 2), c = Packets::ask(of.c_packets + column / 2), x = Packets::ask(of.x_packets + row / 2);
      z = of.z_packets != nullptr ? Packets::ask(of.z_packets + row / 2) : x;
      dt = ask(of.dt_packets + head / 2);
    } while (!(b.are(number) && c.are(number) && x.are(number) && z.are(number) && (u32)(dt >> 32) == number));
    __syncwarp();
  }
  DEVICE void read(const Scan& of, int row, int head, int column) {
    b = Packets::read(of.b + 2 * column), c = Packets::read(of.c + 2 * column), x = Packets::read(of.x + 2 * row);
    z = of.z != nullptr ? Packets::read(of.z + 2 * row) : x;
    u32 two;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(two) : "l"(of.dt + head / 2 * 4) : "memory");
    dt = two;
  }
};

DEVICE void scan_phase(const Scan& of, u32 number) {
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, own = lane % SCAN_ROWS;
  const int rows = of.heads * of.head_dim, slot = of.state_indices != nullptr ? __ldg(of.state_indices) : 0;
  for (int first = (blockIdx.x * WARPS + warp) * SCAN_ROWS; first < rows; first += gridDim.x * WARPS * SCAN_ROWS) {
    const int head = __umulhi(first, of.head_magic), group = of.heads_of_group == of.heads ? 0 : head / of.heads_of_group;
    const i64 state = ((i64)max(slot, 0) * rows + first) * STATE + lane * 4;
    float4 h[SCAN_ROWS];
#pragma unroll
    for (int r = 0; r < SCAN_ROWS; r++) h[r] = __ldcg((const float4*)(of.initial_state + state + r * STATE));
    const float bias = of.dt_bias != nullptr ? __ldg(of.dt_bias + head) : 0.0f, rate = __ldg(of.rate + head) * 1.44269504f;
    const float skip = of.d != nullptr ? __ldg(of.d + head) : 0.0f;
    Token token;
    if (of.x_packets != nullptr) {
      token.ask_for(of, first, head, group * STATE + lane * 4, number);
    } else {
      token.read(of, first, head, group * STATE + lane * 4);
    }
    const Four b(token.b), c(token.c), x(token.x), z(token.z);
    float step = widen_half(head % 2 ? (u32)token.dt >> 16 : (u32)token.dt & 0xffff) + bias;
    if (of.softplus && step <= 20.0f) step = log1pf(expf(step));
    step = fminf(fmaxf(step, of.dt_min), of.dt_max);
    const float decay = exp2f(step * rate);
    float sum[SCAN_ROWS];
#pragma unroll
    for (int r = 0; r < SCAN_ROWS; r++) {
      const float weight = step * x.of[r];
      h[r].x = fmaf(weight, b.of[0], decay * h[r].x), h[r].y = fmaf(weight, b.of[1], decay * h[r].y);
      h[r].z = fmaf(weight, b.of[2], decay * h[r].z), h[r].w = fmaf(weight, b.of[3], decay * h[r].w);
      sum[r] = fmaf(h[r].x, c.of[0], fmaf(h[r].y, c.of[1], fmaf(h[r].z, c.of[2], h[r].w * c.of[3])));
    }
    // The sums of the four rows are reduced together: a lane ends with row lane % 4.
    const auto fold = [&](float even, float odd, int far) {
      const bool second = lane & far;
      return (second ? odd : even) + __shfl_xor_sync(0xffffffff, second ? even : odd, far);
    };
    float mine = fold(fold(sum[0], sum[1], 1), fold(sum[2], sum[3], 1), 2);
#pragma unroll
    for (int far = SCAN_ROWS; far < 32; far *= 2) mine += __shfl_xor_sync(0xffffffff, mine, far);
    mine = fmaf(skip, x.at(own), mine);
    if (of.z != nullptr) mine *= silu(z.at(own));
    const u32 content = narrow_half(slot < 0 ? 0.0f : mine), next = __shfl_down_sync(0xffffffff, content, 1);
    if (of.packets != nullptr && lane < SCAN_ROWS && lane % 2 == 0) give(of.packets + (first + lane) / 2, content | next << 16, number + 1);
    if (of.stored && lane < SCAN_ROWS) ((u16*)of.o)[first + lane] = content;
    if (slot < 0) continue;
#pragma unroll
    for (int r = 0; r < SCAN_ROWS; r++) __stcg((float4*)(of.final_state + state + r * STATE), h[r]);
  }
}
