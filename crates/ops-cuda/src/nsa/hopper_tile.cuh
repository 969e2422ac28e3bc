// Tiles in shared memory in the layout of wgmma, for the Hopper kernels of nsa. Requires hopper.cuh and call.cuh.
//
// A tile consists of columns of 64 elements, one after the other: rows of 128 bytes whose 16-byte pieces are swizzled by the row. Each
// column starts at a multiple of 1024 bytes.

DEVICE void copy_piece(u32 to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending>
DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// `threads` threads start to copy `rows` rows of `columns` elements, from_of(row) or zeros if that is null; `any` is some valid address.
template <int rows, int columns, int threads, class FromOf>
DEVICE void load_tile(u32 to, const u16* any, int thread, FromOf from_of) {
  // Eight threads take the eight pieces of a row of 128 bytes.
  const int piece = thread % 8;
#pragma unroll
  for (int first = 0; first < rows; first += threads / 8) {
    const int row = first + thread / 8;
    if (rows % (threads / 8) != 0 && row >= rows) break;
    const u16* from = from_of(row);
    const bool there = from != nullptr;
    from = (there ? from : any) + piece * 8;
    const u32 at = to + row * 128 + ((piece ^ (row & 7)) << 4);
#pragma unroll
    for (int box = 0; box < columns / 64; box++) copy_piece(at + box * rows * 128, from + box * 64, there);
  }
}

// s (64 x KEYS) = q k^T, plus s if `add` is set: issued, not waited for. `queries` is the descriptor of 64 rows of a tile of
// q_rows rows; key_tile is the address of the tile of keys.
template <int q_rows, int keys>
DEVICE void issue_scores(float (&s)[keys / 2], u64 queries, u32 key_tile, bool add) {
  const u64 tile = descriptor_k_major<128>(key_tile);
#pragma unroll
  for (int i = 0; i < D / 16; i++) {
    wgmma_ss<0>(s, queries + (i / 4 * q_rows * 128 >> 4) + i % 4 * 2, tile + (i / 4 * keys * 128 >> 4) + i % 4 * 2, add || i > 0);
  }
}

// output (64 x DV) = p v, plus output if `add` is set; p (64 x keys) in the layout of the scores, rounded to the storage type.
template <int keys>
DEVICE void multiply_values(float (&output)[DV / 2], const float (&s)[keys / 2], u32 value_tile, bool add) {
  u32 p[keys / 4];
#pragma unroll
  for (int i = 0; i < keys / 4; i++) p[i] = pack(s[i * 2], s[i * 2 + 1]);
  const u64 tile = descriptor_mn_major<128>(value_tile, keys * 128);
  keep(output);
  keep(p);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < keys / 16; i++) {
    wgmma_rs<1>(output, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], tile + i * 128, add || i > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  keep(output);
}
