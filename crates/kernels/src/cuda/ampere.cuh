// Device helpers of the kernels that run on every GPU from sm_80 on: 16-byte asynchronous copies (cp.async), matrix
// fragments (ldmatrix), matrix products (mma.sync m16n8k16), packing, and rows in shared memory without bank conflicts.
//
// This file is put in front of a kernel's source before it is compiled by NVRTC, so it includes nothing. It stands
// alone: hopper.cuh is its counterpart for sm_90a, and a kernel takes one of the two.
//
// Macros: DTYPE is the storage type as PTX spells it, bf16 (default) or f16.
//
// Shared memory is named by 32-bit addresses (`u32`), as the instructions take them.

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

DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most `pending` of this thread's newest groups are still under way; a barrier must follow before other
// threads' copies are read.
template <int pending>
DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// ---- Rows of `columns` storage elements in shared memory.
//
// Rows are padded with zeros to a multiple of 16 columns, the depth of a matrix product. ldmatrix reads 16 bytes of
// eight neighbouring rows at once, and these must lie in different banks: where a row is a multiple of 128 bytes the
// 16-byte chunks of row r are permuted (chunk ^ r % 8), otherwise a row gets 16 spare bytes, which makes its length
// in chunks odd.
template <int columns>
struct Rows {
  static constexpr int padded = round_up(columns, 16);
  static constexpr bool swizzled = padded % 64 == 0;
  static constexpr int stride = padded * 2 + (swizzled ? 0 : 16);  // bytes from row to row
  // Elements per copy: the widest that the row length in global memory keeps aligned, 1 where it is odd.
  static constexpr int vector = columns % 8 == 0 ? 8 : columns % 4 == 0 ? 4 : columns % 2 == 0 ? 2 : 1;

  // Byte offset of 16-byte chunk `chunk` of row `row`.
  static DEVICE u32 offset(int row, int chunk) { return row * stride + ((swizzled ? chunk ^ (row & 7) : chunk) << 4); }

  // What a lane of a warp adds to a tile's address for ldmatrix to read the 16 x 16 elements at row 0, column 0.
  static DEVICE u32 lane_offset(int lane) { return offset(lane % 16, lane / 16); }

  // The same `steps` times 16 columns on. (16 rows on is 16 * stride further.)
  static DEVICE u32 advance(u32 lane_offset, int steps) {
    return swizzled ? (lane_offset ^ (steps % 4 * 32)) + steps / 4 * 128 : lane_offset + steps * 32;
  }

  // Starts copying `count` rows: row r of the tile is row rows[r] of `from`, whose rows are `from_stride` elements
  // apart; a negative rows[r] gives zeros. `rows` lies in shared memory. `threads` threads call it together.
  template <int count, int threads>
  static DEVICE void load(u32 to, const u16* from, int from_stride, const int* rows, int thread) {
    copy<count, threads, 4>(to, thread, [&](int row, int column, bool inside) {
      int source = rows[row];
      return inside && source >= 0 ? from + (i64)source * from_stride + column : nullptr;
    }, from);
  }

  // The same for neighbouring rows, of which only the first `valid` are there; the others give zeros.
  template <int count, int threads>
  static DEVICE void load_range(u32 to, const u16* from, int from_stride, int valid, int thread) {
    copy<count, threads, 2>(to, thread, [&](int row, int column, bool inside) {
      return inside && row < valid ? from + (i64)row * from_stride + column : nullptr;
    }, from);
  }

  // Copies the pieces that `source(row, column, whether the column exists)` points to, zeros where it is null.
  // `side_by_side` of them are under way to the copy unit at once: more hide the look-up of rows, at the cost of
  // registers.
  template <int count, int threads, int side_by_side, class Source>
  static DEVICE void copy(u32 to, int thread, Source source, const u16* any) {
    constexpr int pieces = padded / vector;  // per row

#pragma unroll(vector == 1 ? 1 : side_by_side)
    for (int first = 0; first < count * pieces; first += threads) {
      if (count * pieces % threads != 0 && first + thread >= count * pieces) break;
      // Where the threads cover whole rows a thread keeps its column.
      constexpr bool whole = threads % pieces == 0;
      int row = whole ? first / pieces + thread / pieces : (first + thread) / pieces;
      int column = (whole ? thread % pieces : (first + thread) % pieces) * vector;
      const u16* from = source(row, column, padded == columns || column < columns);
      u32 target = to + offset(row, column / 8) + column % 8 * 2;
      if constexpr (vector > 1) {
        copy_async<vector * 2>(target, from != nullptr ? from : any, from != nullptr);
      } else {
        // An odd row length leaves no aligned pair: one element at a time, through a register.
        u16 element = from != nullptr ? *from : (u16)0;
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(target), "h"(element) : "memory");
      }
    }
  }
};

// ---- Two kernels in a row (from sm_90 on; before that the second starts when the first has ended).

// Lets the next kernel of the stream, if it was launched so as to overlap, start as blocks become free.
DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until the previous kernel has ended and what it wrote can be read.
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

// d (16 x 8) += a (16 x 16) b (16 x 8). Lane l holds of d the rows l / 4 (d[0], d[1]) and that + 8 (d[2], d[3]),
// columns l % 4 * 2 and the next.
DEVICE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." DTYPE_NAME "." DTYPE_NAME
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- Numbers.

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
