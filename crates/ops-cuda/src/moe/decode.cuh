// Products of few tokens with rows of weights that are read once. Requires include/narrow.cuh and choose.cuh.
//
// A warp multiplies up to 8 tokens (the A operand; its other 8 rows are zeros) by 8 rows of weights (the B operand), DEPTH
// channels at a time. Weights are read as 16 bytes a lane: lane l has PER_LANE channels, from PER_LANE (l % 4) on, of token or row
// l / 4. Channels are permuted relative to the MMA's K index, alike in both
// operands.
//
// Weights of 8 or 4 bits are converted to bf16 for the MMA, those of 4 bits 128 too large; a step's sums are then multiplied
// by the rows' scales. The tokens' values are permuted to the order of the weights' pairs.
//
// A lane copies its operands into shared memory itself (cp.async), AHEAD steps before their use, and reads them back: bytes in
// flight then need no registers, few of which the compiler would keep in use, and no lane waits for another.
//
// Macros: ONE, AHEAD, WEIGHT_BITS (16: DTYPE; 8; 4: integers from 0 to 15), INTEGERS (of 8 bits, otherwise e4m3), GROUPED (scales are
// per group of a row's channels, otherwise per row), OFFSET (of 4 bits:
// subtracted after scaling; without it 8 times the scale), SHARE (some of a token's experts may not be on this GPU).

constexpr int WARPS = 8, THREADS = 32 * WARPS;
constexpr bool NARROW = WEIGHT_BITS < 16;
constexpr int PER_LANE = 128 / WEIGHT_BITS, DEPTH = 4 * PER_LANE, PIECES = PER_LANE / 8;
constexpr int TOKEN_BYTES = PIECES * (ONE ? 64 : 512);  // per stage; a single token is that of lanes 0 to 3
constexpr int FACTORS = !GROUPED ? 0 : OFFSET ? 2 : 1;  // scale, or scale and offset, of a row in a stage
constexpr int OCTET_BYTES = 512 + 256 * FACTORS;        // of 8 rows of weights in a stage, followed by the scales of two rows per lane

// A warp's ring of AHEAD stages: `rows` times 8 rows of weights, then `groups` times tokens.
template <int rows, int groups>
struct Ring {
  static constexpr int STAGE_BYTES = rows * OCTET_BYTES + groups * TOKEN_BYTES, BYTES = AHEAD * STAGE_BYTES;
  u32 base, of_factors;  // this lane's part of the first stage
  int turn;

  DEVICE Ring(const void* shared) : base(shared_address(shared) + threadIdx.x % 32 * 16), turn(0) {
    of_factors = shared_address(shared) + 512 + threadIdx.x % 32 * 8;
  }

  DEVICE u32 weights(int row) const { return base + turn * STAGE_BYTES + row * OCTET_BYTES; }
  DEVICE u32 factors(int row, int which) const { return of_factors + turn * STAGE_BYTES + row * OCTET_BYTES + which * 256; }
  DEVICE u32 tokens(int group, int piece) const { return weights(rows) + group * TOKEN_BYTES + piece * (TOKEN_BYTES / PIECES); }
  DEVICE void advance() { turn = turn + 1 == AHEAD ? 0 : turn + 1; }
};

// A whole line is fetched into L2: the next step of the row is the rest of it.
DEVICE void copy_weights(u32 to, const unsigned char* from, bool there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}

// The scales and offsets of a lane's two rows.
struct TwoFactors {
  float2 scale, offset;
};

// Scales and offsets of all rows, [experts, groups, rows]; a group is 2^shift steps.
struct Factors {
  const float *scale, *offset;
  int groups, rows, shift;

  // Per row: those of `row` and the next of an expert.
  DEVICE TwoFactors of_rows(int expert, int row) const {
    TwoFactors to = {{1.0f, 1.0f}, {0.0f, 0.0f}};
    if constexpr (NARROW && !GROUPED) {
      const i64 at = (i64)expert * rows + min(row, rows - 2);
      to.scale = __ldg(reinterpret_cast<const float2*>(scale + at));
      if constexpr (OFFSET) to.offset = __ldg(reinterpret_cast<const float2*>(offset + at));
    }
    return to;
  }

  // Per group: copies those of rows `row` and the next at a step of an expert, or zeros unless `there`.
  template <class Ring>
  DEVICE void copy(const Ring& ring, int octet, int expert, int step, int row, bool there) const {
    if constexpr (GROUPED) {
      const i64 at = there ? (i64)(expert * groups + (step >> shift)) * rows + row : 0;
      copy_async<8>(ring.factors(octet, 0), scale + at, there);
      if constexpr (OFFSET) copy_async<8>(ring.factors(octet, 1), offset + at, there);
    }
  }
};

// Copies the channels of a step from `from` on. Lanes without a token copy zeros; of a single token only lanes 0
// to 3 copy, and only they load it.
template <class Ring>
DEVICE void copy_tokens(const Ring& ring, int group, const u16* from, bool there) {
#pragma unroll
  for (int piece = 0; piece < PIECES; piece++) {
    if (!ONE || threadIdx.x % 32 < 4) copy_async<16>(ring.tokens(group, piece), from + 8 * piece, there);
  }
}

