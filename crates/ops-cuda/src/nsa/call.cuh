// Shared by all nsa kernels: positions of sequences, and elements and gates as stored.
//
// Requires ampere.cuh or hopper.cuh. Macros: D, DV (default D), DTYPE.

#ifndef DV
#define DV D
#endif
#define STORAGE_IS_bf16 1
#define STORAGE_IS_f16 0
#define JOIN_TOKENS(a, b) a##b
#define JOIN(a, b) JOIN_TOKENS(a, b)

constexpr bool BRAIN_FLOAT = JOIN(STORAGE_IS_, DTYPE) == 1;
#ifndef INFINITE
#define INFINITE __int_as_float(0x7f800000)
#endif

constexpr float TO_BASE2 = 1.44269504f;
constexpr int HEAD_ROWS = 16;  // heads of one query in an MMA

// ---- Sequences: dense [B, T, ..], or packed [total, ..] with offsets [B + 1].
struct Sequence {
  int q_start, queries, k_start, keys;
};

DEVICE Sequence sequence_at(int index, const int* cu_q, const int* cu_k, int tq, int tk) {
  Sequence s;
  s.q_start = cu_q != nullptr ? cu_q[index] : index * tq;
  s.queries = cu_q != nullptr ? cu_q[index + 1] - s.q_start : tq;
  s.k_start = cu_k != nullptr ? cu_k[index] : index * tk;
  s.keys = cu_k != nullptr ? cu_k[index + 1] - s.k_start : tk;
  return s;
}

// The heads that a block of threads takes: a slab of up to HEAD_ROWS of a key head's group.
struct HeadSlab {
  int kv_head, slab, slabs, first, count;
};

DEVICE HeadSlab head_slab(int index, int heads, int kv_heads) {
  const int group = heads / kv_heads, slabs = (group + HEAD_ROWS - 1) / HEAD_ROWS, slab = index % slabs;
  return {index / slabs, slab, slabs, index / slabs * group + slab * HEAD_ROWS, min(HEAD_ROWS, group - slab * HEAD_ROWS)};
}

// Compressed tokens that a query at `position` sees: those that end at or before it.
DEVICE int compressed_before(int position, int block, int stride) {
  return position + 1 < block ? 0 : (position + 1 - block) / stride + 1;
}

// The first row of a sequence's compressed tokens: rows_each of every sequence, or 0 for those of compress.cu.
DEVICE i64 compressed_row(const Sequence& here, int index, int stride, int rows_each) {
  return rows_each > 0 ? (i64)index * rows_each : here.k_start / stride;
}

// ---- Elements.
DEVICE float to_float(u16 x) {
  if constexpr (BRAIN_FLOAT) return __int_as_float((int)x << 16);
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

DEVICE u16 to_storage(float x) { return (u16)pack(x, 0.0f); }

// An element of a tensor that is stored as float32 or like the others.
DEVICE float number_at(const void* from, i64 at, bool f32) {
  return f32 ? ((const float*)from)[at] : to_float(((const u16*)from)[at]);
}

// ---- Gates: tensors [B, Tq, HQ], null for an absent branch; bit b of `f32`: branch b's gates are f32.
struct Gates {
  const void *compressed, *selected, *window;
  int f32;
  int kind;  // 0: values, 1: logits of a sigmoid, 2: logits of a softmax over the present branches
};

// The gate of a branch from the stored values of all three, -inf for an absent one.
DEVICE float gate_from(const float (&raw)[3], int kind, int branch) {
  const float own = branch == 0 ? raw[0] : branch == 1 ? raw[1] : raw[2];
  if (kind == 0) return own;
  if (kind == 1) return 1.0f / (1.0f + exp2_approximate(-own * TO_BASE2));
  const float largest = fmaxf(raw[0], fmaxf(raw[1], raw[2]));
  float sum = 0.0f;
#pragma unroll
  for (int b = 0; b < 3; b++) sum += exp2_approximate((raw[b] - largest) * TO_BASE2);
  return exp2_approximate((own - largest) * TO_BASE2) / sum;
}

DEVICE float gate_of(const Gates& gates, int branch, i64 at) {
  const void* all[3] = {gates.compressed, gates.selected, gates.window};
  float raw[3];
#pragma unroll
  for (int b = 0; b < 3; b++) {
    raw[b] = all[b] != nullptr && (gates.kind == 2 || b == branch) ? number_at(all[b], at, gates.f32 >> b & 1) : -INFINITE;
  }
  return gate_from(raw, gates.kind, branch);
}
