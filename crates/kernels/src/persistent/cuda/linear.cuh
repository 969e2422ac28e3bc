// A product of one row of x over all blocks: o = residual + scale act(rms(x) W^T + bias), with what `Outputs` and `Convolution` do.
//
// A row of K columns is `segments` rows of a matrix product, one behind the other, each a chunk of K / segments columns; the other
// matrix has x's segments as its columns. Of what comes out, [16 rows][8 columns], the sums that belong together are those of row r and
// column r % segments. Each warp takes WARP_COLUMNS of every chunk, a lane 16 neighbouring ones of each half of them.

constexpr int HALVES = 2;    // of a warp's columns
constexpr int SHARERS = 2;   // neighbouring threads that sum up one column of w
static_assert(WARPS % SHARERS == 0 && HALVES * 64 == WARP_COLUMNS);

// What the warps leave each other.
struct Sums {
  float* of;       // [SUM_STAGES][WARPS][16]
  float* squares;  // [WARPS], of x

  // A row of w in a stage, all its segments and warps.
  DEVICE float total(int stage, int row, int segments) const {
    const int sharer = threadIdx.x % SHARERS;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS / SHARERS; w++) {
      const float* const from = of + (stage * WARPS + sharer * (WARPS / SHARERS) + w) * 16 + row * segments;
      if (segments == 2) {
        const float2 two = *(const float2*)from;
        sum += two.x + two.y;
      } else {
#pragma unroll 2
        for (int s = 0; s < segments; s += 4) {
          const float4 four = *(const float4*)(from + s);
          sum += four.x + four.y + four.z + four.w;
        }
      }
    }
    return sum + __shfl_xor_sync(0xffffffff, sum, 1);
  }

  // What rows of x are normalised by.
  DEVICE float root(int inputs, float eps) const {
    float all = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) all += squares[w];
    return rsqrtf(all / inputs + eps);
  }
};

// A lane's part of x, and of each row of w.
struct Lane {
  int chunk, within;  // columns of a chunk; which of them, in the first half
  int column;         // of x
  bool works, reads;  // whether the warp has columns, and the lane some of x

  static DEVICE Lane of(int inputs, int segments) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, segment = lane / 4, chunk = inputs / segments;
    const int within = warp * WARP_COLUMNS + lane % 4 * 16;
    const bool works = warp * WARP_COLUMNS < chunk;
    return {chunk, within, segment * chunk + within, works, works && segment < segments};
  }

  // Rows of even and odd number read the two halves in turn: so the eight rows that a warp reads at once lie in different banks.
  DEVICE int half(int h) const { return (h ^ (threadIdx.x / 4 & 1)) * 64; }
};

// x as it is multiplied: in f16, a warp's columns by the power of two that brings their largest number below 2^15.
struct Multiplied {
  u32 pair[HALVES][8];
  float back;     // what products are multiplied by in turn
  float squared;  // sum of the squares of this lane's x, before the norm's weights

  DEVICE void take(const Linear& p, const Lane& lane, const float (&weight)[HALVES][16]) {
    float value[HALVES][16] = {};
    if (lane.reads) {
#pragma unroll
      for (int h = 0; h < HALVES; h++) {
        if (p.x_f32) {
          u32 word[16];
          const char* from = p.x + (i64)(lane.column + lane.half(h)) * 4;
#pragma unroll
          for (int i = 0; i < 4; i++) load_current(word + 4 * i, from + 16 * i);
#pragma unroll
          for (int i = 0; i < 16; i++) value[h][i] = __uint_as_float(word[i]);
        } else {
          u32 word[8];
          const char* from = p.x + (i64)(lane.column + lane.half(h)) * 2;
          load_current(word, from), load_current(word + 4, from + 16);
#pragma unroll
          for (int i = 0; i < 8; i++) {
            value[h][2 * i] = widen_half(word[i] & 0xffff), value[h][2 * i + 1] = widen_half(word[i] >> 16);
          }
        }
      }
    }
    u32 most = 0;
    squared = 0.0f;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
      for (int i = 0; i < 16; i++) {
        float& v = value[h][i];
        squared = fmaf(v, v, squared);
        // Rounded as the contract has it; the root of the norm commutes with that but for the last digit.
        v = widen_half(narrow_half(v * weight[h][i]));
        most = max(most, __float_as_uint(v) & 0x7fffffff);
      }
    }
    most = __reduce_max_sync(0xffffffff, most);
    // Exponents as they are stored: 127 is 2^0. A NaN or an infinity stays what it is.
    const int power = min(127 + 14 + 127 - (int)(most >> 23), 253);
    const float factor = __uint_as_float((u32)power << 23);
    back = __uint_as_float((u32)(254 - power) << 23);
#pragma unroll
    for (int i = 0; i < 8 * HALVES; i++) {
      const float(&of)[16] = value[i / 8];
      pair[i / 8][i % 8] = pair_f16(of[i % 8 * 2] * factor, of[i % 8 * 2 + 1] * factor);
    }
  }
};

// The products of a block's stages, two of them at once in a warp's registers: `to` gets a warp's 16 sums of each. `at` counts the
// stages of all phases.
struct Products {
  const Ring& ring;
  const Lane& lane;
  const Multiplied& x;
  int segments;
  float* to;  // this lane's

  struct Raw {
    uint4 low[HALVES], high[HALVES];
  };

