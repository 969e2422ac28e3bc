// Gradients of the causal convolution over channel-last tokens, for sm_80 and later.
//
//   u_t = bias + sum over w of weight_w x_(t-WIDTH+1+w),  du = do act'(u)
//   dx_t = sum over w of weight_w du_(t+WIDTH-1-w),  dweight_w = sum of du_t x_(t-WIDTH+1+w),  dbias = sum of du
//
// A thread has VECTOR adjacent channels of `segment` consecutive tokens of all sequences, and runs over the part of each sequence in them in order
// of time: the last WIDTH - 1 rows of x and of du stay in its registers, and dx of a token is written WIDTH - 1 tokens later. It computes du of the
// WIDTH - 1 tokens after a part too, which also read its tokens. AHEAD rows are in a ring in shared memory, one of which is computed while the
// others load. Sums of dweight and dbias stay in registers; a block adds those of its warps, and `gradient_sums` those of the blocks; the
// order is the same in every run.
//
// x, do, dx [B, T, C] or packed [total, C] with cu_seqlens [Nseq + 1], contiguous; weight [C, WIDTH], bias [C] or null, f32 or storage;
// initial_state and dfinal [Nseq, C, state_len] or null, f32 or storage; partial [blocks of tokens, C WIDTH + C]: dweight, then dbias.
// tokens is T, or not read with cu_seqlens. All aligned to VECTOR elements, C % VECTOR == 0.
//
// Launch: grid (ceil(C / VECTOR / 32) * ceil(ceil(total / segment) / WARPS)); block (32, WARPS).
//
// Macros: those of sequence.cuh, VECTOR (at most 16 bytes), FINAL (0, 1: dfinal is given), AHEAD, BLOCKS (per SM, that the registers
// must allow), WARPS.

#ifndef AHEAD
#define AHEAD 4
#endif
#ifndef BLOCKS
#define BLOCKS 4
#endif

typedef Stored<VECTOR> Row;
constexpr int ROW = Row::bytes, SLOT = 2 * 32 * WARPS * ROW;

// Copies a row to a thread's slot in shared memory, which only it reads.
DEVICE void fetch_row(u32 to, const char* from) {
  if constexpr (ROW == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else if constexpr (ROW >= 4) {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(ROW) : "memory");
  } else {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(__ldg((const u16*)from)) : "memory");
  }
}

DEVICE Row read_row(u32 from) {
  Row row;
  if constexpr (ROW == 16) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(row.word[0]), "=r"(row.word[1]), "=r"(row.word[2]), "=r"(row.word[3])
                 : "r"(from)
                 : "memory");
  } else if constexpr (ROW == 8) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(row.word[0]), "=r"(row.word[1]) : "r"(from) : "memory");
  } else if constexpr (ROW == 4) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(row.word[0]) : "r"(from) : "memory");
  } else {
    u16 bits;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(from) : "memory");
    row.word[0] = bits;
  }
  return row;
}

