// Shared by the kernels for few rows of x: loads of x in the order of the MMAs, and the epilogue.
// Requires ampere.cuh and storage.cuh.

#ifndef WEIGHT_BITS
#define WEIGHT_BITS 16
#endif
#ifndef STEP_PIECES
#define STEP_PIECES (WEIGHT_BITS == 16 ? 2 : 1)
#endif
#if WEIGHT_BITS == 16
typedef u16 Weight;
#else
typedef unsigned char Weight;
#endif
constexpr int PIECE = 128 / WEIGHT_BITS;  // columns of a lane's 16 bytes of w
constexpr int CHUNKS = PIECE / 8;         // 16-byte chunks of x per 16 bytes of w
constexpr int STEP = STEP_PIECES * 4 * PIECE;  // columns of w that a warp multiplies at once
constexpr int SEGMENT = 256;  // columns of x that a warp reads at once
#ifndef BLOCKS
#define BLOCKS 0
#endif
constexpr int SUM_LANES = BLOCKS == 32 ? 4 : 16;  // lanes whose columns of x are summed together, for 4-bit weights
#ifndef REGISTERS
#define REGISTERS 0
#endif
// Segments in flight, and the number of them with norm weights in registers: as many as the registers permit.
constexpr int BATCH = REGISTERS == 0 || REGISTERS > 128 ? 4 : TAPS > 0 ? 2 : 3;
constexpr int NORMS = REGISTERS > 128 ? 2 : 1;

// x is read past L1, in which a block of an earlier kernel may have left stale lines.
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

// 16 bytes of w, or zeros for missing rows and columns.
DEVICE void copy_weights(u32 to, const Weight* from, bool there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}

// Prefetches the norm, which no kernel writes, into L2.
DEVICE void prefetch_norm(const void* norm, int bytes) {
  if (norm != nullptr && threadIdx.x * 128 < bytes) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)norm + threadIdx.x * 128));
  }
}

// Eight adjacent values of x, as loaded.
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

// Stores 16 bytes of x in shared memory, or in the output of direct_ready.cu.
DEVICE void put(u32 to, const u32 (&words)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
}
DEVICE void put(char* to, const u32 (&words)[4]) { *(uint4*)to = {words[0], words[1], words[2], words[3]}; }

// Makes the compiler compute a value here, and not where it is first used.
DEVICE void settle(int& number) { asm volatile("" : "+r"(number)); }
DEVICE void settle(float& number) { asm volatile("" : "+f"(number)); }

// The pieces of x that a warp reads, SEGMENT columns of one row each: its first, and the distance from one to the next.
// Division is slow, so this is computed before x is available.
struct Pieces {
  int count, token, piece, tokens_on, pieces_on;

  template <int warps>
  static DEVICE Pieces of(int columns) {
    const int count = ceil_div(columns, SEGMENT), warp = threadIdx.x / 32;
    return {count, warp / count, warp % count, warps / count, warps % count};
  }
  DEVICE void settle() {
    ::settle(token), ::settle(piece), ::settle(tokens_on), ::settle(pieces_on);
  }
  DEVICE void advance() {
    token += tokens_on;
    piece += pieces_on;
    if (piece >= count) piece -= count, token++;
  }
};

// Rows of x in shared memory, or at a pointer in global memory, times the norm's weights and rounded.
template <class At>
struct TokensAt {
  const char* x;     // [tokens, inputs], f32 or storage
  const void* norm;  // [inputs], f32 or storage, or null
  int tokens, inputs, x_f32, norm_f32;
  At at;           // [tokens], `stride` bytes from row to row
  int stride;      // a multiple of 128, and 64 more: no bank conflicts
  float* squares;  // [tokens][segments]
  int segments;
  float* backs;  // with x in f16 (`halved`): the inverse of each segment's power of two, [tokens][all_segments]
  int all_segments;
  float2* sums;  // for 4-bit weights, whose offset (256 or 16) is subtracted after the MMA: for each SUM_LANES * 8 columns the sums of
                 // x times the offset of its weight, and of x, [tokens][32 / SUM_LANES * all_segments]

