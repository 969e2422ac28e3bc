// What the kernels for few rows of x share: reading x as it is multiplied, and what stands around a finished product.
// It stands behind ampere.cuh and storage.cuh.

constexpr int STEP = 64;      // columns of w that a warp multiplies at once
constexpr int SEGMENT = 256;  // columns of x that a warp reads at once
constexpr int BATCH = 4;      // such segments under way

// x is read past the first cache, in which a block of an earlier kernel may have left what stood there before.
DEVICE void load_current(u32* to, const char* from) {
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "l"(from)
               : "memory");
}

DEVICE float load_current(const float* from) {
  float value;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
  return value;
}

DEVICE uint4 load_shared(u32 from) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from)
               : "memory");
  return value;
}

// 16 bytes of w, or zeros where they are not there.
DEVICE void copy_weights(u32 to, const u16* from, bool there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}

// The norm, which no kernel writes, comes as far as the second cache.
DEVICE void prefetch_norm(const void* norm, int bytes) {
  if (norm != nullptr && threadIdx.x * 128 < bytes) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)norm + threadIdx.x * 128));
  }
}

// Eight neighbouring values of x, as they are read.
struct Piece {
  u32 word[8];

  DEVICE void load(const char* x, i64 at, bool x_f32, bool there) {
#pragma unroll
    for (int i = 0; i < 8; i++) word[i] = 0;
    if (!there) return;
    const char* from = x + at * (x_f32 ? 4 : 2);
    load_current(word, from);
    if (x_f32) load_current(word + 4, from + 16);
  }

  DEVICE float get(int i, bool x_f32) const {
    return x_f32 ? __uint_as_float(word[i]) : widen_half(i % 2 ? word[i / 2] >> 16 : word[i / 2] & 0xffff);
  }
};

// Rows of x in shared memory, times the norm's weights and rounded.
struct Tokens {
  const char* x;     // [tokens, inputs], f32 or storage
  const void* norm;  // [inputs], f32 or storage, or null
  int tokens, inputs, x_f32, norm_f32;
  u32 at;          // [tokens], `stride` bytes from row to row
  int stride;      // a multiple of 128, and 64 more: no bank conflicts
  float* squares;  // [tokens][segments]
  int segments;

  // The same columns as they are, where they need nothing done to them; this thread's copies are there at the end.
  template <int warps>
  DEVICE void copy(int from, int count) const {
    for (int token = threadIdx.x / 32; token < tokens; token += warps) {
      for (int offset = threadIdx.x % 32 * 8; offset < count; offset += SEGMENT) {
        const bool there = from + offset < inputs;
        copy_async<16>(at + token * stride + offset * 2, x + (there ? ((i64)token * inputs + from + offset) * 2 : 0), there);
      }
    }
    copy_commit();
    copy_wait<0>();
  }

  // Columns from .. from + count, of which those from `inputs` on are zeros. With `sum`, each segment's sum of squares
  // goes to squares, from `segment` on; with `store`, the columns go to shared memory, times root(token, column).
  template <int warps, class Root>
  DEVICE void take(int from, int count, int segment, bool sum, bool store, Root root) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int pieces = ceil_div(count, SEGMENT), items = tokens * pieces;
    float weight[8];
    int weighted = -1;  // the column whose weights these are: mostly one for all items of a warp
    for (int item = warp; item < items; item += BATCH * warps) {
      Piece piece[BATCH];
#pragma unroll
      for (int b = 0; b < BATCH; b++) {
        const int each = item + b * warps, token = each / pieces;
        const int offset = (each - token * pieces) * SEGMENT + lane * 8;
        piece[b].load(x, (i64)token * inputs + from + offset, x_f32,
                      each < items && offset < count && from + offset < inputs);
      }
#pragma unroll
      for (int b = 0; b < BATCH; b++) {
        const int each = item + b * warps, token = each / pieces;
        if (each >= items) break;
        const int piece_here = each - token * pieces, offset = piece_here * SEGMENT + lane * 8, column = from + offset;
        float value[8], total = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
          value[i] = piece[b].get(i, x_f32);
          total = fmaf(value[i], value[i], total);
        }
        if (sum) {
#pragma unroll
          for (int far = 16; far > 0; far /= 2) total += __shfl_xor_sync(0xffffffff, total, far);
          // There may be padding behind the last segment.
          if (lane == 0 && segment + piece_here < segments) squares[token * segments + segment + piece_here] = total;
        }
        if (!store || offset >= count) continue;
        if (norm != nullptr && column < inputs) {
          if (column != weighted) numbers<8>(weight, norm, column, norm_f32);
          weighted = column;
          const float factor = root(token, column);
#pragma unroll
          for (int i = 0; i < 8; i++) value[i] *= weight[i] * factor;
        }
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at + token * stride + offset * 2),
                     "r"(pack(value[0], value[1])), "r"(pack(value[2], value[3])), "r"(pack(value[4], value[5])),
                     "r"(pack(value[6], value[7]))
                     : "memory");
      }
    }
  }
};

// Where the columns go, and what stands around them.
struct Outputs {
  const void* bias;       // [N], f32 or storage, or null
  const float* residual;  // [tokens, columns], or null
  char *o0, *o1, *o2, *o3, *o4, *o5;
  int start1, start2, start3, start4, start5;  // the first column of o1 and so on; columns where there is none
  int columns, bias_f32, out_f32, swiglu;
  float scale;

  // What is added to a column: to the product or the gate, to the up, and last.
  struct Added {
    float low, high, last;
  };
  DEVICE Added added(int token, int column, bool there) const {
    return {there && bias != nullptr ? number(bias, column, bias_f32) : 0.0f,
            there && bias != nullptr && swiglu ? number(bias, columns + column, bias_f32) : 0.0f,
            there && residual != nullptr ? load_current(residual + (i64)token * columns + column) : 0.0f};
  }

  // `then` makes of a finished value what is stored.
  template <class Then>
  DEVICE void finish(int token, int column, float value, float up, const Added& added, Then then) const {
    value += added.low;
    if (swiglu) value = silu(value) * (up + added.high);
    value = then(fmaf(value, scale, added.last));
    char* to = o0;
    int begin = 0, end = start1;
    if (column >= start1) to = o1, begin = start1, end = start2;
    if (column >= start2) to = o2, begin = start2, end = start3;
    if (column >= start3) to = o3, begin = start3, end = start4;
    if (column >= start4) to = o4, begin = start4, end = start5;
    if (column >= start5) to = o5, begin = start5, end = columns;
    const i64 at = (i64)token * (end - begin) + (column - begin);
    if (out_f32) {
      ((float*)to)[at] = value;
    } else {
      ((u16*)to)[at] = narrow_half(value);
    }
  }
};
