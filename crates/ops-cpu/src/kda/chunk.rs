//! The chunked form: matrix products within a chunk of tokens, and a state that is passed from chunk to chunk.
//! `crates/ops/src/kda/README.md` has the derivation.

mod block;
mod head;
mod matrix;
mod prefetch;
mod products;
mod scores;

use super::operands::Operands;
use super::parts;
use crate::simd::dispatch;
use device::{Device, Isa};
use ops::kda::KdaProblem;
use ops::{Element, Inputs, TensorMap};

/// Tokens whose scores are computed pair by pair, and the rows of a triangular system.
const BLOCK: usize = 16;
/// Tokens of a chunk: longer chunks need fewer products with the state, but their scores cost more.
const CHUNK: usize = 32;
/// Sequences up to this length are computed faster by the recurrent variant.
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
        dispatch(isa, head::ChunkScan { part, scratch });
    });
}
