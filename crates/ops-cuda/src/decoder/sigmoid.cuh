// 1 / (1 + e^-x).
DEVICE float sigmoid(float x) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1.0f + exp2_fast(x * -1.44269504f)));
  return reciprocal;
}
