// The router's choice: the top_k most wanted experts of a token and their weights, by one warp. Stands behind ampere.cuh.
//
// Experts are wanted by their logits, or by sigmoid + correction. A float's order is that of an integer, of which a warp
// finds the largest in one instruction; of equal ones the lowest expert is taken. Nothing depends on the order of threads.

constexpr int MOST_EXPERTS = 1024, MOST_CHOSEN = 32;

// What a router does with logits.
struct Router {
  const float* correction;  // [experts], or null
  int experts;              // up to MOST_EXPERTS
  int top_k;                // up to MOST_CHOSEN
  int sigmoid;              // 0: weights are the softmax over the chosen logits
  int renormalise;          // sigmoids are divided by their sum + 1e-20
  float weight_scale;
};

// An integer in the order of the float; above 0 for all but NaN. Adding 0 makes one of both zeros.
DEVICE u32 in_order(float x) {
  const int bits = __float_as_int(x + 0.0f);
  return (u32)bits ^ ((u32)(bits >> 31) | 0x80000000u);
}

DEVICE float logistic(float x) { return 1.0f / (1.0f + exp2_approximate(x * -1.44269504f)); }

// Read where it stands in the program: not before the kernel that wrote it has ended.
DEVICE float load_float(const float* at) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(at) : "memory");
  return value;
}

// Lane j gets the expert in place j, for up to 32 * slots experts.
template <int slots>
DEVICE int choose_among(const float* logits, const Router& router) {
  const int lane = threadIdx.x % 32;
  u32 wanted[slots];
#pragma unroll
  for (int i = 0; i < slots; i++) {
    const int expert = i * 32 + lane;
    wanted[i] = 0;
    if (expert < router.experts) {
      float score = load_float(logits + expert);
      if (router.sigmoid) score = logistic(score);
      if (router.correction != nullptr) score += __ldg(router.correction + expert);
      wanted[i] = in_order(score);
    }
  }
  int chosen = 0;
#pragma unroll 1
  for (int place = 0; place < router.top_k; place++) {
    u32 most = 0;
    int at = 0;
#pragma unroll
    for (int i = 0; i < slots; i++) {
      if (wanted[i] > most) most = wanted[i], at = i;
    }
    const u32 of_warp = __reduce_max_sync(0xffffffff, most);
    const u32 mine = most == of_warp ? (u32)(at * 32 + lane) : 0xffffffffu;
    const u32 expert = __reduce_min_sync(0xffffffff, mine);
    if (lane == place) chosen = (int)expert;
    if (expert == mine) {
#pragma unroll
      for (int i = 0; i < slots; i++) {
        if (i == at) wanted[i] = 0;
      }
    }
  }
  return chosen;
}

struct Choice {
  int expert;
  float weight;
};

// Lane j gets the expert in place j and its weight; lanes from top_k on get expert 0 of weight 0.
DEVICE Choice choose(const float* logits, const Router& router) {
  const bool there = threadIdx.x % 32 < router.top_k;
  const int expert = router.experts <= 64    ? choose_among<2>(logits, router)
                     : router.experts <= 256 ? choose_among<8>(logits, router)
                                             : choose_among<MOST_EXPERTS / 32>(logits, router);
  const float logit = load_float(logits + expert);
  // The first logit is the largest.
  const float first = __shfl_sync(0xffffffff, logit, 0);
  float weight = router.sigmoid ? logistic(logit) : exp2_approximate((logit - first) * 1.44269504f);
  if (!there) weight = 0.0f;
  float sum = weight;
#pragma unroll
  for (int far = 16; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffff, sum, far);
  if (router.sigmoid) sum = router.renormalise ? sum + 1e-20f : 1.0f;
  return {expert, weight * (router.weight_scale / sum)};
}
