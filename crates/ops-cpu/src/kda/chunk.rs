//! Chunks of tokens: within a chunk the recurrence becomes matrix products, between chunks the state is carried.
//! `crates/ops/src/kda/README.md` has the derivation, with the same names.

mod block;
mod matrix;
mod prefetch;
mod products;
mod scores;
mod walk;

use super::operands::Operands;
use super::parts;
use crate::simd::dispatch;
use device::{Device, Isa};
use ops::kda::KdaProblem;
use ops::{Element, Inputs, TensorMap};

/// Tokens whose scores are computed pair by pair, and the rows of a solved triangle.
const BLOCK: usize = 16;
/// Tokens of a chunk: with more tokens the products with the state are fewer, and the scores within a chunk cost more.
const CHUNK: usize = 32;
/// Sequences up to this length are left to the recurrent variant.
const SHORT: usize = 8;
/// Share of a block's work that does not shrink with its columns: gates, scores, decayed keys and queries.
const FIXED_WORK: f64 = 0.25;

pub(crate) fn why_not(problem: &KdaProblem) -> Option<String> {
    let longest = problem.sequences.longest();
    (longest <= SHORT)
        .then(|| format!("needs a sequence of more than {SHORT} tokens, the longest has {longest}"))
}

/// Runs the variant whose kernel name is `kernel`.
pub(crate) fn run<E: Element>(
    isa: Isa,
    kernel: &str,
    problem: &KdaProblem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let operands = Operands::<E>::read(problem, inputs);
    parts::launch(isa, kernel, device, &operands, FIXED_WORK, outputs, |scratch, part| {
        dispatch(isa, walk::ChunkScan { part, scratch });
    });
}
