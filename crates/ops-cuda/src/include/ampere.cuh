// Device helpers of the kernels that run on every GPU from sm_80 on: 16-byte asynchronous copies (cp.async), matrix
// fragments (ldmatrix), matrix products (mma.sync m16n8k16), packing, and rows in shared memory without bank conflicts.
//
// This file is prepended to a kernel's source before NVRTC compiles it, so it includes nothing. A kernel has either
// this file or hopper.cuh, its counterpart for sm_90a.
//
// Macros: DTYPE is the storage type as PTX spells it, bf16 (default) or f16.
//
// Shared memory addresses are 32 bits (`u32`), as the instructions take them.

#ifndef DTYPE
#define DTYPE bf16
#endif
#define STRINGIZE_TOKEN(x) #x
#define STRINGIZE(x) STRINGIZE_TOKEN(x)
#define DTYPE_NAME STRINGIZE(DTYPE)
#define DEVICE __device__ __forceinline__

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }

// ---- Asynchronous copies from global to shared memory.

// Copies `bytes` (16, 8 or 4; both addresses so aligned), or writes zeros where `valid` is false: `from` is then not
// read, but must still be a pointer into device memory.
template <int bytes>
DEVICE void copy_async(u32 to, const void* from, bool valid) {
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(bytes),
                 "r"(valid ? bytes : 0)
                 : "memory");
  }
}

// The same, with all bytes valid.
template <int bytes>
DEVICE void copy_async(u32 to, const void* from) {
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(bytes) : "memory");
  }
}

DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `pending` of this thread's newest groups are in flight; a barrier must follow before other
// threads' copies are read.
template <int pending>
DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// ---- Rows of `columns` storage elements in shared memory.
//
// Rows are padded with zeros to a multiple of 16 columns, the depth K of an MMA. ldmatrix reads 16 bytes of
// eight adjacent rows at once, and these must be in different banks: where a row is a multiple of 128 bytes the
// 16-byte chunks of row r are swizzled (chunk ^ r % 8), otherwise a row gets 16 bytes of padding, which makes its length
// in chunks odd.
template <int columns>
struct Rows {
  static constexpr int padded = round_up(columns, 16);
  static constexpr bool swizzled = padded % 64 == 0;
  static constexpr int stride = padded * 2 + (swizzled ? 0 : 16);  // bytes from row to row
  // Elements per copy: the widest that is aligned for this row length in global memory, 1 for an odd length.
  static constexpr int vector = columns % 8 == 0 ? 8 : columns % 4 == 0 ? 4 : columns % 2 == 0 ? 2 : 1;

  // Byte offset of 16-byte chunk `chunk` of row `row`.
  static DEVICE u32 offset(int row, int chunk) { return row * stride + ((swizzled ? chunk ^ (row & 7) : chunk) << 4); }

  // Offset that a lane adds to a tile's address for ldmatrix.x4 to read the 16 x 16 elements at row 0, column 0: as one
  // A fragment or, transposed, two B fragments; and (right) as two B fragments of 8 rows each. The two registers of a B
  // fragment must be adjacent, or each MMA costs moves.
  static DEVICE u32 lane_offset(int lane) { return offset(lane % 16, lane / 16); }
  static DEVICE u32 lane_offset_right(int lane) { return offset(lane / 16 * 8 + lane % 8, lane / 8 % 2); }

  // The same, `steps` times 16 columns further. (16 rows further is + 16 * stride.)
  static DEVICE u32 advance(u32 lane_offset, int steps) {
    return swizzled ? (lane_offset ^ (steps % 4 * 32)) + steps / 4 * 128 : lane_offset + steps * 32;
  }

  // Starts copying `count` rows: row r of the tile is row rows[r] of `from`, whose rows are `from_stride` elements
  // apart; a negative rows[r] gives zeros. `rows` is in shared memory. All `threads` threads call it together.
  template <int count, int threads>
  static DEVICE void load(u32 to, const u16* from, int from_stride, const int* rows, int thread) {
    copy<count, threads, false, (pieces > row_lanes ? 2 : 4)>(to, thread, from, [&](int row) {
      const int source = rows[row];
      return source >= 0 ? from + (i64)source * from_stride : nullptr;
    });
  }

