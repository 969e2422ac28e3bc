//! Token by token, with the state of a few rows of one head in L1: one pass over the state in memory.
//! For decode steps and short sequences, for which chunks cost more compute than they save.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers; blocks write disjoint rows.

use super::operands::{Operands, finish, with_final_states};
use crate::aligned::Aligned;
use crate::floats::{narrow, widen};
use crate::simd::map::{Exp, Scale, map};
use crate::simd::{Simd, SimdKernel, dispatch};
use crate::stream::{past_caches, stream_copy};
use device::{Device, Isa, SharedMut};
use ops::ssd::SsdProblem;
use ops::{Element, Inputs, TensorMap, elements_mut};

/// State values that a block keeps between tokens: half of a 32 KiB L1, the rest for rows of B, C and x.
const TILE_VALUES: usize = 4096;
/// Blocks that let 16 cores share a call evenly.
const ENOUGH_BLOCKS: usize = 64;
/// Minimum number of rows of a block of several tokens: with fewer, widening B and C costs more than the rows themselves.
const SHARED_ROWS: usize = 16;
/// Rows that share one load of B and C. Their 4 sums, 4 inputs and the decay stay in 16 registers.
const ROWS: usize = 4;
/// f32 values of a cache line, which are whole vectors of any instruction set.
const LINE: usize = 16;
/// Tokens whose step sizes are computed at once.
const STEPS: usize = 64;

/// Nothing: every problem can be computed token by token.
pub(super) fn why_not(_: &SsdProblem) -> Option<String> {
    None
}

/// The split of a call into blocks: a sequence, a head and some rows of its state each. It depends only on the problem,
/// so results do not depend on the number of threads.
struct Grid {
    rows: usize,
    splits: usize,
}

impl Grid {
    fn of(problem: &SsdProblem) -> Self {
        let whole = problem.head_dim;
        let units = (problem.sequences.count() * problem.heads).max(1);
        let fair = whole.div_ceil(ENOUGH_BLOCKS.div_ceil(units));
        // For a single token the state is read once, so a tile may exceed the cache. With more tokens tiles are reused, and
        // each block reads B and C again.
        let (fewest, most) = match problem.sequences.longest() {
            0 | 1 => (ROWS, whole),
            _ => (SHARED_ROWS, TILE_VALUES / problem.state_dim.max(1)),
        };
        let rows = fair.max(fewest).min(most).next_multiple_of(ROWS).min(whole).max(1);
        Self { rows, splits: whole.div_ceil(rows) }
    }
}

/// Runs the variant whose kernel name is `kernel`.
pub(super) fn run<E: Element>(
    isa: Isa,
    kernel: &str,
    problem: &SsdProblem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let operands = Operands::<E>::read(problem, inputs);
    let grid = Grid::of(problem);
    let mut o = outputs.remove("o");
    let heads = problem.heads;
    with_final_states(outputs, |states| {
        let stream = past_caches(states, &problem.slots);
        let states = SharedMut::new(states);
        let o = SharedMut::new(elements_mut::<E>(o.as_mut()));
        let untouched = problem.slots.untouched();
        let blocks = problem.sequences.count() * heads * grid.splits;
        device.launch_streaming(
            kernel,
            blocks + untouched.len() * heads,
            Scratch::default,
            |scratch, block| {
                if let Some(rest) = block.checked_sub(blocks) {
                    // SAFETY: no sequence has this slot, and this block alone has this head of it.
                    return unsafe {
                        operands.copy_unused_slot(untouched[rest / heads], rest % heads, &states)
                    };
                }
                let first = block % grid.splits * grid.rows;
                dispatch(
                    isa,
                    Block {
                        operands: &operands,
                        sequence: block / grid.splits / heads,
                        head: block / grid.splits % heads,
                        first,
                        rows: grid.rows.min(problem.head_dim - first),
                        stream,
                        o: &o,
                        states: &states,
                        scratch,
                    },
                );
            },
        );
    });
    outputs.extend(o.map(|o| ("o".to_owned(), o)));
}

