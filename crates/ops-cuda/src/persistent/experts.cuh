// Experts of one token in two phases: gate and up projections, then the down projection. Requires norm.cuh and `moe/choose.cuh`.
//
// Shared experts, which every token takes, come first, while the router's logits are in flight. BY_CHUNKS, if x is two chunks of a row: a stage
// has the gates and then the ups of the block's columns of one expert, or two experts for the down projection, each for half of the warps.
// Otherwise rows are not split: gates, ups and down projection take a stage each; a warp has 128 columns of each chunk, of the latter 128 in all.

constexpr int DEALT = CHOSEN - ALWAYS;      // experts that the router chooses
constexpr int SHARE = BY_CHUNKS ? WARPS / 2 : WARPS;  // warps that share an expert's width
constexpr int AT_ONCE = WARPS / SHARE;      // experts of a stage in the down projection
constexpr int UP_STAGES = BY_CHUNKS ? 1 : 2, DOWN_STEPS = CHOSEN / AT_ONCE;
constexpr int DOWN_GROUPS = BY_CHUNKS ? 1 : 2;  // of 16 rows
static_assert(WEIGHT_BITS == 8 && INNER == SHARE * OF_WARP && CHOSEN % AT_ONCE == 0 && DEALT > 0, "warps share an expert's width");
static_assert(CHOSEN * UP_STAGES <= SUM_STAGES && DOWN_STEPS * DOWN_GROUPS <= SUM_STAGES, "sums have room");
static_assert(CHOSEN * INNER * 2 <= X_BYTES && OF_EXPERT * HIDDEN * 2 / UP_STAGES <= STAGE, "x and weights have room");
static_assert(CHOSEN * OF_EXPERT * SHARERS <= CONSUMERS, "a thread finishes one column");

// Multiplies rows of a stage that are not split, `row_bytes` each, by UNITS times the columns of a warp: eight rows or, with HIGH, sixteen.
template <int UNITS, int row_bytes, bool HIGH>
DEVICE void multiply_rows(u32 x, u32 from, float back, float* to) {
  Products<1> products;
  Kept<1> kept;
  const int lane = threadIdx.x % 32, row = lane / 4;
#pragma unroll
  for (int u = 0; u < UNITS; u++) {
    products.prepare(x + u * OF_WARP * 2);
    Raw raw;
    raw.take<HIGH ? row_bytes : 0>(from + row * row_bytes + u * CHUNK + lane % 4 * COLS, products.odd);
#pragma unroll
    for (int s = 0; s < SUBS; s++) {
      float sum[1][4];
      products.of(sum, raw, s);
      kept.add(products, sum, s, {}, {});
    }
  }
  if (products.keeps) {
    to[row] = kept.low * back;
    if (HIGH) to[row + 8] = kept.high * back;
  }
}

// The choice, in the order of `choose`, by the warp that loads weights; `to` is shared memory, [CHOSEN].
DEVICE void choose_now(const Up& of, u32 number, Choice* to) {
  constexpr int SLOTS = ceil_div(EXPERTS, 32);
  const int lane = threadIdx.x % 32;
  float logits[SLOTS];
  u32 wanted[SLOTS];
  const auto expert = [&](int slot) { return lane * SLOTS + slot; };
  if (of.logits_packets != nullptr) {
    for (bool there = false; !there;) {
      there = true;
#pragma unroll
      for (int i = 0; i < SLOTS; i++) {
        const u64 packet = ask(of.logits_packets + min(expert(i), EXPERTS - 1));
        there = there && (u32)(packet >> 32) == number, logits[i] = __uint_as_float((u32)packet);
      }
    }
    __syncwarp();
  } else {
#pragma unroll
    for (int i = 0; i < SLOTS; i++) logits[i] = load_float(of.logits + min(expert(i), EXPERTS - 1));
  }
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    float score = of.sigmoid ? logistic(logits[i]) : logits[i];
    if (of.correction != nullptr) score += __ldg(of.correction + min(expert(i), EXPERTS - 1));
    wanted[i] = expert(i) < EXPERTS ? in_order(score) : 0;
  }
  int taken = 0;
  float logit = 0.0f;
#pragma unroll 1
  for (int place = 0; place < DEALT; place++) {
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < SLOTS; i++) most = max(most, wanted[i]);
    const u32 of_warp = __reduce_max_sync(0xffffffff, most);
    // The lowest lane that has it has the lowest expert.
    const int taker = __ffs(__ballot_sync(0xffffffff, most == of_warp)) - 1;
    int at = 0;
    float its = logits[0];
