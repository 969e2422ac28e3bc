// Rows of 8 channels a lane, as prepare.cu reads them.

// Eight channels of a stored row, 0 beyond KD and where the token is not there.
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

// Starts bringing them to shared memory, or brings them where rows are no whole 16 bytes.
DEVICE void start_channels(u32 to, const u16* row, int channel, bool there) {
  if constexpr (KD % 8 == 0) {
    const bool inside = there && channel < KD;
    copy_async<16>(to, inside ? row + channel : row, inside);
  } else {
    u32 words[4];
    load_channels(words, row, channel, there);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
                 : "memory");
  }
}

DEVICE void take_channels(u32 (&words)[4], u32 from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}

// The same of f32, from global memory.
DEVICE void load_wide_gates(float (&x)[8], const float* g, int channel, bool there) {
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    float4 four = {0, 0, 0, 0};
    const float* from = g + channel + i;
    if (KD % 4 == 0) {
      if (there && channel + i < KD) four = *(const float4*)from;
    } else if (there) {
      if (channel + i < KD) four.x = from[0];
      if (channel + i + 1 < KD) four.y = from[1];
      if (channel + i + 2 < KD) four.z = from[2];
      if (channel + i + 3 < KD) four.w = from[3];
    }
    x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
  }
}

// The log decay in powers of 2. Below 2^-150 nothing is left in f32, and larger sums would lose the digits of the slow
// gates beside them.
DEVICE float log2_decay(float x, int gate, float rate, float bias, float lower_bound) {
  if (gate == 1) {
    const float y = (x + bias) * LOG2E, e = exp2_approximate(-fabsf(y));
    // log(1 + e) of a small e would only have the digits that 1 + e keeps.
    const float tail = e < 0.015625f ? e * (1.0f - e * (0.5f - e * 0.33333333f)) * LOG2E : log2_approximate(1.0f + e);
    x = -rate * (fmaxf(y, 0.0f) + tail);
  } else if (gate == 2) {
    x = lower_bound * LOG2E * reciprocal_approximate(1.0f + exp2_approximate(-rate * (x + bias) * LOG2E));
  } else {
    x *= LOG2E;
  }
  return fmaxf(x, -150.0f);
}
