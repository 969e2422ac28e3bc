// How walk.cu moves data: packages by bulk copies, values by 16-byte copies that may be cut, outputs through a warp's own
// corner of shared memory.

// Starts a copy of `bytes` (a multiple of 16) that counts on `barrier`.
DEVICE void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// A warpgroup copies 64 tokens of 64 value columns from `column` on, zeros where there are none; each of its threads has
// to arrive (arrive_with_copies). Every address is worked out once: a warp that counted pieces for itself was slower than
// the walk.
DEVICE void load_values(u32 to, const u16* v, i64 token_stride, int count, int column, int thread) {
  constexpr int VECTOR = VD % 8 == 0 ? 8 : VD % 4 == 0 ? 4 : 1;
  const int first = thread / 8, piece = thread % 8, from_column = column + piece * 8;
  u32 at = to + first * 128 + ((piece ^ first % 8) << 4);
  const u16* from = v + first * token_stride + from_column;
#pragma unroll
  for (int token = first; token < CHUNK + first; token += 16, at += 16 * 128, from += 16 * token_stride) {
#pragma unroll
    for (int part = 0; part < 8; part += VECTOR) {
      const bool there = token < count && from_column + part < VD;
      if constexpr (VECTOR == 8) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(there ? from : v), "r"(there ? 16 : 0)
                     : "memory");
      } else if constexpr (VECTOR == 4) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(at + part * 2), "l"(there ? from + part : v),
                     "r"(there ? 8 : 0)
                     : "memory");
      } else {
        const u16 element = there ? from[part] : (u16)0;
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(at + part * 2), "h"(element) : "memory");
      }
    }
  }
}

// Arrives when this thread's copies so far are there.
DEVICE void arrive_with_copies(u32 barrier) {
  if constexpr (VD % 4 == 0) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
  } else {
    mbarrier_arrive(barrier);
  }
}

DEVICE void load_matrices_transposed(u32 (&words)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

DEVICE void store_matrices_transposed(u32 address, const u32 (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// A warp's outputs of 16 columns and 64 tokens, from accumulators [16 columns][64 tokens] to rows of o.
DEVICE void store_outputs(u32 corner, u16* o, i64 token_stride, int count, int column, const float (&sums)[32],
                          const float (&factor)[2], int lane) {
  const int matrix = lane / 8, in_matrix = lane % 8;
#pragma unroll
  for (int block = 0; block < 4; block++) {
    const float* from = sums + block * 8;
    const u32 words[4] = {narrow(from[0] * factor[0], from[1] * factor[0]), narrow(from[2] * factor[1], from[3] * factor[1]),
                          narrow(from[4] * factor[0], from[5] * factor[0]), narrow(from[6] * factor[1], from[7] * factor[1])};
    const int token = block * 16 + matrix / 2 * 8 + in_matrix;
    store_matrices_transposed(corner + token * 32 + ((matrix % 2 ^ token / 4 % 2) << 4), words);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int token = i * 16 + lane / 2, piece = lane % 2, at = column + piece * 8;
    u32 x, y, z, w;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                 : "r"(corner + token * 32 + ((piece ^ token / 4 % 2) << 4))
                 : "memory");
    u16* to = o + token * token_stride + at;
    if (token >= count) continue;
    if constexpr (VD % 8 == 0) {
      if (at < VD) *(uint4*)to = {x, y, z, w};
    } else {
      const u32 words[4] = {x, y, z, w};
#pragma unroll
      for (int c = 0; c < 8; c++) {
        if (at + c < VD) to[c] = (u16)(words[c / 2] >> c % 2 * 16);
      }
    }
  }
  __syncwarp();
}
