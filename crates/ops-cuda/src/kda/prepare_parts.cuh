// Shared by prepare.cu and prepare_head.cu: products of stored values, and the end of a package.

// Packages are read after all have been written: evict first from L2 (.cs). Those of prepare_rest.cu (REST) are read soon after.
#ifdef REST
#define PACKAGE_STORE "st.global"
#else
#define PACKAGE_STORE "st.global.cs"
#endif
DEVICE void store_piece(void* to, const u32 (&words)[4]) {
  asm volatile(PACKAGE_STORE ".v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}

DEVICE void store_word(void* to, u32 word) { asm volatile(PACKAGE_STORE ".u32 [%0], %1;" ::"l"(to), "r"(word) : "memory"); }

// d[j][i] += a_i . b_j over 16 stored channels, exact except for the rounding of the sum.
DEVICE void multiply_stored(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." STORED "." STORED
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Diagonal element `row` of an 8 x 8 product, for the quad of lanes that has row `row`.
DEVICE float diagonal(float even, float odd, int row) {
  const int from = row * 4 + row / 2;
  const float x = __shfl_sync(~0u, even, from), y = __shfl_sync(~0u, odd, from);
  return row % 2 ? y : x;
}

// Compile-time flag of a lambda: whether all tokens of the chunk exist.
struct Always {
  DEVICE constexpr operator bool() const { return true; }
};
struct Maybe {
  DEVICE constexpr operator bool() const { return false; }
};

// A^q is 0 for later keys: clears the six 16 x 16 blocks above the diagonal, in pieces of 8 columns.
DEVICE void clear_above(unsigned char* aq, int warp, int lane) {
  const u32 none[4] = {0, 0, 0, 0};
#pragma unroll
  for (int turn = 0; turn < 2; turn++) {
    const int block = turn * 4 + warp;  // 0 to 2: next to the diagonal; 3: the corner; 4 and 5: the others
    if (block < 6) {
      const int i = block < 3 ? block : block == 4 ? 1 : 0, j = block < 3 ? block + 1 : block == 5 ? 2 : 3;
      store_piece(aq + piece_at(i * 16 + (lane >> 1), j * 2 + (lane & 1)), none);
    }
  }
}

// Matrix m of a package: the result of `solve`, each column times the write strength of its token.
DEVICE void store_inverse(unsigned char* m, const float* inverse, const float* writes, int thread) {
  const int j = (thread & 7) * 8;
  const float4 low_writes = four(writes + j), high_writes = four(writes + j + 4);
#pragma unroll
  for (int half = 0; half < 2; half++) {
#pragma unroll
    for (int r = 0; r < 32; r += 16) {
      const int i = half * 32 + (thread >> 3 & 15) + r;
      u32 words[4] = {0, 0, 0, 0};
      if (half == 1 || j < 32) {
        const float4 low = four(inverse + i * SOLVE_STRIDE + j), high = four(inverse + i * SOLVE_STRIDE + j + 4);
        words[0] = pack(low.x * low_writes.x, low.y * low_writes.y), words[1] = pack(low.z * low_writes.z, low.w * low_writes.w);
        words[2] = pack(high.x * high_writes.x, high.y * high_writes.y);
        words[3] = pack(high.z * high_writes.z, high.w * high_writes.w);
      }
      store_piece(m + piece_at(i, thread & 7), words);
    }
  }
}