#pragma unroll
    for (int i = SLOTS - 1; i >= 0; i--) {
      if (wanted[i] == of_warp) at = i, its = logits[i];
    }
    const int which = __shfl_sync(0xffffffff, lane * SLOTS + at, taker);
    its = __shfl_sync(0xffffffff, its, taker);
    if (lane == place) taken = which, logit = its;
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
      if (lane == taker && i == at) wanted[i] = 0;
    }
  }
  // The first logit is the largest where weights are a softmax.
  const float first = __shfl_sync(0xffffffff, logit, 0);
  const auto share = [&](float of_logit) { return exp2_approximate((of_logit - first) * 1.44269504f); };
  float weight = of.sigmoid ? logistic(logit) : share(logit);
  if (lane >= DEALT) weight = 0.0f;
  float sum = weight;
  if (!of.sigmoid && !of.renormalise) {
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < SLOTS; i++) sum += expert(i) < EXPERTS ? share(logits[i]) : 0.0f;
  }
#pragma unroll
  for (int far = 16; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffff, sum, far);
  if (of.sigmoid) sum = of.renormalise ? sum + of.sum_eps : 1.0f;
  if (lane < ALWAYS) to[lane] = {EXPERTS + lane, 1.0f};
  if (lane < DEALT) to[ALWAYS + lane] = {taken, weight * (of.weight_scale / sum)};
  __syncwarp();
}

// For one warp: loads the weights of the gate and up projections, and makes the choice, whose completion `full` signals.
DEVICE void bring_up(Ring& ring, const Up& of, const Source& source, u32 number, Choice* chosen, u32 full) {
  const bool first = threadIdx.x % 32 == 0;
  const auto bring = [&](int expert) {
    const u32 bytes = OF_EXPERT * HIDDEN;
    const char* const from = source.w + ((i64)expert * (2 * INNER) + source.own.first) * HIDDEN;
    ring.make_room();
    ring.expect(bytes * 2 / UP_STAGES);
    ring.copy(0, from, bytes);
    if constexpr (UP_STAGES == 2) {
      ring.advance();
      ring.make_room();
      ring.expect(bytes);
    }
    ring.copy(UP_STAGES == 2 ? 0 : bytes, from + (i64)INNER * HIDDEN, bytes);
    ring.advance();
  };
  const bool takes = first && source.own.count != 0;
  for (int i = 0; i < ALWAYS && takes; i++) bring(EXPERTS + i);
  __syncwarp();
  choose_now(of, number, chosen);
  if (first) barrier_arrive(full);
  for (int i = ALWAYS; i < CHOSEN && takes; i++) bring(chosen[i].expert);
  __syncwarp();
}

// For one thread.
DEVICE void bring_down(Ring& ring, const Source& source, const Choice* chosen) {
  const u32 bytes = source.own.count * INNER;
  for (int i = 0; i < CHOSEN; i += AT_ONCE) {
    ring.make_room();
    ring.expect(AT_ONCE * bytes);
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) ring.copy(j * bytes, source.w + ((i64)chosen[i + j].expert * source.columns + source.own.first) * INNER, bytes);
    ring.advance();
  }
}

DEVICE void up_phase(const Up& of, const Columns own, Block& block) {
  using In = Input<false, Stream::INPUTS / WORKING / 128, false>;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, column = thread / SHARERS, sharer = thread % SHARERS;
  const int piece = min(column / OF_EXPERT, CHOSEN - 1), at = column % OF_EXPERT;
  // Blocks without columns count too: later phases derive the barrier's parity from this number.
  const int turn = block.choices++ % 2;
  if (own.count == 0) return;
  float weight = 0.0f, factor = 0.0f, factor_of_up = 0.0f;
  const auto choice_is_there = [&](int part) {
    if (part == 0) return;
    barrier_wait(block.chosen_full, turn);
    if (column >= CHOSEN * OF_EXPERT) return;
    const Choice choice = block.chosen[piece];
    const float* const factors = of.w_scale + (i64)choice.expert * (2 * INNER) + own.first + at;
    weight = choice.weight, factor = __ldg(factors), factor_of_up = __ldg(factors + INNER);
  };
  const Parts parts = {2, ALWAYS * UP_STAGES, DEALT * UP_STAGES};
  if (WORKING == WARPS || warp < WORKING) {
    float back = block.backs[warp];
    if (!of.local) {
      In in;
      in.take(nullptr, of.x, 0);
      in.lay(In::place(block.x));
      back = in.back;
    }
#if BY_CHUNKS
    static_assert(In::ROWS == 2 * OF_EXPERT, "gates and ups of an expert are a stage");
    multiply<In>(back, own, parts, block, choice_is_there);
#else
    float* to = block.sums + warp * 16;
    for (int part = 0; part < 2; part++) {
      choice_is_there(part);
      for (int left = parts.of(part); left > 0; left--, to += WARPS * 16) {
        const int slot = block.ring.slot;
        barrier_wait(block.ring.full + 8 * slot, block.ring.turn);
        multiply_rows<HIDDEN / CHUNK, HIDDEN, false>(In::place(block.x), block.ring.at + slot * STAGE + warp * OF_WARP, back, to);
        __syncwarp();
        if (lane == 0) barrier_arrive(block.ring.empty + 8 * slot);
        block.ring.advance();
      }
    }
#endif
  } else {
    leave(parts, block, choice_is_there);
  }
  const float root = of.local ? *block.root : 1.0f;
  meet_inside();
  constexpr int SEGMENTS = BY_CHUNKS ? In::SEGMENTS : 1;
  const float* const from = block.sums + (piece * UP_STAGES * WARPS + sharer * (WARPS / SHARERS)) * 16 + at * SEGMENTS;
  const float gate = total<SEGMENTS>(from), up = total<SEGMENTS>(from + (BY_CHUNKS ? OF_EXPERT * SEGMENTS : WARPS * 16));
  const float made = silu(gate * factor * root) * (up * factor_of_up * root) * weight;
  const u32 content = narrow_half(made), next = __shfl_down_sync(0xffffffff, content, SHARERS);
  if (sharer == 0 && column % 2 == 0 && column < CHOSEN * OF_EXPERT) {
    give(of.packets + (piece * INNER + own.first + at) / 2, content | next << 16, block.number + 1);
  }
}

