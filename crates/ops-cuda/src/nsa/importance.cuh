// Importance of a select block for a query of nsa, and the order of blocks by it: larger importance first, then lower index.
// Requires call.cuh.

constexpr u32 TAKEN = 0, LEAST = 1, NONE = 0xffffffff;  // as keys: selected or excluded, importance 0, no key

DEVICE u32 warp_max(u32 x) {
  u32 y;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
  return y;
}

DEVICE u32 warp_min(u32 x) {
  u32 y;
  asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
  return y;
}

// Parameters of a query's selection.
struct Selecting {
  int block, stride, select_block, count;
  // Number of candidates; those before `front` and from `back` on are forced.
  int blocks, front, back;
  int seen;  // compressed tokens

  DEVICE int forced() const { return front + blocks - back; }
  DEVICE int wanted() const { return count - forced(); }  // others, where there are more than `count` candidates

  // Slot of the f-th forced block in the order of blocks, and the block.
  DEVICE int forced_slot(int f) const { return f < front ? f : wanted() + f; }
  DEVICE int forced_block(int f) const { return f < front ? f : back + f - front; }

  // Whether a block's importance is the weight of one compressed token, which covers exactly the block's tokens.
  DEVICE bool own_tokens() const { return block == stride && block == select_block; }

  // Importance of block j: the sum over compressed tokens i, in ascending order, of
  // |[i d, i d + l) intersect [j l', (j + 1) l')| / d * weight_of(i).
  template <class WeightOf>
  DEVICE float importance(int j, WeightOf weight_of) const {
    if (own_tokens()) return j < seen ? weight_of(j) : 0.0f;
    const float of_stride = reciprocal_approximate((float)stride);
    const int start = j * select_block, end = start + select_block;
    const int first = start < block ? 0 : (start - block) / stride + 1, last = min(seen - 1, (end - 1) / stride);
    float sum = 0.0f;
    for (int i = first; i <= last; i++) {
      sum += (float)(min(i * stride + block, end) - max(i * stride, start)) * of_stride * weight_of(i);
    }
    return sum;
  }

  // Block j's importance as an integer with the same order; forced blocks count as selected.
  DEVICE u32 key(int j, float importance) const {
    return j < front || j >= back ? TAKEN : __float_as_uint(importance) + LEAST;
  }
};

DEVICE Selecting selecting_at(int position, int block, int stride, int select_block, int count, int initial_blocks, int local_blocks) {
  Selecting s = {block, stride, select_block, count, position < 0 ? 0 : position / select_block + 1, 0, 0,
                 compressed_before(position, block, stride)};
  s.front = min(initial_blocks, s.blocks);
  s.back = max(s.front, s.blocks - local_blocks);
  return s;
}
