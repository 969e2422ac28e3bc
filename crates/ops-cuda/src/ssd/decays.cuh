// Segments of sequences and the decays of a chunk, shared by all chunk kernels of the op. Requires storage.cuh and
// ampere.cuh.

constexpr int Q = 64;  // tokens of a chunk


DEVICE float low_half(u32 pair) { return widen_half(STORAGE == STORED_bf16 ? pair : pair & 0xffff); }
DEVICE float high_half(u32 pair) {
  return STORAGE == STORED_bf16 ? __uint_as_float(pair & 0xffff0000u) : widen_half(pair >> 16);
}

// Two stored values times two weights, rounded once.
DEVICE u32 weigh(u32 pair, float2 weight) { return pack(low_half(pair) * weight.x, high_half(pair) * weight.y); }

// Arrays of a head in the decays of a chunk, in base 2: with a_i the sum of dt A up to and including token i,
enum Decay {
  ROW = 0,         // a_i
  COLUMN = Q,      // a_j - log2 dt_j: 2^(ROW_i - COLUMN_j) is exp(a_i - a_j) dt_j
  FROM_START = 2 * Q,  // 2^a_i
  TO_END = 3 * Q,      // 2^(a_end - a_j) dt_j
};
constexpr int DECAYS = 4;  // arrays

// A decay below 2^-150 per step underflows to 0 in float, and a sum with such steps would lose the digits of others.
#define LEAST_STEP (-150.0f)

// A block's segment of a sequence: whole chunks, except at the sequence's end.
struct Segment {
  i64 start;    // first token of the sequence among all
  int first, end;  // tokens of the segment, within the sequence
  bool there, is_first, is_last;

  DEVICE Segment(const int* cu_seqlens, int tokens, int sequence, int index, int count) {
    start = cu_seqlens != nullptr ? cu_seqlens[sequence] : (i64)sequence * tokens;
    const int length = cu_seqlens != nullptr ? (int)(cu_seqlens[sequence + 1] - start) : tokens;
    const int each = ((length + Q - 1) / Q + count - 1) / count * Q;
    first = index * each;
    end = min(length, first + each);
    is_first = index == 0;
    is_last = first + each >= length;
    there = is_first || first < length;
  }
};

// The bias of a head's raw step sizes, and its rate in base 2.
struct HeadSteps {
  float bias, rate2;
};

// Inputs and limits of the step sizes.
struct Steps {
  const void *dt, *rate, *bias;
  float low, high;
  int dt_f32, rate_f32, bias_f32, softplus;

  DEVICE HeadSteps of_head(int head) const {
    return {bias != nullptr ? number(bias, head, bias_f32) : 0.0f, number(rate, head, rate_f32) * 1.44269504f};
  }
};

// The step sizes of a lane's two tokens of a chunk, as loaded: nothing waits for them before their use.
struct RawSteps {
  u32 step[2];

  // `row` is the element of the head in the sequence's first token, `apart` elements before that of the next.
  DEVICE void fetch(const Steps& steps, i64 row, int apart, int first, int end, int lane) {
    step[0] = step[1] = 0;
    if (first >= end) return;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      step[e] = load_number(steps.dt, row + (i64)min(first + lane * 2 + e, end - 1) * apart, steps.dt_f32);
    }
  }

  // Prefetches into L2 what a later call of `fetch` reads, without holding a register for it.
  static DEVICE void announce(const Steps& steps, i64 row, int apart, int first, int end, int lane) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const i64 at = row + (i64)min(first + lane * 2 + e, end - 1) * apart;
      asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)steps.dt + at * (steps.dt_f32 ? 4 : 2)));
    }
  }
};

// One warp computes the decays of a chunk of one head. Returns a_end.
DEVICE float make_decays(float* decays, const RawSteps& raw, const Steps& steps, const HeadSteps& of_head, int valid,
                         int lane) {
  float step[2], sum[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    float s = number_of(raw.step[e], steps.dt_f32) + of_head.bias;
    if (steps.softplus && s <= 20.0f) s = log1pf(__expf(s));
    s = fminf(fmaxf(s, steps.low), steps.high);
    step[e] = lane * 2 + e < valid ? s : 0.0f;
    sum[e] = fmaxf(step[e] * of_head.rate2, LEAST_STEP);
  }
  sum[1] += sum[0];
  float before = sum[1];
#pragma unroll
  for (int far = 1; far < 32; far *= 2) {
    const float other = __shfl_up_sync(0xffffffff, before, far);
    if (lane >= far) before += other;
  }
  const float end = __shfl_sync(0xffffffff, before, 31);
  before -= sum[1];
  float2 row, column, from_start, to_end;
  row.x = before + sum[0];
  row.y = before + sum[1];
  column.x = row.x - log2_approximate(step[0]);
  column.y = row.y - log2_approximate(step[1]);
  from_start.x = exp2_approximate(row.x);
  from_start.y = exp2_approximate(row.y);
  to_end.x = exp2_approximate(end - column.x);
  to_end.y = exp2_approximate(end - column.y);
  ((float2*)(decays + ROW))[lane] = row;
  ((float2*)(decays + COLUMN))[lane] = column;
  ((float2*)(decays + FROM_START))[lane] = from_start;
  ((float2*)(decays + TO_END))[lane] = to_end;
  return end;
}