  // Byte offset of a chunk of columns in its row: chunks that four lanes multiply at once are adjacent.
  static DEVICE int place(int column) {
    if constexpr (CHUNKS == 1) return column * 2;
    const int chunk = column / 8 % (4 * CHUNKS);
    return (column / 8 - chunk + chunk % CHUNKS * 4 + chunk / CHUNKS) * 16;
  }

  // The same columns, if they need no conversion: this thread's copies are in flight at the end.
  DEVICE void copy(int from, Pieces pieces) const {
    for (; pieces.token < tokens; pieces.advance()) {
      const int offset = pieces.piece * SEGMENT + threadIdx.x % 32 * 8, column = from + offset;
      const bool there = column < inputs;
      copy_async<16>(at_row(pieces.token) + place(offset), x + (there ? ((i64)pieces.token * inputs + column) * 2 : 0), there);
    }
    copy_commit();
  }

  // Columns from `from` on, those of `pieces`; those from `inputs` on are zeros. With `sum`, each segment's sum of
  // squares goes to squares, from `segment` on; with `store`, the columns go to shared memory, times the norm's weights and
  // root(token, column), with `scaled` times the latter without a norm too, or `halved`: in f16, each segment by the power of two that
  // brings its largest value below 2^15. `beside` is called once, when the first pieces are in flight.
  template <int batch = BATCH, int norms = NORMS, bool scaled = false, bool halved = false, class Root, class Beside>
  DEVICE void take(int from, Pieces pieces, int segment, bool sum, bool store, Root root, Beside beside) const {
    const int lane = threadIdx.x % 32;
    // Mostly the same columns every time, and so loaded once: together with x, not after it.
    float weight[norms][8];
    int weighted[norms];
#pragma unroll
    for (int n = 0; n < norms; n++) weighted[n] = -1;
    const auto weigh = [&](int n, int column) {
      if (norm == nullptr || column == weighted[n]) return;
      numbers<8>(weight[n], norm, column, norm_f32);
      weighted[n] = column;
    };
    for (bool first = true; first || pieces.token < tokens; first = false) {
      Piece piece[batch];
      Pieces ahead = pieces;
#pragma unroll
      for (int b = 0; b < batch; b++, ahead.advance()) {
        const int column = from + ahead.piece * SEGMENT + lane * 8;
        const bool there = ahead.token < tokens && column < inputs;
        piece[b].load(x, (i64)ahead.token * inputs + column, x_f32, there);
        if (b < norms && there && store) weigh(b, column);
      }
      if (first) beside();
#pragma unroll
      for (int b = 0; b < batch; b++, pieces.advance()) {
        const int token = pieces.token, offset = pieces.piece * SEGMENT + lane * 8, column = from + offset;
        if (token >= tokens) break;
        float value[8], total = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
          value[i] = piece[b].get(i, x_f32);
          total = fmaf(value[i], value[i], total);
        }
        if (sum) {
#pragma unroll
          for (int far = 16; far > 0; far /= 2) total += __shfl_xor_sync(0xffffffff, total, far);
          // There may be padding after the last segment.
          const int here = segment + pieces.piece;
          if (lane == 0 && here < segments) squares[token * segments + here] = total;
        }
        if (!store) continue;
        if (norm != nullptr && column < inputs) {
          weigh(b % norms, column);
          const float factor = root(token, column);
#pragma unroll
          for (int i = 0; i < 8; i++) value[i] *= weight[b % norms][i] * factor;
        } else if constexpr (scaled) {
          const float factor = root(token, column);
#pragma unroll
          for (int i = 0; i < 8; i++) value[i] *= factor;
        }
        keep<halved>(token, pieces.piece, offset, value);
      }
    }
  }

  // Stores a warp's segment of a row, each lane eight of its columns, from `offset` on.
  template <bool halved>
  DEVICE void keep(int token, int piece, int offset, const float (&value)[8]) const {
    const int segment = token * all_segments + piece;
    keep_at<halved>(at_row(token) + place(offset), backs + segment, sums + segment * (32 / SUM_LANES), value);
  }
  // The same with the addresses given.
  template <bool halved>
  static DEVICE void keep_at(At to, float* back, float2* sums, const float (&value)[8]) {
    const int lane = threadIdx.x % 32;
    u32 pair[4];
    if constexpr (halved) {
      u32 most = 0;
#pragma unroll
      for (int i = 0; i < 8; i++) most = max(most, __float_as_uint(value[i]) & 0x7fffffff);
      most = __reduce_max_sync(0xffffffff, most);
      // Biased exponents: 127 is 2^0. NaN and infinity are unchanged.
      const u32 power = min(127 + 14 + 127 - (most >> 23), 253u);
      const float factor = __uint_as_float(power << 23);
      if (lane == 0) *back = __uint_as_float((254 - power) << 23);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        // 4-bit weights that one instruction unpacks are four apart.
        const int low = WEIGHT_BITS == 4 ? i : 2 * i, high = WEIGHT_BITS == 4 ? i + 4 : 2 * i + 1;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair[i]) : "f"(value[high] * factor), "f"(value[low] * factor));
      }
      if constexpr (WEIGHT_BITS == 4) {
        float offsets = 0.0f, all = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          float low, high;
          asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
              : "=f"(low), "=f"(high)
              : "r"(pair[i]));
          offsets = fmaf(low + high, i % 2 == 0 ? 256.0f : 16.0f, offsets), all += low + high;
        }
