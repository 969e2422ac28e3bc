// tf32 products of the gradient kernels of kda and gated_delta, from sm_80 on. Requires storage.cuh.

// Rounded to nearest: the tensor cores would truncate.
DEVICE float round_tf32(float v) {
  u32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
  return __uint_as_float(bits);
}

// d (16 x 8) += a (16 x 8) b (8 x 8), operands in tf32. With q = lane % 4, a lane has of a the rows lane / 4 and that + 8 (a0, a1), column
// q, and the same of column q + 4 (a2, a3); of b the rows q, q + 4, column lane / 4. As q and q + 4 may be any two of the 8
// terms of the sum, they are the terms 2 q and 2 q + 1 here, the columns that a lane has of an accumulator.
DEVICE void multiply_tf32(float (&d)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)), "r"(__float_as_uint(a3)),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}
