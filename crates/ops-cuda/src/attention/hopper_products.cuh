// The two products of the Hopper attention kernel, issued and not waited for, and the slower per-warp form of the first.

// s = Q K^T, issued.
DEVICE void issue_scores(float (&s)[BLOCK_K / 2], u64 q, u64 k) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < D / 16; i++) {
    const int box = 16 * i / QK_WIDTH, within = 16 * i % QK_WIDTH / 8;
    wgmma_ss<0>(s, q + box * (64 * QK_SWIZZLE >> 4) + within, k + box * (BOX_K_BYTES >> 4) + within, i > 0);
  }
  wgmma_commit();
}

// o += P V, issued.
DEVICE void issue_output(float (&o)[DV / 2], const u32 (&p)[BLOCK_K / 4], u64 v) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < BLOCK_K / 16; i++) {
    wgmma_rs<1>(o, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], v + i * V_SWIZZLE, 1);
  }
  wgmma_commit();
}

// s = Q K^T for the 16 rows of one warp, by mma.sync, which a warp can run alone. Q is this warpgroup's part and
// K a stage, both by address. The 16-byte units of a box's row are swizzled by the row.
DEVICE void recompute_scores(float (&s)[BLOCK_K / 2], u32 q, u32 k) {
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int q_row = thread / 32 * 16 + lane % 16, k_row = lane / 16 * 8 + lane % 8;
  const int q_order = QK_SWIZZLE == 128 ? q_row % 8 : q_row / 2 % 4;
  const int k_order = QK_SWIZZLE == 128 ? k_row % 8 : k_row / 2 % 4;
#pragma unroll
  for (int i = 0; i < BLOCK_K / 2; i++) s[i] = 0.0f;
#pragma unroll 1
  for (int i = 0; i < D / 16; i++) {
    const int box = 16 * i / QK_WIDTH, unit = 16 * i % QK_WIDTH / 8;
    u32 a[4];
    load_matrices(a, q + box * 64 * QK_SWIZZLE + q_row * QK_SWIZZLE + 16 * ((unit + lane / 16) ^ q_order));
    const u32 from = k + box * BOX_K_BYTES + k_row * QK_SWIZZLE + 16 * ((unit + lane / 8 % 2) ^ k_order);
#pragma unroll
    for (int n = 0; n < BLOCK_K / 16; n++) {
      // Keeps each load next to its MMA: all of them ahead would exceed the registers.
      __syncwarp();
      u32 b[4];
      load_matrices(b, from + n * 16 * QK_SWIZZLE);
      mma_m16n8k16(&s[8 * n], a, b[0], b[1]);
      mma_m16n8k16(&s[8 * n + 4], a, b[2], b[3]);
    }
  }
}
