// The router: chooses the top-k experts of a token and their weights, by one warp. Requires ampere.cuh.
//
// A token has top_k experts. The last `always` of them are shared experts, which every token takes with weight 1: their indices
// follow the `experts` of the logits.
//
// Experts are ranked by their logits, or by sigmoid + correction. Floats are mapped to integers of the same order, of which a warp
// finds the largest in one instruction; of equal ones the lowest expert is taken.

constexpr int MOST_EXPERTS = 512, MOST_CHOSEN = 32;

// Parameters of the router.
struct Router {
  const float* correction;  // [experts], or null
  int experts;              // of the logits: with those that every token takes, up to MOST_EXPERTS
  int first, held;          // the experts whose weights are here: `held` from `first` on
  int top_k;                // experts of a token, up to MOST_CHOSEN
  int always;               // how many of them every token takes
  int sigmoid;              // 0: weights are a softmax
  int renormalise;          // over the chosen logits, not all of them; sigmoids are divided by their sum + sum_eps
  float sum_eps;
  float weight_scale;
};

// Maps a float to an integer of the same order; above 0 for all but NaN. Adding 0 turns -0 into 0.
DEVICE u32 in_order(float x) {
  const int bits = __float_as_int(x + 0.0f);
  return (u32)bits ^ ((u32)(bits >> 31) | 0x80000000u);
}

DEVICE float logistic(float x) { return reciprocal_approximate(1.0f + exp2_approximate(x * -1.44269504f)); }

// Loads in program order: not before the kernel that wrote the value has ended.
DEVICE float load_float(const float* at) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(at) : "memory");
  return value;
}

// Writes the chosen experts in places 0 to top_k - always - 1, for up to 32 * slots experts. Lane l has experts l * slots and the next.
template <int slots>
DEVICE void choose_among(const float* logits, const Router& router, int* places) {
  const int first = threadIdx.x % 32 * slots;
  constexpr int at_once = slots <= 8 ? slots : 4;  // more would be too many registers
  u32 wanted[slots];
#pragma unroll
  for (int from = 0; from < slots; from += at_once) {
    float scores[at_once], corrections[at_once] = {};
    // All loads before their first use, and none in a branch: each would be waited for separately.
#pragma unroll
    for (int i = 0; i < at_once; i++) scores[i] = load_float(logits + min(first + from + i, router.experts - 1));
    if (router.correction != nullptr) {
#pragma unroll
      for (int i = 0; i < at_once; i++) {
        corrections[i] = __ldg(router.correction + min(first + from + i, router.experts - 1));
      }
    }
#pragma unroll
    for (int i = 0; i < at_once; i++) {
      const float score = (router.sigmoid ? logistic(scores[i]) : scores[i]) + corrections[i];
      wanted[from + i] = first + from + i < router.experts ? in_order(score) : 0;
    }
  }
#pragma unroll 1
  for (int place = 0; place < router.top_k - router.always; place++) {
    u32 parts[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < slots; i++) parts[i % 2] = max(parts[i % 2], wanted[i]);
    const u32 most = max(parts[0], parts[1]);
    const u32 of_warp = __reduce_max_sync(0xffffffff, most);
    // The lowest lane that has it has the lowest expert.
    const int taker = __ffs(__ballot_sync(0xffffffff, most == of_warp)) - 1;
    int at = 0;
#pragma unroll
    for (int i = slots - 1; i >= 0; i--) at = wanted[i] == of_warp ? i : at;
    const bool takes = threadIdx.x % 32 == taker;
    if (takes) places[place] = first + at;
#pragma unroll
    for (int i = 0; i < slots; i++) wanted[i] = takes && i == at ? 0 : wanted[i];
  }
  __syncwarp();
}

struct Choice {
  int expert;
  float weight;
};

// Index of an expert's weights on this GPU; -1 if they are not here.
DEVICE int place_of(int expert, int first, int held) {
  return (unsigned)(expert - first) < (unsigned)held ? expert - first : -1;
}

// Keeps a warp's chosen experts that are here: their local indices and, unless null, weights, in the order of the choice. `places` is
// that of choose(). Returns their number.
DEVICE int keep_held(const Choice& choice, const Router& router, int* places, float* weights) {
  const int lane = threadIdx.x % 32, place = place_of(choice.expert, router.first, router.held);
  const bool here = lane < router.top_k && place >= 0;
  const u32 all = __ballot_sync(0xffffffff, here);
  const int at = __popc(all & ((1u << lane) - 1));
  __syncwarp();  // all lanes have read their places
  if (here) places[at] = place;
  if (here && weights != nullptr) weights[at] = choice.weight;
  return __popc(all);
}

// Lane j gets the expert in place j and its weight; lanes from top_k on get expert 0 of weight 0. `places` is shared memory of
// this warp, MOST_CHOSEN words.
DEVICE Choice choose(const float* logits, const Router& router, int* places) {
  const int lane = threadIdx.x % 32, chosen = router.top_k - router.always;
  const bool there = lane < chosen;
  if (router.experts <= 64) {
    choose_among<2>(logits, router, places);
  } else if (router.experts <= 256) {
    choose_among<8>(logits, router, places);
  } else {
    choose_among<MOST_EXPERTS / 32>(logits, router, places);
  }
  const int expert = there ? places[lane] : 0;
  const float logit = load_float(logits + expert);
  // The first logit is the largest.
  const float first = __shfl_sync(0xffffffff, logit, 0);
  float weight = router.sigmoid ? logistic(logit) : exp2_approximate((logit - first) * 1.44269504f);
  if (!there) weight = 0.0f;
  float sum = weight;
  if (!router.sigmoid && !router.renormalise) {
    sum = 0.0f;
#pragma unroll 1
    for (int at = lane; at < router.experts; at += 32) sum += exp2_approximate((load_float(logits + at) - first) * 1.44269504f);
  }
#pragma unroll
  for (int far = 16; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffff, sum, far);
  if (router.sigmoid) sum = router.renormalise ? sum + router.sum_eps : 1.0f;
  if (there || lane >= router.top_k) return {expert, weight * (router.weight_scale / sum)};
  places[lane] = router.experts + lane - chosen;
  return {router.experts + lane - chosen, 1.0f};
}