  // The same for consecutive rows, of which only the first `valid` exist; the others give zeros.
  template <int count, int threads>
  static DEVICE void load_range(u32 to, const u16* from, int from_stride, int valid, int thread) {
    if (valid >= count) {  // the usual case, with the fewest instructions
      copy<count, threads, true, 2>(to, thread, from, [&](int row) { return from + (i64)row * from_stride; });
    } else {
      copy<count, threads, false, 1>(to, thread, from, [&](int row) {
        return row < valid ? from + (i64)row * from_stride : nullptr;
      });
    }
  }

  // Adjacent lanes that copy one row, 128 bytes at a time if its length allows. Fewer lanes than pieces,
  // so that a row's address and validity are computed once for several pieces.
  static constexpr int pieces = padded / vector;
  static constexpr int row_lanes = pieces % 8 == 0 ? 8 : pieces % 4 == 0 ? 4 : 2;

  // Copies rows from the pointers of `row_of`, zeros where that is null (never, if `all`); `any` is some valid address. A
  // lane has `rows_ahead` rows in flight: more hide the lookup of a row, at the cost of registers.
  template <int count, int threads, bool all, int rows_ahead, class RowOf>
  static DEVICE void copy(u32 to, int thread, const u16* any, RowOf row_of) {
    constexpr int at_once = threads / row_lanes;
    const int lane_column = thread % row_lanes * vector;
#pragma unroll(vector == 1 ? 1 : rows_ahead)
    for (int first = 0; first < count; first += at_once) {
      const int row = first + thread / row_lanes;
      if (count % at_once != 0 && row >= count) break;
      const u16* from = row_of(row);
      const bool there = all || from != nullptr;
      from = (there ? from : any) + lane_column;
      const u32 target = to + offset(row, lane_column / 8) + lane_column % 8 * 2;
#pragma unroll(vector == 1 ? 1 : pieces / row_lanes)
      for (int ahead = 0; ahead < padded; ahead += row_lanes * vector) {
        const bool inside = there && (padded == columns || ahead + lane_column < columns);
        // 64 columns are 128 bytes, the swizzle period.
        const u32 piece = row_lanes * vector == 64 || !swizzled
                              ? target + ahead * 2
                              : to + offset(row, (ahead + lane_column) / 8) + lane_column % 8 * 2;
        if constexpr (vector == 1) {
          // An odd row length leaves no aligned pair: one element at a time, through a register.
          const u16 element = inside ? from[ahead] : (u16)0;
          asm volatile("st.shared.u16 [%0], %1;" ::"r"(piece), "h"(element) : "memory");
        } else if constexpr (all && padded == columns) {
          copy_async<vector * 2>(piece, from + ahead);
        } else {
          copy_async<vector * 2>(piece, from + ahead, inside);
        }
      }
    }
  }
};

// ---- Programmatic dependent launch, PDL (sm_90 and later; before that the second kernel starts when the first has ended).

// PDL: lets the next kernel of the stream, if it was launched with overlap, start as SMs become free.
DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// PDL: waits until the previous kernel has ended and its writes are visible.
DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- Matrix fragments and products.

DEVICE void load_matrix_x4(u32 (&to)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

DEVICE void load_matrix_x4_transposed(u32 (&to)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

DEVICE void load_matrix_x2_transposed(u32& to0, u32& to1, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(to0), "=r"(to1)
               : "r"(address)
               : "memory");
}

// d (16 x 8) += a (16 x 16) b (16 x 8). Lane l has of d the rows l / 4 (d[0], d[1]) and that + 8 (d[2], d[3]),
// columns l % 4 * 2 and the next. The addend is an operand separate from the result, so that a d of zeros needs no registers.
DEVICE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  float d0, d1, d2, d3;
  asm("mma.sync.aligned.m16n8k16.row.col.f32." DTYPE_NAME "." DTYPE_NAME
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));
  d[0] = d0;
  d[1] = d1;
  d[2] = d2;
  d[3] = d3;
}

// ---- Arithmetic.

#define INFINITE __int_as_float(0x7f800000)

// Two floats rounded to the storage type; `low` gets the lower half.
DEVICE u32 pack(float low, float high) {
  u32 packed;
  asm("cvt.rn." DTYPE_NAME "x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// 2^x; -inf gives 0. Subnormal results are flushed, which no sum of probabilities notices.
DEVICE float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEVICE float log2_approximate(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEVICE float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// tanh to 1e-7: the one-instruction tanh.approx is off by 5e-4, which a cap of 50 would turn into logits off by 0.02.
DEVICE float tanh_exact(float x) {
  return 1.0f - 2.0f * reciprocal_approximate(1.0f + exp2_approximate(x * 2.88539008f));
}
