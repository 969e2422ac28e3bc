// Gradients of RMSNorm, plain or gated before or after, one row (a group of a token) at a time per team of threads, for every GPU from sm_80 on.
//
//   n = z r,  r = 1 / sqrt(mean z^2 + eps),  z = x, or x a(gate) if the gate comes first;  a is silu or sigmoid
//   da = do, or do a(gate) if the norm comes first;  dz = r (weight da - n mean(n weight da));  dweight = sum over rows of da n
//   NORM_BEFORE_GATE 0:  dx = dz a(gate),  dgate = dz x a'(gate)
//   NORM_BEFORE_GATE 1:  dx = dz,          dgate = do n weight a'(gate)
//
// A team computes the rows first, first + gridDim.x * ROWS, ... of its matrix of weights. With STAGES, the next rows are copied to shared memory
// meanwhile. Sums of dweight are in registers, and blocks add those of their teams; rows above MOST_HELD elements per thread are read twice, and
// their sums are in `partial`. `gradient_sums` adds the sums of the blocks; the order is the same in every run. Teams of one thread, whose rows
// have few elements, compute in float64, because dz cancels: of one element it is r^3 eps da.
//
// x, gate, do, dx, dgate [tokens, groups, channels]: x, gate, dx and dgate in storage, or f32 where WIDE_X is 1; do in storage. weight [channels],
// or [groups, channels] with weight_per_group, f32 or storage. gate and dgate may be null; weight and partial may be null: factors of 1.
// partial [1, or groups with weight_per_group, gridDim.x, channels]. channels is a multiple of VECTOR, at most PIECES * TEAM * VECTOR.
//
// Launch: grid (blocks, 1, or groups with weight_per_group); block (ROWS * TEAM); shared memory for STAGES rows of each team: x, gate and do.
//
// Macros: DTYPE (f32, bf16, f16), VECTOR (elements of an access), TEAM (threads of a row, a power of two up to 1024), PIECES
// (vectors of a thread), ROWS (teams of a block; 1 where TEAM is above 32), GATE (0: none, 1: silu, 2: sigmoid), NORM_BEFORE_GATE, WIDE_X
// (0, 1), STAGES (rows of a team in shared memory, one of which is computed; 0: rows are loaded to registers, and PIECES * VECTOR may be above
// MOST_HELD), MOST_HELD, RESIDENT (threads per SM that the registers must allow).

constexpr int THREADS = ROWS * TEAM;
constexpr int WARPS = ceil_div(TEAM, 32);
constexpr bool HELD = PIECES * VECTOR <= MOST_HELD;
constexpr int COPIES = HELD ? PIECES : 1;

#if TEAM == 1
typedef double Sum;
#else
typedef float Sum;
#endif

// VECTOR f32 elements, as `Stored` has those in storage.
struct Wide {
  static constexpr int element_bytes = 4;
  u32 word[VECTOR];
  DEVICE void load(const void* at) {
    float values[VECTOR];
    numbers<VECTOR>(values, at, 0, true);
    set(values);
  }
  DEVICE void clear() {
#pragma unroll
    for (int v = 0; v < VECTOR; v++) word[v] = 0;
  }
  DEVICE float get(int element) const { return __uint_as_float(word[element]); }
  DEVICE void set(const float (&values)[VECTOR]) {
#pragma unroll
    for (int v = 0; v < VECTOR; v++) word[v] = __float_as_uint(values[v]);
  }
  DEVICE void store(void* at) const {
    if constexpr (VECTOR % 4 == 0) {
#pragma unroll
      for (int v = 0; v < VECTOR; v += 4) {
        asm volatile(STORE_GLOBAL ".v4.u32 [%0], {%1, %2, %3, %4};" ::"l"((char*)at + 4 * v), "r"(word[v]), "r"(word[v + 1]),
                     "r"(word[v + 2]), "r"(word[v + 3])
                     : "memory");
      }
    } else {
#pragma unroll
      for (int v = 0; v < VECTOR; v++) ((u32*)at)[v] = word[v];
    }
  }
};

struct InStorage : Stored<VECTOR> {
  static constexpr int element_bytes = ELEMENT_BYTES;
};

#if WIDE_X
typedef Wide Given;
#else
typedef InStorage Given;
#endif