#pragma unroll
        for (int far = SUM_LANES / 2; far > 0; far /= 2) {
          offsets += __shfl_xor_sync(0xffffffff, offsets, far), all += __shfl_xor_sync(0xffffffff, all, far);
        }
        if (lane % SUM_LANES == 0) sums[lane / SUM_LANES] = {offsets, all};
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        pair[i] = WEIGHT_BITS == 4 ? pack(value[i], value[i + 4]) : pack(value[2 * i], value[2 * i + 1]);
      }
    }
    put(to, pair);
  }
  DEVICE At at_row(int token) const { return at + token * stride; }
};
using Tokens = TokensAt<u32>;

#ifndef SQUARED
#define SQUARED 0
#endif
// max(0, x)^2; NaN stays NaN.
DEVICE float relu_squared(float x) { return x * fmaxf(x, 0.0f); }

// Output addresses and the operands of the epilogue.
struct Outputs {
  const void* bias;       // [N], f32 or storage, or null
  const float* residual;  // [tokens, columns], or null
  char *o0, *o1, *o2, *o3, *o4, *o5;
  int start1, start2, start3, start4, start5;  // the first column of o1 and so on; columns where there is none
  int columns, bias_f32, out_f32, swiglu;
  float scale;

  // Epilogue operands of an output: the bias of its column or gate, that of its up, the residual; and its address.
  struct Around {
    float low, high, last;
    char* to;
  };
  DEVICE Around around(int token, int column, bool there) const {
    char* to = o0;
    int begin = 0, end = start1;
    if (column >= start1) to = o1, begin = start1, end = start2;
    if (column >= start2) to = o2, begin = start2, end = start3;
    if (column >= start3) to = o3, begin = start3, end = start4;
    if (column >= start4) to = o4, begin = start4, end = start5;
    if (column >= start5) to = o5, begin = start5, end = columns;
    return {there && bias != nullptr ? number(bias, column, bias_f32) : 0.0f,
            there && bias != nullptr && swiglu ? number(bias, columns + column, bias_f32) : 0.0f,
            there && residual != nullptr ? load_current(residual + (i64)token * columns + column) : 0.0f,
            to + ((i64)token * (end - begin) + (column - begin)) * (out_f32 ? 4 : 2)};
  }

  // `then` converts a finished value to the stored one.
  template <class Then>
  DEVICE void finish(float value, float up, const Around& around, Then then) const {
    value += around.low;
    if (swiglu) value = silu(value) * (up + around.high);
    if (SQUARED) value = relu_squared(value);
    value = then(fmaf(value, scale, around.last));
    if (out_f32) {
      *(float*)around.to = value;
    } else {
      *(u16*)around.to = narrow_half(value);
    }
  }
};
