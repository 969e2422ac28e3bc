// Writes keys and values of new tokens to the paged KV cache, with rotary embedding of queries and keys (ROTATE):
// pairs (i, i + turned / 2) of a head by the angle position * frequency i, computed in float64, because a float32
// angle at a position of many thousands has lost its last digits. Channels from `turned` on are copied.
//
// q [T, q_heads, dim] and k [T, kv_heads, dim] in storage, rotated in place; more [T, more_width], appended to the keys
// of a token, or null with a width of 0; v [T, value_width], or null with a width of 0 where the keys hold the values;
// rows [T]: cache row of a token's keys k_pool [.., kv_heads * dim + more_width] and values v_pool [.., value_width]; positions [T], read
// with ROTATE only, as is q. frequencies [2, turned / 2] f32, each the sum of two; factor scales cosines and sines. Both with ROTATE only.
// Widths % 8 == 0, everything 16-byte aligned.
// Launch: grid (T), 256 threads. Macros: DTYPE, ROTATE.

constexpr int THREADS = 256;
constexpr int LARGEST_DIM = 512;

DEVICE void copy_row(char* to, const char* from, int width) {
  for (int i = threadIdx.x * 8; i < width; i += THREADS * 8) {
    *(uint4*)(to + i * ELEMENT_BYTES) = *(const uint4*)(from + i * ELEMENT_BYTES);
  }
}

// Rotates the heads of a row in place, and also writes the row to `copy` unless that is null.
DEVICE void rotate(char* row, char* copy, int heads, int dim, int turned, const float2* turns) {
  const int half = turned / 2, rest = dim - turned;
  for (int i = threadIdx.x; i < heads * half; i += THREADS) {
    const int head = i / half, at = i - head * half;
    const i64 low_at = (i64)(head * dim + at) * ELEMENT_BYTES, high_at = low_at + (i64)half * ELEMENT_BYTES;
    const float2 turn = turns[at];
    Stored<1> low, high;
    low.load(row + low_at);
    high.load(row + high_at);
    const float x = low.get(0), y = high.get(0);
    const float first[1] = {x * turn.x - y * turn.y}, second[1] = {y * turn.x + x * turn.y};
    low.set(first);
    high.set(second);
    low.store(row + low_at);
    high.store(row + high_at);
    if (copy != nullptr) {
      low.store(copy + low_at);
      high.store(copy + high_at);
    }
  }
  for (int i = threadIdx.x; copy != nullptr && i < heads * rest; i += THREADS) {
    const i64 at = (i64)(i / rest * dim + turned + i % rest) * ELEMENT_BYTES;
    Stored<1> same;
    same.load(row + at);
    same.store(copy + at);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    decoder_append(char* q, char* k, const char* more, const char* v, char* k_pool, char* v_pool, const int* rows, const int* positions,
                   int q_heads, int kv_heads, int dim, int more_width, int value_width, const float* frequencies, int turned, float factor) {
  let_next_start();
  wait_for_previous();
  const i64 token = blockIdx.x, row = rows[token];
  const int key_width = kv_heads * dim;
  char* const keys = k_pool + row * (key_width + more_width) * ELEMENT_BYTES;
  if (ROTATE) {
    __shared__ float2 turns[LARGEST_DIM / 2];  // cosine, sine
    const int half = turned / 2;
    for (int i = threadIdx.x; i < half; i += THREADS) {
      double sine, cosine;
      // In half turns: sincospi reduces whole turns exactly.
      const double frequency = (double)frequencies[i] + (double)frequencies[half + i];
      sincospi(positions[token] * frequency / 3.14159265358979323846, &sine, &cosine);
      turns[i] = make_float2((float)cosine * factor, (float)sine * factor);
    }
    __syncthreads();
    rotate(q + token * q_heads * dim * ELEMENT_BYTES, nullptr, q_heads, dim, turned, turns);
    rotate(k + token * key_width * ELEMENT_BYTES, keys, kv_heads, dim, turned, turns);
  } else {
    copy_row(keys, k + token * key_width * ELEMENT_BYTES, key_width);
  }
  copy_row(keys + key_width * ELEMENT_BYTES, more + token * more_width * ELEMENT_BYTES, more_width);
  copy_row(v_pool + row * value_width * ELEMENT_BYTES, v + token * value_width * ELEMENT_BYTES, value_width);
}
