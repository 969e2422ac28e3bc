// Tests memory: writes a pattern over words of 64 bits, or reads them back and counts those with a different value.
//
// words [count] u64. Each word's value is `pattern`, exclusive-or its address if `addressed`.
// found [1 + 3 * MOST] u64: number of wrong words, then address, expected value and actual value of the first MOST found.
// `check` reads; otherwise it writes.
//
// Launch: grid (blocks); block (256). Macros: MOST.

typedef long long i64;
typedef unsigned long long u64;

extern "C" __global__ void __launch_bounds__(256)
    memory_test(u64* words, u64* found, i64 count, i64 pattern, int addressed, int check) {
  const i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    u64* const word = words + i;
    const u64 wanted = (u64)pattern ^ (addressed ? (u64)word : 0);
    if (!check) {
      __stcs(word, wanted);
      continue;
    }
    // Bypasses the caches, so that the value is read from memory.
    const u64 got = __ldcv(word);
    if (got == wanted) continue;
    const u64 at = atomicAdd(found, 1ull);
    if (at >= MOST) continue;
    found[1 + 3 * at] = (u64)word;
    found[2 + 3 * at] = wanted;
    found[3 + 3 * at] = got;
  }
}
