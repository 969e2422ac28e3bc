// Sums of the partial sums that blocks wrote, in order, as gradients of weights, for every GPU from sm_80 on.
//
// partial [matrices, count, stride] f32, of whose columns the first `size` are those of `first` [matrices, size], and the next ones those of
// `second` [second_size], which is null without them; both f32 or in storage.
//
// Launch: grid (ceil((size + second_size) / 32), matrices); block (32, 32).
//
// Macros: DTYPE.

extern "C" __global__ void __launch_bounds__(1024)
    gradient_sums(const float* __restrict__ partial, char* __restrict__ first, char* __restrict__ second, int count, int stride, int size,
                  int second_size, int first_f32, int second_f32) {
  let_next_start();
  wait_for_previous();
  partial = read_from_now_on(partial);
  __shared__ float sums[32][33];
  const int column = blockIdx.x * 32 + threadIdx.x;
  const bool there = column < size + second_size;
  const float* from = partial + (i64)blockIdx.y * count * stride + column;
  float sum = 0.0f;
#pragma unroll 8
  for (int row = threadIdx.y; row < count; row += 32) sum += there ? from[(i64)row * stride] : 0.0f;
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || !there) return;
  sum = 0.0f;
#pragma unroll
  for (int y = 0; y < 32; y++) sum += sums[y][threadIdx.x];
  const bool is_first = column < size;
  char* const to = is_first ? first : second;
  const i64 at = is_first ? (i64)blockIdx.y * size + column : column - size;
  if (STORAGE == STORED_f32 || (is_first ? first_f32 : second_f32)) {
    ((float*)to)[at] = sum;
  } else {
    ((u16*)to)[at] = narrow_half(sum);
  }
}