// The sequence that has token `at`: the last one that starts there or before.
DEVICE int sequence_of(const int* cu_seqlens, int sequences, int at) {
  int low = 0, high = sequences;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (cu_seqlens[middle] <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    conv1d_backward_channel_last(const char* __restrict__ x, const void* __restrict__ weight, const void* __restrict__ bias,
                    const void* __restrict__ initial_state, const int* __restrict__ cu_seqlens, const char* __restrict__ d_o,
                    const void* __restrict__ dfinal, char* __restrict__ dx, float* __restrict__ partial, int sequences, int tokens,
                    int total, int channels, int state_len, int segment, int weight_f32, int bias_f32, int state_f32) {
  let_next_start();
  __shared__ __align__(16) char memory[AHEAD * SLOT];
  const u32 ring = (u32)__cvta_generic_to_shared(memory) + (threadIdx.y * 32 + threadIdx.x) * ROW;
  const int channel_blocks = ceil_div(channels, 32 * VECTOR);
  const int channel = (blockIdx.x % channel_blocks * 32 + threadIdx.x) * VECTOR, part = blockIdx.x / channel_blocks;
  const i64 begin = (i64)(part * WARPS + threadIdx.y) * segment;
  const i64 row_bytes = (i64)channels * ELEMENT_BYTES;

  float dweight[VECTOR][WIDTH] = {}, dbias[VECTOR] = {};
  if (channel < channels && begin < total) {
    float taps[VECTOR][WIDTH], offset[VECTOR] = {};
#pragma unroll
    for (int v = 0; v < VECTOR; v++) numbers<WIDTH>(taps[v], weight, (i64)(channel + v) * WIDTH, weight_f32);
    if (bias != nullptr) numbers<VECTOR>(offset, bias, channel, bias_f32);

    const int end = (int)min((i64)total, begin + segment);
    int sequence = cu_seqlens != nullptr ? sequence_of(cu_seqlens, sequences, (int)begin) : (int)(begin / tokens);
    for (int at = (int)begin; at < end; sequence++) {
      const int start = cu_seqlens != nullptr ? cu_seqlens[sequence] : sequence * tokens;
      const int length = cu_seqlens != nullptr ? cu_seqlens[sequence + 1] - start : tokens;
      // Tokens of the sequence, counted from its start; rows up to `until` are read.
      const int first = at - start, last = min(length, end - start), until = min(length, last + BEFORE);
      if (first >= last) continue;
      const i64 place = at * row_bytes + (i64)channel * ELEMENT_BYTES;
      const i64 state = ((i64)sequence * channels + channel) * state_len;
      // The row that is fetched next, and the one that is written next.
      const char *x_next = x + place, *do_next = d_o + place;
      char* to = dx + place;

      auto fetch = [&](int slot, bool there) {
        if (there) {
          fetch_row(ring + slot * SLOT, x_next);
          fetch_row(ring + slot * SLOT + SLOT / 2, do_next);
        }
        x_next += row_bytes;
        do_next += row_bytes;
        asm volatile("cp.async.commit_group;" ::: "memory");
      };
#pragma unroll
      for (int a = 0; a < AHEAD - 1; a++) fetch(a, first + a < until);
      // Rows before, in float, since they may be from a state; their du is not this part's.
      float before[BEFORE][VECTOR], du_before[BEFORE][VECTOR] = {};
#pragma unroll
      for (int b = 0; b < BEFORE; b++) {
        const int t = first - BEFORE + b;
        Row row;
        row.clear();
        if (t >= 0) row.load(x + place - (BEFORE - b) * row_bytes);
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
          before[b][v] = row.get(v);
          if (t < 0 && initial_state != nullptr) before[b][v] = number(initial_state, state + v * state_len + state_len + t, state_f32);
        }
      }

      // Token t in this slot of the ring; `inside` if it, the one written and the one fetched are certainly inside of the part.
      auto step = [&](int slot, int t, bool inside) {
        fetch(slot == 0 ? AHEAD - 1 : slot - 1, inside || t + AHEAD - 1 < until);
        asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
        const Row x_row = read_row(ring + slot * SLOT), do_row = read_row(ring + slot * SLOT + SLOT / 2);
        float result[VECTOR];
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
          const float now = x_row.get(v);
          float u = offset[v];
#pragma unroll
          for (int b = 0; b < BEFORE; b++) u = fmaf(taps[v][b], before[b][v], u);
          u = fmaf(taps[v][BEFORE], now, u);
          float du = do_row.get(v) * slope(u);
          if (!inside && t >= length) du = 0.0f;
          if (inside || t < last) {
            dbias[v] += du;
#pragma unroll
            for (int b = 0; b < BEFORE; b++) dweight[v][b] = fmaf(du, before[b][v], dweight[v][b]);
            dweight[v][BEFORE] = fmaf(du, now, dweight[v][BEFORE]);
          }
          result[v] = taps[v][0] * du;
#pragma unroll
          for (int b = 0; b < BEFORE; b++) result[v] = fmaf(taps[v][BEFORE - b], du_before[b][v], result[v]);
#pragma unroll
          for (int b = 0; b + 1 < BEFORE; b++) {
            before[b][v] = before[b + 1][v];
            du_before[b][v] = du_before[b + 1][v];
          }
          before[BEFORE - 1][v] = now;
          du_before[BEFORE - 1][v] = du;
        }
        if (inside || t >= first + BEFORE) {
          const int column = t - BEFORE - (length - state_len);
          if (!inside && FINAL && column >= 0) {
#pragma unroll
            for (int v = 0; v < VECTOR; v++) result[v] += number(dfinal, state + v * state_len + column, state_f32);
          }
          Row row;
          row.set(result);
          row.store(to);
          to += row_bytes;
        }
      };

      // Steps before this one are inside.
      int inside = until - AHEAD + 1;
      if (FINAL) inside = min(inside, length - state_len + BEFORE);
      inside = min(inside, last);
      for (int t = first; t < last + BEFORE; t += AHEAD) {
        if (t > first && t + AHEAD <= inside) {
#pragma unroll
          for (int a = 0; a < AHEAD; a++) step(a, t + a, true);
        } else {
#pragma unroll
          for (int a = 0; a < AHEAD; a++) {
            if (t + a < last + BEFORE) step(a, t + a, false);
          }
        }
      }
      // Copies that no step waited for.
      asm volatile("cp.async.wait_all;" ::: "memory");
      at = start + last;
    }
  }

  // Warps in order.
  __shared__ float shares[WARPS][VECTOR * (WIDTH + 1)][32];
#pragma unroll
  for (int v = 0; v < VECTOR; v++) {
#pragma unroll
    for (int w = 0; w < WIDTH; w++) shares[threadIdx.y][v * WIDTH + w][threadIdx.x] = dweight[v][w];
    shares[threadIdx.y][VECTOR * WIDTH + v][threadIdx.x] = dbias[v];
  }
  __syncthreads();
  if (channel >= channels) return;
  partial += (i64)part * channels * (WIDTH + 1);
  for (int i = threadIdx.y; i < VECTOR * (WIDTH + 1); i += WARPS) {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) sum += shares[warp][i][threadIdx.x];
    const i64 at = i < VECTOR * WIDTH ? (i64)channel * WIDTH + i : (i64)channels * WIDTH + channel + (i - VECTOR * WIDTH);
    partial[at] = sum;
  }
}