/// Buffers of one thread.
#[derive(Default)]
struct Scratch {
    tile: Aligned,
    b: Aligned,
    c: Aligned,
    x: Aligned,
    z: Aligned,
    y: Aligned,
    input: Aligned,
}

struct Block<'a, E> {
    operands: &'a Operands<'a, E>,
    sequence: usize,
    head: usize,
    first: usize,
    rows: usize,
    stream: bool,
    o: &'a SharedMut<'a, E>,
    states: &'a SharedMut<'a, f32>,
    scratch: &'a mut Scratch,
}

impl<E: Element> SimdKernel for Block<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { operands, sequence, head, first, rows, stream, o, states, scratch } = self;
        let problem = operands.problem;
        let tokens = problem.sequences.range(sequence);
        let Some(slot) = problem.slots.of(sequence) else {
            for token in tokens {
                let at = operands.row(token, head, first);
                // SAFETY: this block alone has these rows of o.
                unsafe { o.slice(at..at + rows) }.fill(E::default());
            }
            return;
        };
        let n = problem.state_dim;
        let at = operands.state(slot, head) + first * n;
        // SAFETY: no other sequence has this slot, no other block these rows of this head.
        let end_state = unsafe { states.slice(at..at + rows * n) };
        // A single token's state is written by non-temporal stores if its rows are whole lines: reads and writes overlap.
        let direct = stream
            && tokens.len() == 1
            && n.is_multiple_of(LINE)
            && end_state.as_ptr().addr().is_multiple_of(LINE * size_of::<f32>());
        let Scratch { tile, b, c, x, z, y, input } = scratch;
        let tile =
            tile.of_len(if direct && operands.initial_state.is_some() { 0 } else { rows * n });
        let (b, c) = (b.of_len(n), c.of_len(n));
        let (x, y, input) = (x.of_len(rows), y.of_len(rows), input.of_len(rows));
        let z = z.of_len(if problem.has_z { rows } else { 0 });
        let start_state =
            operands.initial_state.as_deref().map(|initial| &initial[at..at + rows * n]);
        if start_state.is_none() {
            tile.fill(0.0);
        }
        if tokens.is_empty() {
            match start_state {
                Some(start) => end_state.copy_from_slice(start),
                None => end_state.fill(0.0),
            }
            return;
        }
        let d = match operands.d.is_empty() {
            true => &[][..],
            false => &operands.d[head * problem.head_dim + first..][..rows],
        };
        let mut dt = [0f32; STEPS];
        for part in tokens.clone().step_by(STEPS) {
            let part = part..(part + STEPS).min(tokens.end);
            operands.steps(simd, head, part.clone(), &mut dt);
            let mut decay = dt;
            map(simd, &mut decay, Scale(operands.rate[head]));
            map(simd, &mut decay, Exp);
            for token in part.clone() {
                let step = token - part.start;
                let row = operands.row(token, head, first);
                widen(simd, &operands.b[operands.projection(token, head)], b);
                widen(simd, &operands.c[operands.projection(token, head)], c);
                widen(simd, &operands.x[row..row + rows], x);
                for (input, x) in input.iter_mut().zip(x.iter()) {
                    *input = dt[step] * x;
                }
                let from = match start_state {
                    Some(start) if token == tokens.start => start.as_ptr(),
                    _ => tile.as_ptr(),
                };
                let last = token + 1 == tokens.end;
                let to = match last && (direct || !stream) {
                    true => end_state.as_mut_ptr(),
                    false => tile.as_mut_ptr(),
                };
                let coefficients = Coefficients { decay: decay[step], input, b, c };
                // SAFETY: start, tile and end hold `rows` rows of `n`; from and to are the same or do not overlap.
                // `direct` holds only where rows of the end state are whole aligned lines.
                unsafe {
                    if direct {
                        coefficients.advance::<S, true>(simd, from, to, y);
                    } else {
                        coefficients.advance::<S, false>(simd, from, to, y);
                    }
                }
                if let Some(all) = operands.z {
                    widen(simd, &all[row..row + rows], z);
                }
                finish(simd, y, x, d, z);
                // SAFETY: this block alone has these rows of o.
                narrow(simd, y, unsafe { o.slice(row..row + rows) });
            }
        }
        if stream && !direct {
            stream_copy(simd, tile, end_state);
        }
    }
}

