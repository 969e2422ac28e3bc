// Several rows of x made ready for direct.cu, which every block of it copies: normalised where there is a norm, in f16 by powers of
// two (HALVED) or in bf16, in the order in which they are multiplied, with what stands beside them (direct_rows.cuh).
//
// x [tokens, inputs], f32 (X_F32) or bf16, 16-byte aligned; norm [inputs] (NORMED), f32 or bf16; to: Layout::bytes, 16-byte aligned,
// for each `depth` of a row's columns, which are direct.cu's parts.
//
// Launch: grid (tokens, blocks that share a row: one with a norm); block 32 * (as many of the row's segments, columns rounded up to
// ROUND / SEGMENT, up to 32). May overlap the kernel ahead of it. Source: as direct.cu's, this in its place. Macros: those of direct.cu;
// what stands around a product (RESIDUAL, SWIGLU, TAPS, OFFSET) is 0, and PARTS 1.

constexpr int HELD = 2;  // segments of a warp in registers; rows of more are read twice

extern "C" __global__ void __launch_bounds__(1024, 1)
    linear_direct_ready(const char* __restrict__ x, const void* __restrict__ norm, char* __restrict__ to, int tokens, int inputs,
                        int norm_f32, float eps, int depth) {
  __shared__ float squares[32];
  let_next_start();
  const int token = blockIdx.x, lane = threadIdx.x % 32, own_warps = blockDim.x / 32;
  const int warp = blockIdx.y * own_warps + threadIdx.x / 32, warps = gridDim.y * own_warps;
  const Layout layout = Layout::of(tokens, depth);
  const int all = ceil_div(inputs, ROUND) * (ROUND / SEGMENT), of_part = ceil_div(depth, ROUND) * (ROUND / SEGMENT);
  const auto column_of = [&](int piece) { return piece * SEGMENT + lane * 8; };
  float weight[HELD][8];
  const auto weigh = [&](float (&weight)[8], int column) {
    if (NORMED && column < inputs) numbers<8>(weight, norm, column, norm_f32);
  };
#pragma unroll
  for (int h = 0; h < HELD; h++) weigh(weight[h], column_of(warp + h * warps));
  wait_for_previous();
  Piece held[HELD];
#pragma unroll
  for (int h = 0; h < HELD; h++) {
    const int piece = warp + h * warps;
    held[h].load(x, (i64)token * inputs + column_of(piece), X_F32, piece < all && column_of(piece) < inputs);
  }
  const auto load = [&](Piece& piece, int at) {
    piece.load(x, (i64)token * inputs + column_of(at), X_F32, column_of(at) < inputs);
  };
  float root = X_FACTOR;
#if NORMED
  float total = 0.0f;
  const auto add = [&](const Piece& piece) {
#pragma unroll
    for (int i = 0; i < 8; i++) total = fmaf(piece.get(i, X_F32), piece.get(i, X_F32), total);
  };
#pragma unroll
  for (int h = 0; h < HELD; h++) add(held[h]);
  for (int at = warp + HELD * warps; at < all; at += warps) {
    Piece piece;
    load(piece, at);
    add(piece);
  }
#pragma unroll
  for (int far = 16; far > 0; far /= 2) total += __shfl_xor_sync(0xffffffff, total, far);
  if (lane == 0) squares[warp] = total;
  __syncthreads();
  total = 0.0f;
  for (int other = 0; other < warps; other++) total += squares[other];
  root *= rsqrtf(total / inputs + eps);
#endif
  const auto keep = [&](const Piece& piece, const float (&weight)[8], int at) {
    float value[8];
    const bool there = column_of(at) < inputs;
#pragma unroll
    for (int i = 0; i < 8; i++) value[i] = there ? piece.get(i, X_F32) * (NORMED ? weight[i] * root : root) : 0.0f;
    char* begin = to;
    int here = at;
    for (; here >= of_part; here -= of_part) begin += layout.bytes;
    layout.rows(x, nullptr, tokens, inputs, norm_f32, begin, begin).keep<HALVED>(token, here, column_of(here), value);
  };
#pragma unroll
  for (int h = 0; h < HELD; h++) {
    if (warp + h * warps < all) keep(held[h], weight[h], warp + h * warps);
  }
  for (int at = warp + HELD * warps; at < all; at += warps) {
    Piece piece;
    load(piece, at);
    weigh(weight[0], column_of(at));
    keep(piece, weight[0], at);
  }
}
