// A token's step size, and the update of a state. Requires storage.cuh.
//
// A state decays by exp(step A). ex2.approx has an error of up to two units in the last place, of the same sign for similar arguments, and a
// slowly decaying state accumulates them over its tokens: up to 5e-4 after 4096, which is acceptable with 16-bit storage and not with
// float32. With float32, small exponents use a polynomial of e^x - 1, whose digits are not lost in a sum with 1.

constexpr bool EXACT = STORAGE == STORED_f32;
constexpr float LOG2_E = 1.44269504f;

// A in the unit that `advance` takes.
DEVICE float rate_of(float a) { return EXACT ? a : a * LOG2_E; }

// exp(step A) h + input.
DEVICE float advance(float h, float step, float rate, float input) {
  const float x = step * rate;
  if constexpr (!EXACT) return fmaf(exp2_fast(x), h, input);
  float less = fmaf(fmaf(fmaf(fmaf(x, 1.0f / 120, 1.0f / 24), x, 1.0f / 6), x, 0.5f), x, 1.0f) * x;
  if (fabsf(x) > 0.125f) less = exp2_fast(x * LOG2_E) - 1.0f;
  return fmaf(less, h, h + input);
}

// log(1 + e^x) = max(x, 0) + log(1 + t) with t = e^-|x|. log(1 + t) / t on [0, 1] is Chebyshev's polynomial of degree 8, which is
// within 2e-7 of it: small steps keep their digits. Above 20 it gives x, as t is far below the last place of that.
DEVICE float softplus(float x) {
  const float t = exp2_fast(fabsf(x) * -LOG2_E);
  constexpr float terms[] = {5.126102361828089e-3f,  -2.9074065387248993e-2f, 7.75160863995552e-2f,
                             -0.13602247834205627f,  0.19076880812644958f,    -0.2483539879322052f,
                             0.3331812024116516f,    -0.4999944567680359f,    0.9999999403953552f};
  float p = terms[0];
#pragma unroll
  for (int i = 1; i < 9; i++) p = fmaf(p, t, terms[i]);
  return fmaf(p, t, x > 0.0f ? x : 0.0f);
}