DEVICE void down_phase(const Down& of, const Columns own, Block& block) {
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, half = warp / SHARE, first_of_warp = warp % SHARE * OF_WARP;
  const int column = thread / SHARERS, sharer = thread % SHARERS, safe = min(column, own.count - 1);
  barrier_wait(block.chosen_full, (block.choices - 1) % 2);
  if (own.count == 0) return;
  float factor[DOWN_STEPS] = {}, last = 0.0f;
  if (column < own.count) {
#pragma unroll
    for (int i = 0; i < DOWN_STEPS; i++) {
      const int piece = AT_ONCE == 2 ? 2 * i + sharer : i;
      factor[i] = __ldg(of.w_scale + (i64)block.chosen[piece].expert * of.columns + own.first + column);
    }
    if (of.residual != nullptr) last = __ldcg(of.residual + own.first + column);
  }
  // ---- x: a warp's columns of each expert that it multiplies.
  Packets two[DOWN_STEPS];
  const u64* const from = of.x_packets + (half * INNER + first_of_warp + lane * 4) / 2;
#pragma unroll
  for (int i = 0; i < DOWN_STEPS; i++) two[i] = Packets::ask(from + i * (AT_ONCE * INNER / 2));
  for (bool there = false; !there;) {
    there = true;
#pragma unroll
    for (int i = 0; i < DOWN_STEPS; i++) {
      if (!two[i].are(block.number)) there = false, two[i] = Packets::ask(from + i * (AT_ONCE * INNER / 2));
    }
  }
  __syncwarp();
  float value[DOWN_STEPS][4];
#pragma unroll
  for (int i = 0; i < DOWN_STEPS; i++) {
    const u32 a = (u32)two[i].a, b = (u32)two[i].b;
    value[i][0] = widen_half(a & 0xffff), value[i][1] = widen_half(a >> 16), value[i][2] = widen_half(b & 0xffff), value[i][3] = widen_half(b >> 16);
  }
  u32 x = block.x + warp * (DOWN_STEPS * OF_WARP * 2);
  const float back = laid<DOWN_STEPS, 4>(value, x);
  // ---- Products.
  float* to = block.sums + warp * 16;
#pragma unroll 1
  for (int i = 0; i < DOWN_STEPS; i++, x += OF_WARP * 2, to += DOWN_GROUPS * WARPS * 16) {
    const int slot = block.ring.slot;
    barrier_wait(block.ring.full + 8 * slot, block.ring.turn);
    const u32 rows = block.ring.at + slot * STAGE + half * own.count * INNER + first_of_warp;
    multiply_rows<1, INNER, true>(x, rows, back, to);
    if constexpr (DOWN_GROUPS == 2) {
      if (own.count > 16) multiply_rows<1, INNER, false>(x, rows + 16 * INNER, back, to + WARPS * 16);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(block.ring.empty + 8 * slot);
    block.ring.advance();
  }
  meet_inside();
  // ---- Columns: each of two adjacent threads has one half of the warps.
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < DOWN_STEPS; i++) {
    const float* const of_step = block.sums + ((i * DOWN_GROUPS + safe / 16) * WARPS + sharer * (WARPS / SHARERS)) * 16 + safe % 16;
    sum = fmaf(factor[i], (of_step[0] + of_step[16]) + (of_step[32] + of_step[48]), sum);
  }
  sum += __shfl_xor_sync(0xffffffff, sum, 1);
  if (sharer != 0 || column >= own.count) return;
  const float made = fmaf(sum, of.scale, last);
  if (of.packets != nullptr) give(of.packets + own.first + column, __float_as_uint(made), block.number + 1);
  of.o[own.first + column] = made;
}