// VECTOR elements of a row of each input.
struct Piece {
  Given x, gate;
  InStorage d_o;

  DEVICE void load(const char* x_from, const char* gate_from, const char* do_from, i64 at, bool there) {
    x.clear();
    gate.clear();
    d_o.clear();
    if (there) {
      x.load(x_from + at * Given::element_bytes);
      if (GATE) gate.load(gate_from + at * Given::element_bytes);
      d_o.load(do_from + at * ELEMENT_BYTES);
    }
  }
};

#if STAGES
// A thread's slots of a ring of rows in shared memory, which only it reads and writes: no barrier is needed.
template <int bytes>
struct Slots {
  static constexpr int chunk = bytes < 16 ? bytes : 16, chunks = bytes / chunk, all = bytes * THREADS;

  DEVICE static void fetch(u32 shared, const char* from) {
#pragma unroll
    for (int c = 0; c < chunks; c++) {
      const u32 to = shared + (c * THREADS + threadIdx.x) * chunk;
      if constexpr (chunk == 16) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from + c * chunk) : "memory");
      } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from + c * chunk), "n"(chunk) : "memory");
      }
    }
  }

  DEVICE static void clear(u32 shared) {
    for (int at = threadIdx.x * 4; at < all; at += THREADS * 4) asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared + at), "r"(0) : "memory");
  }

  DEVICE static void read(u32 (&word)[bytes / 4], u32 shared) {
#pragma unroll
    for (int c = 0; c < chunks; c++) {
      const u32 from = shared + (c * THREADS + threadIdx.x) * chunk;
      u32* const to = word + c * 4;
      if constexpr (chunk == 16) {
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from));
      } else if constexpr (chunk == 8) {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(from));
      } else {
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to[0]) : "r"(from));
      }
    }
  }
};

typedef Slots<VECTOR * Given::element_bytes> GivenSlots;
typedef Slots<VECTOR * ELEMENT_BYTES> StoredSlots;
constexpr int PIECE_BYTES = (GATE ? 2 : 1) * GivenSlots::all + StoredSlots::all;

// Piece p of a row in stage `stage` of the ring.
struct Slot {
  u32 x, gate, d_o;

  DEVICE Slot(u32 ring, int stage, int p) {
    x = ring + (stage * PIECES + p) * PIECE_BYTES;
    gate = x + GivenSlots::all;
    d_o = x + (GATE ? 2 : 1) * GivenSlots::all;
  }

  DEVICE void fetch(const char* x_from, const char* gate_from, const char* do_from, i64 at) const {
    GivenSlots::fetch(x, x_from + at * Given::element_bytes);
    if (GATE) GivenSlots::fetch(gate, gate_from + at * Given::element_bytes);
    StoredSlots::fetch(d_o, do_from + at * ELEMENT_BYTES);
  }

  DEVICE void read(Piece& piece, bool gated) const {
    GivenSlots::read(piece.x.word, x);
    if (GATE && gated) GivenSlots::read(piece.gate.word, gate);
    StoredSlots::read(piece.d_o.word, d_o);
  }
};
#endif

DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The activation of a piece's gates and its derivative.
struct Gates {
  float act[VECTOR], slope[VECTOR];

  DEVICE void compute(const Piece& piece) {
#pragma unroll
    for (int v = 0; v < VECTOR; v++) {
      act[v] = 1.0f;
      slope[v] = 0.0f;
      const float g = piece.gate.get(v);
      if constexpr (GATE == 1) {
        const float sigmoid = reciprocal(1.0f + exp2_fast(g * -1.44269504f));
        act[v] = g * sigmoid;
        slope[v] = fmaf(act[v], 1.0f - sigmoid, sigmoid);
      } else if constexpr (GATE == 2) {
        // Not 1 - sigmoid, which is 0 for large gates. The exponential is finite, because it multiplies a quotient that may be 0.
        const float e = exp2_fast(fminf(g * -1.44269504f, 126.0f));
        act[v] = reciprocal(1.0f + e);
        slope[v] = act[v] * (e * act[v]);
      }
    }
  }
  DEVICE float z(const Piece& piece, int v) const { return NORM_BEFORE_GATE ? piece.x.get(v) : piece.x.get(v) * act[v]; }
  DEVICE float da(const Piece& piece, int v) const { return NORM_BEFORE_GATE ? piece.d_o.get(v) * act[v] : piece.d_o.get(v); }
};

