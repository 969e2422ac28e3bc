// Data movement of kda_walk: packages by bulk copies, values by 16-byte cp.async with bounds checks, outputs through a tile in
// shared memory.

// Starts a copy of `bytes` (a multiple of 16) that counts on `barrier`.
DEVICE void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// Waits until a mark of prepare_rest.cu is at least `count`. This thread may then copy what was written before (TMA).
DEVICE void await_mark(const u32* mark, u32 count) {
  u32 seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(mark) : "memory");
  } while (seen < count);
  fence_async_global();
}

// A warpgroup copies 64 tokens of 64 value columns from `column` on, zeros out of bounds; each of its threads has
// to arrive (arrive_with_copies). Addresses are computed once: a warp that computed them per piece was slower than
// the recurrence.
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

// Arrives when this thread's copies so far are complete.
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

// A warp's outputs of 16 columns and 64 tokens, from accumulators [16 columns][64 tokens] to its pieces of the group's
// tile [64 tokens][64 columns].
DEVICE void put_outputs(u32 tile, const float (&sums)[32], const float (&factor)[2], int warp, int lane) {
  const int matrix = lane / 8, in_matrix = lane % 8;
  const u32 at = tile + (matrix / 2 * 8 + in_matrix) * 128 + (((warp % 4 * 2 + matrix % 2) ^ in_matrix) << 4);
#pragma unroll
  for (int block = 0; block < 4; block++) {
    const float* from = sums + block * 8;
    const u32 words[4] = {narrow(from[0] * factor[0], from[1] * factor[0]), narrow(from[2] * factor[1], from[3] * factor[1]),
                          narrow(from[4] * factor[0], from[5] * factor[0]), narrow(from[6] * factor[1], from[7] * factor[1])};
    store_matrices_transposed(at + block * 2048, words);
  }
}

// A warpgroup writes a group's tile to rows of o, from `column` on. All reads come first: `read` is called after them.
template <class Read>
DEVICE void write_outputs(u32 tile, u16* o, i64 token_stride, int count, int column, int thread, Read read) {
  const int first = thread / 8, piece = thread % 8, at = column + piece * 8;
  u32 words[4][4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[i][0]), "=r"(words[i][1]), "=r"(words[i][2]), "=r"(words[i][3])
                 : "r"(tile + (first + i * 16) * 128 + ((piece ^ first % 8) << 4))
                 : "memory");
  }
  read();
  u16* to = o + first * token_stride + at;
#pragma unroll
  for (int i = 0; i < 4; i++, to += 16 * token_stride) {
    if (first + i * 16 >= count) continue;
    if constexpr (VD % 8 == 0) {
      if (at < VD) *(uint4*)to = {words[i][0], words[i][1], words[i][2], words[i][3]};
    } else {
#pragma unroll
      for (int c = 0; c < 8; c++) {
        if (at + c < VD) to[c] = (u16)(words[i][c / 2] >> c % 2 * 16);
      }
    }
  }
}
