// Storage types (f32, bf16, f16) and their conversion to and from float: vectors of elements from and to memory.
// For kernels without tensor core helpers; it may also follow ampere.cuh in a source.
//
// Macros: DTYPE is the storage type of the large tensors as PTX spells it, f32, bf16 or f16.

#ifndef DEVICE
#define DEVICE __device__ __forceinline__
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
#endif

#define STORED_f32 0
#define STORED_bf16 1
#define STORED_f16 2
#define STORED_TOKEN(type) STORED_##type
#define STORED(type) STORED_TOKEN(type)

constexpr int STORAGE = STORED(DTYPE);
constexpr int ELEMENT_BYTES = STORAGE == STORED_f32 ? 4 : 2;

DEVICE float widen_half(u32 bits) {
  if constexpr (STORAGE == STORED_bf16) return __uint_as_float(bits << 16);
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)bits));
  return value;
}

DEVICE u16 narrow_half(float value) {
  u16 bits;
  if constexpr (STORAGE == STORED_bf16) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  } else {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  }
  return bits;
}

DEVICE u32 narrow_pair(float low, float high) {
  u32 bits;
  if constexpr (STORAGE == STORED_bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  }
  return bits;
}

// One element of a tensor that is float32 or in the storage type (known at run time): its bits, and then its value.
// Predicated loads, not a branch: with the conversion inside a branch, every load would be waited for separately.
DEVICE u32 load_number(const void* from, i64 index, bool is_f32) {
  const u32 wide = STORAGE == STORED_f32 || is_f32;
  u32 bits;
  // Set first: otherwise a register that is only written under a predicate is live from its last use on.
  asm("{\n.reg .pred wide;\nsetp.ne.u32 wide, %2, 0;\nmov.u32 %0, 0;\n"
      "@wide ld.global.nc.u32 %0, [%1];\n@!wide ld.global.nc.u16 %0, [%1];\n}"
      : "=&r"(bits)
      : "l"((const char*)from + index * (wide ? 4 : 2)), "r"(wide));
  return bits;
}

DEVICE float number_of(u32 bits, bool is_f32) {
  return STORAGE == STORED_f32 || is_f32 ? __uint_as_float(bits) : widen_half(bits & 0xffff);
}

DEVICE float number(const void* from, i64 index, bool is_f32) {
  return number_of(load_number(from, index, is_f32), is_f32);
}

#ifndef STORE_GLOBAL
#define STORE_GLOBAL "st.global"
#endif

// `count` adjacent elements in storage; the address is a multiple of their size.
template <int count>
struct Stored {
  static constexpr int bytes = count * ELEMENT_BYTES;
  static_assert(bytes <= 16, "no access is wider than 16 bytes");
  static constexpr int words = (bytes + 3) / 4;
  u32 word[words];

  // Through the read-only path; 16-byte loads are not kept in L1.
  DEVICE void load(const void* at) {
    if constexpr (bytes == 16) {
      asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                   : "l"(at));
    } else if constexpr (bytes == 8) {
      asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(at));
    } else if constexpr (bytes == 4) {
      word[0] = __ldg((const u32*)at);
    } else {
      word[0] = __ldg((const u16*)at);
    }
  }

  DEVICE void store(void* at) const {
    if constexpr (bytes == 16) {
      asm volatile(STORE_GLOBAL ".v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                   "r"(word[3])
                   : "memory");
    } else if constexpr (bytes == 8) {
      asm volatile(STORE_GLOBAL ".v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(word[0]), "r"(word[1]) : "memory");
    } else if constexpr (bytes == 4) {
      *(u32*)at = word[0];
    } else {
      *(u16*)at = (u16)word[0];
    }
  }

  DEVICE void clear() {
#pragma unroll
    for (int w = 0; w < words; w++) word[w] = 0;
  }

  DEVICE float get(int element) const {
    if constexpr (STORAGE == STORED_f32) return __uint_as_float(word[element]);
    if constexpr (STORAGE == STORED_bf16) {
      return __uint_as_float(element % 2 ? word[element / 2] & 0xffff0000u : word[element / 2] << 16);
    }
    return widen_half(element % 2 ? word[element / 2] >> 16 : word[element / 2] & 0xffff);
  }

  DEVICE void set(const float (&values)[count]) {
    if constexpr (STORAGE == STORED_f32) {
#pragma unroll
      for (int e = 0; e < count; e++) word[e] = __float_as_uint(values[e]);
    } else if constexpr (count == 1) {
      word[0] = narrow_half(values[0]);
    } else {
#pragma unroll
      for (int e = 0; e < count; e += 2) word[e / 2] = narrow_pair(values[e], values[e + 1]);
    }
  }
};

// `count` adjacent elements of such a tensor; `index` is a multiple of `count`.
template <int count>
DEVICE void numbers(float (&to)[count], const void* from, i64 index, bool is_f32) {
  if constexpr (count % 4 == 0) {
    const u32 wide = STORAGE == STORED_f32 || is_f32;
#pragma unroll
    for (int e = 0; e < count; e += 4) {
      u32 bits[4];
      asm("{\n.reg .pred wide;\nsetp.ne.u32 wide, %5, 0;\n"
          "mov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
          "@wide ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n@!wide ld.global.nc.v2.u32 {%0, %1}, [%4];\n}"
          : "=&r"(bits[0]), "=&r"(bits[1]), "=&r"(bits[2]), "=&r"(bits[3])
          : "l"((const char*)from + (index + e) * (wide ? 4 : 2)), "r"(wide));
#pragma unroll
      for (int i = 0; i < 4; i++) {
        to[e + i] = wide ? __uint_as_float(bits[i]) : widen_half(i % 2 ? bits[i / 2] >> 16 : bits[i / 2] & 0xffff);
      }
    }
  } else {
#pragma unroll
    for (int e = 0; e < count; e++) to[e] = number(from, index + e, is_f32);
  }
}

// ---- Functions of floats, to a few units in the last place.

DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// x / (1 + e^-x).
DEVICE float silu(float x) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1.0f + exp2_fast(x * -1.44269504f)));
  return x * reciprocal;
}
