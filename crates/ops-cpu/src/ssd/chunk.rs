//! Chunked scan: matrix products within a chunk, and a float32 state carried between chunks. One
//! launch computes the scores C B^T of every chunk, shared by the heads of a group; a second runs the chunks of each
//! sequence and head in order.
#![allow(unsafe_code)] // Blocks write disjoint parts of the scores, of o and of the states.

mod head;
mod scores;

use super::operands::{Operands, with_final_states};
use device::{Device, Isa, SharedMut};
use ops::ssd::SsdProblem;
use ops::{Element, Inputs, TensorMap, elements_mut};
use std::ops::Range;

/// Tokens per chunk. More tokens increase the work within a chunk and decrease the cost of packing the state; 48 is
/// fastest in measurements and fills register tiles of 12, 8 and 6 rows.
const CHUNK: usize = 48;
/// Sequences up to this length are one chunk: packing the state again between chunks costs more than the extra work of a
/// slightly longer chunk.
const ONE_CHUNK: usize = 64;
/// The longest chunk worth its quadratic work; a larger `chunk_size` is reduced, which changes only rounding.
const LONGEST_CHUNK: usize = 256;
/// Sequences shorter than this are measured faster token by token.
const FEWEST_TOKENS: usize = 32;
/// Blocks that let 16 cores share a call.
const ENOUGH_BLOCKS: usize = 16;
/// Columns of a head are split only in whole panels of the matrix products.
const PANEL: usize = 32;

/// Refuses batches of only short sequences, as in decoding, unless the caller chose a chunk size, for example to check
/// this scheme.
pub(super) fn why_not(problem: &SsdProblem) -> Option<String> {
    let longest = problem.sequences.longest();
    (longest < FEWEST_TOKENS && problem.chunk_size.is_none()).then(|| {
        format!(
            "needs a sequence of {FEWEST_TOKENS} tokens or more, or a chunk_size; the longest has {longest}"
        )
    })
}

/// How a call is split. It depends only on the problem, so results do not depend on the number of threads.
struct Plan {
    chunk: usize,
    /// Columns of a head (of its P) that one block carries through the sequence.
    columns: usize,
    splits: usize,
    /// Tokens of every chunk of every sequence that is not padding.
    chunks: Vec<Range<usize>>,
}

impl Plan {
    fn of(problem: &SsdProblem) -> Self {
        let chunk = match problem.sequences.longest() {
            longest @ 1..=ONE_CHUNK => longest,
            _ => CHUNK,
        };
        let chunk = problem.chunk_size.unwrap_or(chunk).min(LONGEST_CHUNK);
        let units = (problem.sequences.count() * problem.heads).max(1);
        let fair = problem.head_dim.div_ceil(ENOUGH_BLOCKS.div_ceil(units));
        let columns = fair.next_multiple_of(PANEL).min(problem.head_dim).max(1);
        let real = problem.slots.real(&problem.sequences);
        let chunks = real.flat_map(|tokens| cut(tokens, chunk));
        Self {
            chunk,
            columns,
            splits: problem.head_dim.div_ceil(columns),
            chunks: chunks.collect(),
        }
    }
}

/// Consecutive parts of `tokens`, each of `chunk` tokens but the last.
fn cut(tokens: Range<usize>, chunk: usize) -> impl Iterator<Item = Range<usize>> {
    let end = tokens.end;
    tokens.step_by(chunk).map(move |start| start..(start + chunk).min(end))
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
    let plan = Plan::of(problem);
    let (heads, groups) = (problem.heads, problem.groups);

    // Scores of the chunk that starts at token t, group g: rows of `chunk` from (t G + g len) chunk on.
    let mut scores = vec![0f32; problem.sequences.total() * groups * plan.chunk];
    {
        let shared = SharedMut::new(&mut scores);
        device.launch(
            kernel,
            plan.chunks.len() * groups,
            scores::Scratch::default,
            |scratch, block| {
                let tokens = plan.chunks[block / groups].clone();
                let group = block % groups;
                let range = scores::range(problem, plan.chunk, &tokens, group);
                // SAFETY: ranges of different chunks and groups do not overlap.
                let out = unsafe { shared.slice(range) };
                scores::compute(isa, &operands, tokens, group, plan.chunk, scratch, out);
            },
        );
    }

    let mut o = outputs.remove("o");
    with_final_states(outputs, |states| {
        let states = SharedMut::new(states);
        let o = SharedMut::new(elements_mut::<E>(o.as_mut()));
        let untouched = problem.slots.untouched();
        let blocks = problem.sequences.count() * heads * plan.splits;
        let grid = blocks + untouched.len() * heads;
        device.launch(kernel, grid, head::Scratch::default, |scratch, block| {
            if let Some(rest) = block.checked_sub(blocks) {
                // SAFETY: no sequence has this slot, and this block alone has this head of it.
                return unsafe {
                    operands.copy_unused_slot(untouched[rest / heads], rest % heads, &states)
                };
            }
            let first = block % plan.splits * plan.columns;
            let columns = first..(first + plan.columns).min(problem.head_dim);
            head::run(
                isa,
                head::Block {
                    operands: &operands,
                    scores: &scores,
                    chunk: plan.chunk,
                    sequence: block / plan.splits / heads,
                    head: block / plan.splits % heads,
                    columns,
                    o: &o,
                    states: &states,
                    scratch,
                },
            );
        });
    });
    outputs.extend(o.map(|o| ("o".to_owned(), o)));
}