/// Update of a head by one token: `h <- decay h + input (outer) b`, `y = h c`.
struct Coefficients<'a> {
    decay: f32,
    /// dt x, one per row.
    input: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
}

impl Coefficients<'_> {
    /// # Safety
    /// `from` must be readable and `to` writable for a row of `b.len()` values per element of `input`; the two are
    /// the same or do not overlap. To `STREAM`, `to` must start a cache line and rows must be whole lines.
    #[inline(always)]
    unsafe fn advance<S: Simd, const STREAM: bool>(
        &self,
        simd: S,
        from: *const f32,
        to: *mut f32,
        y: &mut [f32],
    ) {
        let n = self.b.len();
        // States from memory are read one row at a time: the hardware prefetcher follows one stream of lines.
        let whole = if STREAM { 0 } else { y.len() / ROWS * ROWS };
        for row in (0..whole).step_by(ROWS) {
            // SAFETY: rows `row..row + ROWS` are inside, by the caller's contract.
            unsafe {
                self.rows::<S, ROWS, STREAM>(simd, row, from.add(row * n), to.add(row * n), y);
            }
        }
        for row in whole..y.len() {
            // SAFETY: as above.
            unsafe { self.rows::<S, 1, STREAM>(simd, row, from.add(row * n), to.add(row * n), y) };
        }
    }

    /// # Safety
    /// As [`Self::advance`], from row `row` on, for `COUNT` rows.
    #[inline(always)]
    unsafe fn rows<S: Simd, const COUNT: usize, const STREAM: bool>(
        &self,
        simd: S,
        row: usize,
        from: *const f32,
        to: *mut f32,
        y: &mut [f32],
    ) {
        let (n, decay) = (self.b.len(), simd.splat(self.decay));
        let (b, c) = (self.b.as_ptr(), self.c[..n].as_ptr());
        let input: [S::V; COUNT] = std::array::from_fn(|i| simd.splat(self.input[row + i]));
        let mut sums = [simd.splat(0.0); COUNT];
        let whole = n / S::LANES * S::LANES;
        // SAFETY: the caller's contract for the state; `b` and `c` have `n` values.
        unsafe {
            for at in (0..whole).step_by(S::LANES) {
                let (b, c) = (simd.load(b.add(at)), simd.load(c.add(at)));
                for i in 0..COUNT {
                    let h = simd.mul(decay, simd.load(from.add(i * n + at)));
                    let h = simd.fma(input[i], b, h);
                    if STREAM {
                        simd.stream(to.add(i * n + at), h);
                    } else {
                        simd.store(to.add(i * n + at), h);
                    }
                    sums[i] = simd.fma(h, c, sums[i]);
                }
            }
            let rest = n - whole;
            if rest > 0 {
                let (b, c) =
                    (simd.load_first(b.add(whole), rest), simd.load_first(c.add(whole), rest));
                for i in 0..COUNT {
                    let h = simd.mul(decay, simd.load_first(from.add(i * n + whole), rest));
                    let h = simd.fma(input[i], b, h);
                    simd.store_first(to.add(i * n + whole), h, rest);
                    sums[i] = simd.fma(h, c, sums[i]);
                }
            }
        }
        for (y, sum) in y[row..row + COUNT].iter_mut().zip(sums) {
            *y = simd.reduce_add(sum);
        }
    }
}