  DEVICE void take(Raw& raw, int at) const {
    ring.wait_full(at);
    const int row = threadIdx.x % 32 / 4;
    const u32 from = ring.stage(at) + (row * lane.chunk + lane.within) * WEIGHT_BITS / 8;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
      raw.low[h] = load_shared(from + lane.half(h));
      raw.high[h] = load_shared(from + lane.half(h) + lane.chunk * WEIGHT_BITS);  // eight rows on
    }
  }

  DEVICE void use(const Raw& raw, int at) {
    float sum[HALVES][4] = {};
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
      const Pairs low(raw.low[h]), high(raw.high[h]);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        multiply_f16(sum[h], low.pair[2 * i], high.pair[2 * i], low.pair[2 * i + 1], high.pair[2 * i + 1], x.pair[h][2 * i],
                     x.pair[h][2 * i + 1]);
      }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(ring.empty_at(at));
    const int segment = threadIdx.x % 32 / 4 % segments;
    if (segment / 2 == threadIdx.x % 4) {
      const bool odd = segment % 2;
      const float low = odd ? sum[0][1] + sum[1][1] : sum[0][0] + sum[1][0];
      const float high = odd ? sum[0][3] + sum[1][3] : sum[0][2] + sum[1][2];
      // Where a warp has no columns, what it multiplied with zeros may have been no number.
      to[0] = lane.works ? low * x.back : 0.0f, to[8] = lane.works ? high * x.back : 0.0f;
    }
    to += WARPS * 16;
  }

  DEVICE void all(int& at, int stages) {
    if (stages == 0) return;
    Raw even, odd;
    take(even, at);
    const int end = at + stages;
    for (; at + 2 < end; at += 2) {
      take(odd, at + 1);
      use(even, at);
      take(even, at + 2);
      use(odd, at + 1);
    }
    if (at + 1 < end) {
      take(odd, at + 1);
      use(even, at);
      use(odd, at + 1);
    } else {
      use(even, at);
    }
    at = end;
  }
};

// `meet` is called once, before what other phases write is read: until then only weights, and states that only this phase writes.
template <class Meet>
DEVICE void linear_phase(const Linear& p, int segments, const Ring& ring, const Sums& sums, volatile int& busy, int& at,
                         Meet meet) {
  const int thread = threadIdx.x, columns = p.columns, rows = 16 / segments;
  const bool swiglu = p.swiglu;
  const Columns own = Columns::of(columns);
  const int stages = ceil_div(own.count, rows);
  const Outputs outputs = {p.bias,   p.residual, p.o0,     p.o1,      p.o2,       p.o3,      p.o4,   p.o5,    p.start1,
                           p.start2, p.start3,   p.start4, p.start5,  columns,    p.bias_f32, p.out_f32, swiglu, p.scale};
  const bool convolved = p.conv_weight != nullptr;
  const Convolution convolution = {p.conv_weight,     p.conv_bias,     p.initial_state, p.final_state, p.state_indices,
                                   p.conv_weight_f32, p.conv_bias_f32, p.conv_silu,     p.conv_first,
                                   convolved ? p.conv_channels : 0};

  // ---- Before the meeting.
  const Lane lane = Lane::of(p.inputs, segments);
  float weight[HALVES][16];
#pragma unroll
  for (int i = 0; i < 16 * HALVES; i++) weight[i / 16][i % 16] = 1.0f;
  if (p.norm != nullptr && lane.reads) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
      for (int i = 0; i < 16; i += 4) {
        const float4 four = __ldg((const float4*)(p.norm + lane.column + lane.half(h) + i));
        weight[h][i] = four.x, weight[h][i + 1] = four.y, weight[h][i + 2] = four.z, weight[h][i + 3] = four.w;
      }
    }
  }
  const int column = thread / SHARERS;
  const bool finisher = thread % SHARERS == 0, finishes = finisher && column < own.count;
  const auto factor_of = [&](int column) { return __ldg(p.w_scale + own.first + column); };
  float factor = 1.0f, factor_of_up = 1.0f;
  if (finishes) {
    factor = factor_of(column);
    if (swiglu) factor_of_up = factor_of(columns + column);
  }
  const Convolution::Held state = convolution.held(0, own.first + column, finishes && convolved);

  meet();
  // ---- x, and what the column that a thread finishes first meets.
  Multiplied x;
  x.take(p, lane, weight);
  const Outputs::Around around = outputs.around(0, own.first + column, finishes);
  if (thread == 0) busy = 1;
  Products products = {ring, lane, x, segments, sums.of + thread / 32 * 16 + thread % 32 / 4};
  products.all(at, stages << (int)swiglu);
  if (thread == 0) busy = 0;
  if (p.norm != nullptr) {
    float squared = x.squared;
#pragma unroll
    for (int far = 16; far > 0; far /= 2) squared += __shfl_xor_sync(0xffffffff, squared, far);
    if (thread % 32 == 0) sums.squares[thread / 32] = squared;
  }
  meet_inside();

  // ---- The columns.
  for (int c = column; c - column < own.count; c += CONSUMERS / SHARERS) {
    // All lanes of a warp sum up, whether or not there is a column for them.
    const int there = min(c, own.count - 1), stage = there / rows, row = there - stage * rows;
    const float value = sums.total(stage, row, segments);
    const float up = swiglu ? sums.total(stages + stage, row, segments) : 0.0f;
    if (!finisher || c >= own.count) continue;
    const float root = p.norm != nullptr ? sums.root(p.inputs, p.eps) : 1.0f;
    Outputs::Around of = around;
    Convolution::Held held = state;
    float here = factor, here_up = factor_of_up;
    if (c != column) {
      of = outputs.around(0, own.first + c, true);
      here = factor_of(c);
      if (swiglu) here_up = factor_of(columns + c);
      held = convolution.held(0, own.first + c, convolved);
    }
    outputs.finish(value * here * root, up * here_up * root, of,
                   [&](float finished) { return convolved ? convolution.step(held, finished) : finished; });
  }
}
