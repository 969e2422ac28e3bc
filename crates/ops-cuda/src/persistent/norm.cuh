// A norm of the residual stream, followed by a router. Every block computes all of it, into the shared memory from which experts and products
// read x: that is faster than reading it from other blocks. Requires linear.cuh.

template <class In>
DEVICE void norm_phase(const Norm& of, Block& block) {
  constexpr int LOADS = In::INPUTS / WORKING / In::OF_LOAD, AT_ONCE = EXPERTS > 128 ? 2 : 1;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const bool works = WORKING == WARPS || warp < WORKING;
  // Columns of the router: this block's first, and at most one more at once, gridDim.x further.
  int column = blockIdx.x;
  u32 weights[AT_ONCE][LOADS] = {};
  const auto load_weights = [&]() {
#pragma unroll
    for (int c = 0; c < AT_ONCE; c++) {
      if (!works || column + c * (int)gridDim.x >= of.columns) continue;
#pragma unroll
      for (int i = 0; i < LOADS; i++) weights[c][i] = __ldg((const u32*)(of.w + ((i64)(column + c * gridDim.x) * In::INPUTS + In::column(i)) * 2));
    }
  };
  load_weights();
  In in;
  if (works) {
    if (of.weight != nullptr) {
      in.prepare(of.weight);
      in.take(of.x_packets, of.x, block.number);
      in.weigh();
    } else {
#pragma unroll
      for (int i = 0; i < LOADS; i++) {
        u32 two;
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(two) : "l"((const u16*)of.x + In::column(i)) : "memory");
        in.value[i][0] = widen_half(two & 0xffff), in.value[i][1] = widen_half(two >> 16);
      }
    }
    in.lay(In::place(block.x));
    if (lane == 0) block.backs[warp] = in.back;
  }
  float root = 1.0f;
  for (int turn = 0;; turn ^= 1) {
    float dot[AT_ONCE] = {};
    if (works) {
#pragma unroll
      for (int c = 0; c < AT_ONCE; c++) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
          dot[c] = fmaf(in.value[i][0], widen_half(weights[c][i] & 0xffff), dot[c]);
          dot[c] = fmaf(in.value[i][1], widen_half(weights[c][i] >> 16), dot[c]);
        }
      }
    }
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
#pragma unroll
      for (int c = 0; c < AT_ONCE; c++) dot[c] += __shfl_xor_sync(0xffffffff, dot[c], far);
      if (column == (int)blockIdx.x) in.squares += __shfl_xor_sync(0xffffffff, in.squares, far);
    }
    float* const dots = block.dots + turn * (2 * WARPS);
    if (lane == 0) {
      block.squares[warp] = in.squares;
#pragma unroll
      for (int c = 0; c < AT_ONCE; c++) dots[c * WARPS + warp] = dot[c];
    }
    meet_inside();
    if (of.weight != nullptr) root = root_of(block.squares, In::INPUTS, of.eps);
    const int own = column + thread * gridDim.x;
    if (thread < AT_ONCE && own < of.columns) {
      const float4 a = *(const float4*)(dots + thread * WARPS), b = *(const float4*)(dots + thread * WARPS + 4);
      const float logit = ((a.x + a.y) + (a.z + a.w) + ((b.x + b.y) + (b.z + b.w))) * root * of.scale;
      if (of.packets != nullptr) give(of.packets + own, __float_as_uint(logit), block.number + 1);
      of.logits[own] = logit;
    }
    column += AT_ONCE * gridDim.x;
    if (column >= of.columns) break;
    load_weights();
  }
  if (thread == 0) *block.root = root;
  if (!works || of.o == nullptr || of.weight == nullptr) return;
  // For kernels after the launch: each block stores 32 columns in turn.
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const int at = In::column(i);
    if ((u32)(at / 32) % gridDim.x == blockIdx.x) {
      ((u32*)of.o)[at / 2] = (u32)narrow_half(in.value[i][0] * root) | (u32)narrow_half(in.value[i][1] * root) << 16;
    }
  }
}
