// From a step of one token a sequence to the next: the chosen token (choose.cu) is the sequence's next one, a place further
// on, with the row of the pools that its block has for it.
//
// chosen [count] u64; ids, positions, rows, lengths [count]; table [count, table_width], blocks of `block` tokens. Behind the
// last block of a sequence rows are those of block 0, which no later step reads.
// Launch: grid (ceil(count / 32)), 32 threads.

extern "C" __global__ void decoder_next(const unsigned long long* __restrict__ chosen, int* __restrict__ ids,
                                        int* __restrict__ positions, int* __restrict__ rows, int* __restrict__ lengths,
                                        const int* __restrict__ table, int count, int table_width, int block) {
  let_next_start();
  wait_for_previous();
  chosen = read_from_now_on(chosen);
  const int i = blockIdx.x * 32 + threadIdx.x;
  if (i >= count) return;
  const int position = positions[i] + 1, at = position / block;
  ids[i] = (int)~(unsigned)chosen[i];
  positions[i] = position;
  lengths[i] += 1;
  const int number = at < table_width ? table[i * table_width + at] : 0;
  rows[i] = (number < 0 ? 0 : number) * block + position % block;
}
