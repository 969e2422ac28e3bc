extern "C" __global__ void __launch_bounds__(128) dummy(float* state, const unsigned short* in, int count, long long* t) {
  long long* const times = t + blockIdx.x * 8; const int thread = threadIdx.x;
#define STAMP(i) if (thread == 0 && t != nullptr) { long long now; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); times[i] = now; }
  STAMP(0);
  extern __shared__ float s[];
  asm volatile("griddepcontrol.launch_dependents;");
  const int at = (blockIdx.x * 128 + threadIdx.x) * 16;
  float4 v[4];
  for (int i = 0; i < 4; i++) v[i] = *(float4*)(state + at + i * 4);
  STAMP(1);
  asm volatile("griddepcontrol.wait;" ::: "memory");
  STAMP(2);
  s[threadIdx.x % 16] = in[threadIdx.x];
  __syncthreads();
  STAMP(3);
  STAMP(4);
  for (int i = 0; i < 4; i++) { v[i].x += s[i] * 1e-9f; v[i].y *= 0.99f; *(float4*)(state + at + i * 4) = v[i]; }
  STAMP(5);
}
