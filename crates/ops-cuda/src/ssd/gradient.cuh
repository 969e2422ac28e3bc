// Shared by the gradient kernels of the op: chunks of a sequence, step sizes, and the layouts of the workspace.
// Requires storage.cuh, and ampere.cuh or, in the kernels without MMA, nothing else.
//
// Macros: CHUNK (64): tokens of a chunk, Q.
//
// Each sequence starts a new chunk, and every chunk has a slot in the workspace:
//   dense: sequence * ceil(T / Q) + chunk, packed: cu_seqlens[sequence] / Q + sequence + chunk.
// Slots: Nseq * ceil(T / Q), or total / Q + Nseq; packed sequences may leave some unused.

#ifndef CHUNK
#define CHUNK 64
#endif
constexpr int Q = CHUNK;

struct Chunks {
  i64 start;   // first token of the sequence among all
  int length;  // tokens of the sequence
  int count;   // chunks
  int slot;    // of the first chunk

  DEVICE Chunks(const int* cu_seqlens, int tokens, int sequence) {
    start = cu_seqlens != nullptr ? cu_seqlens[sequence] : (i64)sequence * tokens;
    length = cu_seqlens != nullptr ? (int)(cu_seqlens[sequence + 1] - start) : tokens;
    count = (length + Q - 1) / Q;
    slot = cu_seqlens != nullptr ? (int)(start / Q) + sequence : sequence * count;
  }
};

// Table of steps, f32 [slots, H, STEP_ARRAYS, Q]; a token beyond the end has step 0 and slope 0.
enum StepArray {
  EXPONENT = 0,   // a_i: sum of D_j A in base 2 from the chunk's start up to and including token i
  STEP = Q,       // D_i: the step size after softplus and limits
  SLOPE = 2 * Q,  // derivative of D_i by dt_i
};
constexpr int STEP_ARRAYS = 3;
constexpr int STEP_BYTES = STEP_ARRAYS * Q * 4;

// A decay below 2^-150 per step underflows to 0 in float, and a sum with such steps would lose the digits of others.
#define LEAST_STEP (-150.0f)
#define LOG2_E 1.44269504f

// Sums of a chunk and head, f32 [slots, H, 2]: of the gradients of A and of dt.
enum Sum { SUM_RATE = 0, SUM_STEP = 1, SUMS = 2 };

DEVICE float low_half(u32 pair) { return widen_half(STORAGE == STORED_bf16 ? pair : pair & 0xffff); }
DEVICE float high_half(u32 pair) {
  return STORAGE == STORED_bf16 ? __uint_as_float(pair & 0xffff0000u) : widen_half(pair >> 16);
}

// An element of a small tensor, 0 if it is null. The load is made in any case, then of the first element of `valid`: a load that is not
// volatile may be moved above a condition.
DEVICE float number_or_zero(const void* from, const void* valid, i64 index, bool is_f32) {
  const float value = number(from != nullptr ? from : valid, from != nullptr ? index : 0, is_f32);
  return from != nullptr ? value : 0.0f;
}

// Inputs and limits of the step sizes.
struct Steps {
  const void *dt, *rate, *bias;
  float low, high;
  int dt_f32, rate_f32, bias_f32, softplus;
};

// Step size of a token and its derivative.
DEVICE float step_of(float raw, const Steps& steps, float& slope) {
  float step = raw;
  slope = 1.0f;
  if (steps.softplus && raw <= 20.0f) {
    const float e = expf(raw);
    step = log1pf(e);
    slope = e / (1.0f + e);
  }
  if (step < steps.low || step > steps.high) slope = 0.0f;
  return fminf(fmaxf(step, steps.low), steps.high);
}

// Stores one element of a small tensor that is float32 or in the storage type.
DEVICE void store_number(void* to, i64 index, float value, bool is_f32) {
  if (is_f32 || STORAGE == STORED_f32) {
    ((float*)to)[index] = value;
  } else {
    ((u16*)to)[index] = narrow_half(value);
  }
}

// States in the workspace have the columns of N permuted in groups of 32, so that a lane's accumulators of four tiles are 16
// adjacent bytes: column 8 j + 2 q + e (tile j, lane % 4 = q) is stored at 8 q + 2 j + e.

// x / (1 + e^-x) is `silu` of storage.cuh; its derivative:
DEVICE float silu_slope(float x) {
  const float s = __fdividef(1.0f, 1.0f + exp2_fast(x * -LOG2_E));
  return s * (1.0f + x * (1.0f - s));
}
