// Advances a step of one token per sequence to the next: the chosen token becomes the sequence's input, its position grows by one,
// its cache row comes from the block table, and the token is counted. A stop token sets the sequence's slot to -1: later steps
// leave its states unchanged.
//
// chosen [count], -1 for none; ids, positions, rows, lengths [count]; table [count, table_width], blocks of `block` tokens. Past
// the last block of a sequence, rows are those of block 0, which no later step reads. counts [slots, vocabulary] or null: how
// often each token was added to the sequence in a slot; slots [count], -1 for padding; stops [count, most], tokens that end each
// sequence, filled up with -1.
// Launch: grid (ceil(count / 32)), 32 threads.

extern "C" __global__ void decoder_next(const int* __restrict__ chosen, int* __restrict__ ids, int* __restrict__ positions,
                                        int* __restrict__ rows, int* __restrict__ lengths, const int* __restrict__ table,
                                        int* __restrict__ counts, int* __restrict__ slots, const int* __restrict__ stops,
                                        int count, int table_width, int block, int vocabulary, int most) {
  // No let_next_start: kernels of the next step read slots, and states at these, before they wait.
  wait_for_previous();
  chosen = read_from_now_on(chosen);
  const int i = blockIdx.x * 32 + threadIdx.x;
  if (i >= count) return;
  const int position = positions[i] + 1, at = position / block, token = chosen[i], slot = slots[i];
  // A sequence without a chosen token is advanced too, like the others.
  ids[i] = token < 0 ? 0 : token;
  positions[i] = position;
  lengths[i] += 1;
  const int number = at < table_width ? table[i * table_width + at] : 0;
  rows[i] = (number < 0 ? 0 : number) * block + position % block;
  if (token < 0) return;
  if (counts != nullptr && slot >= 0) counts[(long long)slot * vocabulary + token] += 1;
  for (int j = 0; j < most; j++) {
    if (stops[i * most + j] == token) slots[i] = -1;
  }
}
