// The body of both wide Hopper kernels: a block finds the tile of its cluster and assigns its warpgroups their roles.

DEVICE void start_consumer(const Part& part, int group, const Tile& tile, const Shape& shape, u16* output, float* lse,
                           float scale, float softcap) {
  Consumer me;
  me.part = part;
  me.group = group;
  me.thread = threadIdx.x % 128;
  me.warp = me.thread / 32;
  me.lane = me.thread % 32;
  me.row = me.warp * 16 + me.lane / 4;
  const int v_groups = group == 0 ? (part.v_groups + 1) / 2 : part.v_groups / 2;
  me.q = descriptor_k_major<128>(part.base + AT_Q);
  me.p = descriptor_k_major<128>(part.base + AT_P);
  me.k = descriptor_k_major<128>(part.base + AT_STAGES + group * BLOCK_K * 128);
  // Groups of 64 channels are 1024 bytes apart, groups of 8 keys one octet of all channels.
  const u32 v = part.base + AT_STAGES + (group == 0 ? 0 : part.v_groups - v_groups) * 1024;
  me.v = (u64)((v & 0x3ffff) >> 4) | (u64)(1024 >> 4) << 16 | (u64)(part.v_groups * 1024 >> 4) << 32 | (u64)1 << 62;
  me.next = {0, 0};
  me.done = {0, 0};
  // Two widths occur at most, one group apart, and the accumulator's size must be known.
  constexpr int most = (V_GROUPS_MOST + 1) / 2, least = V_GROUPS_LEAST / 2;
  if (v_groups == most) {
    consume<most>(me, tile, shape, output, lse, scale, softcap);
  } else {
    consume<least>(me, tile, shape, output, lse, scale, softcap);
  }
}

DEVICE void cluster_barrier() {
  if (SPLIT == 1) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
}

DEVICE void attend(u8* shared, const TensorMap* map_q, const TensorMap* map_k, const TensorMap* map_v,
                   const TensorMap* map_v_high, u16* output, float* lse, const Shape& shape, float scale,
                   float softcap) {
  // The same in the whole cluster.
  const int index = blockIdx.x / SPLIT;
  Cursor cursor = {0, 0};
  const Place place = shape.cu_queries ? find_packed(shape, index, cursor) : find_dense(shape, index);
  if (place.sequence < 0) return;
  const Plan plan = plan_at(shape, place);
  const Tile& tile = plan.tile;
  const u32 base = (shared_address(shared) + 1023) & ~1023u;
  const Part part = part_of(base, tile);
  // Broadcast, which makes it warp-uniform for the compiler.
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      mbarrier_init(base + AT_FULL + 8 * i, 1);
      mbarrier_init(base + AT_EMPTY + 8 * i, 8);
    }
    mbarrier_init(base + AT_Q_FULL, 1);
    for (int i = 0; i < 8; i++) {
      mbarrier_init(base + AT_X_FULL + 8 * i, 1);
      mbarrier_init(base + AT_X_FREE + 8 * i, 1);
    }
    fence_barrier_init();
  }
  // No block copies to another or arrives there before that one has initialized its barriers, nor after it has exited.
  __syncwarp();
  cluster_barrier();
  if (warpgroup == 0) {
    registers_decrease<24>();
    if (threadIdx.x == 0 && part.step_begin < part.step_end) {
      produce(part, plan, map_q, map_k, part.half == 0 ? map_v : map_v_high);
    }
    __syncwarp();
  } else {
    registers_increase<240>();
    start_consumer(part, warpgroup - 1, tile, shape, output, lse, scale, softcap);
  }
  cluster_barrier();
}
