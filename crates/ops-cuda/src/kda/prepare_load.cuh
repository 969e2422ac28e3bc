// Row loads of prepare.cu: 8 channels per lane, into tiles of 16 tokens in shared memory whose 16-byte pieces are swizzled
// within 128 bytes (piece ^ row % 8), so that eight rows of a piece are in different banks.

constexpr int PIECES = KP / 8;             // 16-byte pieces of a row
constexpr int ROWS_AT_ONCE = 32 / PIECES;  // rows per warp access, a piece per lane
constexpr int TILE_BYTES = 16 * KP * 2;

DEVICE u32 tile_offset(int row, int piece) { return row * KP * 2 + ((piece ^ (row & 7)) << 4); }

// Offset that a lane adds to a tile's address to access channels 16 * `step` to 16 * `step` + 15 with ldmatrix or stmatrix; `lane_offset`
// is tile_offset(lane % 16, lane / 16).
DEVICE u32 step_offset(u32 lane_offset, int step) { return (lane_offset ^ (step % 4 * 32)) + step / 4 * 128; }

DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `pending` of this thread's newest groups are in flight.
template <int pending>
DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

DEVICE void load_matrices_transposed(u32 (&words)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

DEVICE void store_matrices(u32 address, const u32 (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// Eight channels of a stored row, 0 past KD and for a missing token.
DEVICE void load_channels(u32 (&words)[4], const u16* row, int channel, bool there) {
  words[0] = words[1] = words[2] = words[3] = 0;
  if (!there) return;
  if constexpr (KD % 8 == 0) {
    if (channel < KD) {
      const uint4 all = *(const uint4*)(row + channel);
      words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
    }
  } else if constexpr (KD % 4 == 0) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      if (channel + 2 * i < KD) {
        const uint2 half = *(const uint2*)(row + channel + 2 * i);
        words[i] = half.x, words[i + 1] = half.y;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (channel + i < KD) words[i / 2] |= (u32)row[channel + i] << i % 2 * 16;
    }
  }
}

// Starts copying them to shared memory; copies synchronously if rows are not a multiple of 16 bytes.
DEVICE void start_channels(u32 to, const u16* row, int channel, bool there) {
  if constexpr (KD % 8 == 0) {
    const bool inside = there && channel < KD;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(inside ? row + channel : row),
                 "r"(inside ? 16 : 0)
                 : "memory");
  } else {
    u32 words[4];
    load_channels(words, row, channel, there);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
                 : "memory");
  }
}

DEVICE void take_piece(u32 (&words)[4], u32 from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}

// The log decay in base 2. Below 2^-150 nothing is left in f32, and sums with larger magnitudes would lose the digits of the slow
// gates.
DEVICE float log2_decay(float x, int gate, float rate, float bias, float lower_bound) {
  if (gate == 1) {
    const float y = (x + bias) * LOG2E, e = exp2_approximate(-fabsf(y));
    // For a small e, log(1 + e) would only have the digits that 1 + e keeps.
    const float tail = e < 0.015625f ? e * (1.0f - e * (0.5f - e * 0.33333333f)) * LOG2E : log2_approximate(1.0f + e);
    x = -rate * (fmaxf(y, 0.0f) + tail);
  } else if (gate == 2) {
    x = lower_bound * LOG2E * reciprocal_approximate(1.0f + exp2_approximate(-rate * (x + bias) * LOG2E));
  } else {
    x *= LOG2E;
  }
  return fmaxf(x, LOWEST_DECAY);
}