struct Sums {
  Sum squares, products;
};

// Sums over a row's threads, in each of them. `turn` alternates between a block's rows.
DEVICE Sums team_sums(Sums own, int turn) {
#pragma unroll
  for (int far = min(TEAM, 32) / 2; far > 0; far /= 2) {
    own.squares += __shfl_xor_sync(0xffffffff, own.squares, far);
    own.products += __shfl_xor_sync(0xffffffff, own.products, far);
  }
  if constexpr (WARPS > 1) {
    __shared__ Sums sums[2][WARPS];
    if (threadIdx.x % 32 == 0) sums[turn][threadIdx.x / 32] = own;
    __syncthreads();
    own = sums[turn][threadIdx.x % WARPS];
#pragma unroll
    for (int far = WARPS / 2; far > 0; far /= 2) {
      own.squares += __shfl_xor_sync(0xffffffff, own.squares, far);
      own.products += __shfl_xor_sync(0xffffffff, own.products, far);
    }
  }
  return own;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT < THREADS ? 1 : RESIDENT / THREADS)
    rmsnorm_backward_rows(const char* __restrict__ x, const char* __restrict__ gate, const void* __restrict__ weight,
                     const char* __restrict__ d_o, char* __restrict__ dx, char* __restrict__ dgate, float* __restrict__ partial,
                     int tokens, int groups, int channels, int weight_f32, int weight_per_group, float per_size, float eps) {
  let_next_start();
  wait_for_previous();
  x = read_from_now_on(x);
  gate = read_from_now_on(gate);
  d_o = read_from_now_on(d_o);
  const int member = ROWS == 1 ? threadIdx.x : threadIdx.x % TEAM, team = ROWS == 1 ? 0 : threadIdx.x / TEAM;
  // Row `index` of this block's rows is row index * stride + blockIdx.y of the tensors.
  const int stride = weight_per_group ? groups : 1, count = weight_per_group ? tokens : tokens * groups;
  const int step = gridDim.x * ROWS;
  partial = partial == nullptr ? nullptr : partial + ((i64)blockIdx.y * gridDim.x + blockIdx.x) * channels;
  auto column = [&](int p) { return (p * TEAM + member) * VECTOR; };
  auto weights = [&](int p, float(&to)[VECTOR]) {
#pragma unroll
    for (int v = 0; v < VECTOR; v++) to[v] = 1.0f;
    if (weight != nullptr && column(p) < channels) {
      numbers<VECTOR>(to, weight, (weight_per_group ? (i64)blockIdx.y * channels : 0) + column(p), weight_f32);
    }
  };

  float dweight[COPIES][VECTOR] = {}, factors[COPIES][VECTOR];
  int index = blockIdx.x * ROWS + team;
  // Elements from one row of this team to the next; first element of this thread's row.
  const i64 apart = (i64)step * stride * channels;
  i64 from = ((i64)index * stride + blockIdx.y) * channels;
  if constexpr (HELD) {
#pragma unroll
    for (int p = 0; p < PIECES; p++) weights(p, factors[p]);
  }
#if STAGES
  extern __shared__ char memory[];
  const u32 ring = (u32)__cvta_generic_to_shared(memory);
  // Columns past the end add zeros to sums.
  if (PIECES * TEAM * VECTOR > channels) {
    for (int s = 0; s < STAGES * PIECES; s++) {
      const Slot slot(ring, 0, s);
      GivenSlots::clear(slot.x);
      if (GATE) GivenSlots::clear(slot.gate);
      StoredSlots::clear(slot.d_o);
    }
    __syncthreads();
  }
  auto fetch = [&](int index, i64 from, int stage) {
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
      if (index < count && column(p) < channels) Slot(ring, stage, p).fetch(x, gate, d_o, from + column(p));
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) fetch(index + s * step, from + s * apart, s);
  int stage = 0;
#endif
  // Teams of a block have as many turns, since they synchronize.
  int turn = 0;
  for (int first = blockIdx.x * ROWS; first < count; first += step, index += step, from += apart, turn ^= 1) {
    Piece pieces[COPIES];
    Gates gates[COPIES];
    Sums sums = {};
#if STAGES
    fetch(index + (STAGES - 1) * step, from + (STAGES - 1) * apart, stage == 0 ? STAGES - 1 : stage - 1);
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
#endif
#pragma unroll(HELD ? PIECES : 1)
    for (int p = 0; p < PIECES; p++) {
      Piece& piece = pieces[HELD ? p : 0];
      Gates& gate_of = gates[HELD ? p : 0];
      float(&factor)[VECTOR] = factors[HELD ? p : 0];
#if STAGES
      Slot(ring, stage, p).read(piece, true);
#else
      piece.load(x, gate, d_o, from + column(p), index < count && column(p) < channels);
      if constexpr (!HELD) weights(p, factor);
#endif
      gate_of.compute(piece);
#pragma unroll
      for (int v = 0; v < VECTOR; v++) {
        const Sum z = gate_of.z(piece, v);
        sums.squares += z * z;
        sums.products += z * (Sum)(gate_of.da(piece, v) * factor[v]);
      }
    }
    sums = team_sums(sums, turn);
#if TEAM == 1
    const Sum rate = 1.0 / sqrt(sums.squares / channels + eps), projection = rate * sums.products / channels;
#else
    const Sum rate = rsqrtf(fmaf(sums.squares, per_size, eps)), projection = rate * sums.products * per_size;
#endif
#pragma unroll(HELD ? PIECES : 1)
    for (int p = 0; p < PIECES; p++) {
      if (index >= count || column(p) >= channels) continue;
      Piece& piece = pieces[HELD ? p : 0];
      Gates& gate_of = gates[HELD ? p : 0];
      float(&factor)[VECTOR] = factors[HELD ? p : 0];
#if STAGES
      Slot(ring, stage, p).read(piece, false);
#endif
      if constexpr (!HELD) {
        piece.load(x, gate, d_o, from + column(p), true);
        gate_of.compute(piece);
        weights(p, factor);
      }
      float of_x[VECTOR], of_gate[VECTOR], of_weight[VECTOR];
#pragma unroll
      for (int v = 0; v < VECTOR; v++) {
        const Sum n = rate * gate_of.z(piece, v);
        const float dz = (float)(rate * ((Sum)(gate_of.da(piece, v) * factor[v]) - n * projection));
        const float product = piece.d_o.get(v) * (float)n;
        of_weight[v] = NORM_BEFORE_GATE ? gate_of.act[v] * product : product;
        of_x[v] = NORM_BEFORE_GATE ? dz : dz * gate_of.act[v];
        of_gate[v] = gate_of.slope[v] * (NORM_BEFORE_GATE ? product * factor[v] : dz * piece.x.get(v));
      }
      Given to;
      to.set(of_x);
      to.store(dx + (from + column(p)) * Given::element_bytes);
      if (GATE) {
        to.set(of_gate);
        to.store(dgate + (from + column(p)) * Given::element_bytes);
      }
      if constexpr (HELD) {
#pragma unroll
        for (int v = 0; v < VECTOR; v++) dweight[p][v] += of_weight[v];
      } else if (partial != nullptr) {
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
          float& sum = partial[column(p) + v];
          sum = first == blockIdx.x ? of_weight[v] : sum + of_weight[v];
        }
      }
    }
#if STAGES
    stage = stage == STAGES - 1 ? 0 : stage + 1;
#endif
  }
  if (!HELD || partial == nullptr) return;
  if constexpr (ROWS > 1) {
    // Teams in order.
    __shared__ float shares[ROWS][PIECES * TEAM * VECTOR];
#pragma unroll
    for (int p = 0; p < COPIES; p++) {
#pragma unroll
      for (int v = 0; v < VECTOR; v++) shares[team][column(p) + v] = dweight[p][v];
    }
    __syncthreads();
    for (int at = threadIdx.x; at < channels; at += THREADS) {
      float sum = 0.0f;
#pragma unroll 8
      for (int other = 0; other < ROWS; other++) sum += shares[other][at];
      partial[at] = sum;
    }
  } else {
#pragma unroll
    for (int p = 0; p < COPIES; p++) {
      if (column(p) >= channels) continue;
#pragma unroll
      for (int v = 0; v < VECTOR; v++) partial[column(p) + v] = dweight[p][v];
    }
  }
}