DEVICE void load_piece(u32* to, u32 address) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

DEVICE float2 load_two(u32 address) {
  float2 to;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(to.x), "=f"(to.y) : "r"(address) : "memory");
  return to;
}

// A step's channels of tokens in the order of the weights' pairs.
struct Channels {
  u32 words[4 * PIECES];

  template <class Ring>
  DEVICE Channels(const Ring& ring, int group) {
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
#pragma unroll
      for (int w = 0; w < 4; w++) words[4 * piece + w] = 0;
      if (!ONE || threadIdx.x % 32 < 4) load_piece(words + 4 * piece, ring.tokens(group, piece));
    }
    if constexpr (NARROW) put_apart(words);
    if constexpr (SCALED_UP) {
#pragma unroll
      for (int w = 0; w < 4 * PIECES; w++) words[w] = scaled_up(words[w]);
    }
  }

  // d += two pairs from `at` on, of the lane's token, with those of the lane's row.
  DEVICE void multiply_at(float (&d)[4], int at, u32 first, u32 second) const {
    const u32 of_tokens[4] = {words[at], 0, words[at + 1], 0};
    multiply(d, of_tokens, first, second);
  }
};

// Sums of products of a lane's token with two rows of each octet: elements 0 and 1; elements 2 and 3 belong to the MMA's zero
// rows. For 4 bits, the tokens' own sums as well: each weight is 128 too large.
template <int octets>
struct Sums {
  float of_rows[octets][4] = {}, of_tokens[4] = {};

  DEVICE void multiply(const Channels& channels, int octet, const u32 (&weights)[4]) {
    if constexpr (!NARROW) {
      channels.multiply_at(of_rows[octet], 0, weights[0], weights[1]);
      channels.multiply_at(of_rows[octet], 2, weights[2], weights[3]);
    } else {
#pragma unroll
      for (int w = 0; w < 4; w++) {
        u32 pairs[PAIRS];
        take_apart(weights[w], pairs);
#pragma unroll
        for (int i = 0; i < PAIRS; i += 2) channels.multiply_at(of_rows[octet], w * PAIRS + i, pairs[i], pairs[i + 1]);
      }
    }
  }

  // The sums with scales applied and offsets subtracted.
  DEVICE float2 finished(int octet, const TwoFactors& factors) const {
    if constexpr (!NARROW) return make_float2(of_rows[octet][0], of_rows[octet][1]);
    float2 more = make_float2(0.0f, 0.0f);
    if constexpr (WEIGHT_BITS == 4 && OFFSET) {
      more = make_float2(fmaf(128.0f, factors.scale.x, factors.offset.x), fmaf(128.0f, factors.scale.y, factors.offset.y));
    } else if constexpr (WEIGHT_BITS == 4) {
      more = make_float2(136.0f * factors.scale.x, 136.0f * factors.scale.y);
    }
    return make_float2(fmaf(of_rows[octet][0], factors.scale.x * OF_SUMS, -more.x * of_tokens[0]),
                       fmaf(of_rows[octet][1], factors.scale.y * OF_SUMS, -more.y * of_tokens[0]));
  }
};

// sums += a step's products with the octets from `first` on.
template <int octets, class Ring>
DEVICE void multiply_step(Sums<octets>& sums, const Ring& ring, int first, int group) {
  const Channels channels(ring, group);
  // With scales per group, of this step alone.
  Sums<octets> own;
  Sums<octets>& to = GROUPED ? own : sums;
  if constexpr (WEIGHT_BITS == 4) {
#pragma unroll
    for (int at = 0; at < 4 * PIECES; at += 2) channels.multiply_at(to.of_tokens, at, ONES, ONES);
  }
#pragma unroll
  for (int octet = 0; octet < octets; octet++) {
    u32 weights[4];
    load_piece(weights, ring.weights(first + octet));
    to.multiply(channels, octet, weights);
    if constexpr (GROUPED) {
      TwoFactors factors = {load_two(ring.factors(first + octet, 0)), {0.0f, 0.0f}};
      if constexpr (OFFSET) factors.offset = load_two(ring.factors(first + octet, 1));
      const float2 finished = own.finished(octet, factors);
      sums.of_rows[octet][0] += finished.x, sums.of_rows[octet][1] += finished.y;
    }
  }
}

// The sums of all steps, with the scales of rows applied.
template <int octets>
DEVICE float2 of_all_steps(const Sums<octets>& sums, int octet, const TwoFactors& factors) {
  return GROUPED ? make_float2(sums.of_rows[octet][0], sums.of_rows[octet][1]) : sums.finished(octet, factors);
}

// The list of tiles (list.cuh), or the local expert indices of a single token.
struct Tiles {
  const int* list;
  int count;

  // Expert, first pair, last pair + 1; no pairs past the end.
  DEVICE int4 at(int index) const {
    if (index >= count) return make_int4(0, 0, 0, 0);
#if ONE
    return make_int4(list[index], index, index + 1, 0);
#else
    return *reinterpret_cast<const int4*>(list + 4 + 4 * index);
#endif
  }
};
