// Attention backward, preparation for float32.cu: the log-sum-exp and delta = rowsum(dO * O) - dlse of every query row, for every
// DV and storage type. Unlike those of prepare.cu the log-sum-exp is natural, because a change of base would round it.
//
// o, grad_o [B, Tq, H, DV] or packed [total, H, DV] with cu_q i32 [B + 1], contiguous. lse f32 [B, H, Tq], packed [H, total], -inf where a
// row sees no key; grad_lse the same shape, or null. row_lse, row_delta f32 [H, padded], as described in rows.cuh; rows past the
// end of a sequence are not written. counters and counter_count are not used: the arguments are those of prepare.cu.
//
// Source: include/storage.cuh, rows.cuh, this file. Macros: DTYPE (f32, bf16, f16), DV.
// Launch: grid (ceil(longest Tq / 128), H, B), 256 threads. A warp computes a row.

extern "C" __global__ void __launch_bounds__(256)
    attention_backward_float32_rows(const void* __restrict__ o, const void* __restrict__ grad_o, const float* __restrict__ lse,
                                    const float* __restrict__ grad_lse, const int* __restrict__ cu_q, float* row_lse,
                                    float* row_delta, int* counters, int counter_count, int batch, int tq, int heads) {
  const int head = blockIdx.y, sequence = blockIdx.z, lane = threadIdx.x % 32;
  const int start = first_row_of(sequence, cu_q, tq), rows = first_row_of(sequence + 1, cu_q, tq) - start;
  const int total = first_row_of(batch, cu_q, tq);
  const i64 out = (i64)head * padded_start(batch, total) + padded_start(sequence, start);
  for (int row = blockIdx.x * 128 + threadIdx.x / 32; row < min(rows, (int)(blockIdx.x + 1) * 128); row += 8) {
    const i64 from = ((i64)(start + row) * heads + head) * DV;
    float sum = 0.0f;
    for (int c = lane; c < DV; c += 32) sum = fmaf(number(o, from + c, false), number(grad_o, from + c, false), sum);
#pragma unroll
    for (int far = 16; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffff, sum, far);
    if (lane == 0) {
      const i64 at = cu_q != nullptr ? (i64)head * total + start + row : ((i64)sequence * heads + head) * tq + row;
      row_lse[out + row] = lse[at];
      row_delta[out + row] = sum - (grad_lse != nullptr ? grad_lse[at] : 0.0f);
    }
  }
}
