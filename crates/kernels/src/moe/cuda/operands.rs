//! What the variants' kernels share: parts of their sources, limits and arguments.

use crate::DType;
use crate::cuda::{Planner, int};
use crate::moe::{MoeProblem, Score};
use device::cuda::{Args, ComputeCapability, CudaCapabilities, CudaError, Launch};

pub(super) const AMPERE: &str = include_str!("../../cuda/ampere.cuh");
pub(super) const STORAGE: &str = include_str!("../../cuda/storage.cuh");
pub(super) const CHOOSE: &str = include_str!("choose.cuh");

pub(super) const HOPPER: ComputeCapability = ComputeCapability::new(9, 0);

/// `MOST_EXPERTS` and `MOST_CHOSEN` of `choose.cuh`.
const MOST_EXPERTS: usize = 512;
const MOST_CHOSEN: usize = 32;

/// What no kernel here takes.
pub(super) fn why_not(problem: &MoeProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    if !matches!(problem.dtype, DType::Bf16 | DType::F16) {
        return Some(format!("needs bf16 or f16 tensors, got {}", problem.dtype));
    }
    // Rows are read 16 bytes at a time.
    for (name, channels) in [("H", problem.hidden), ("I", problem.intermediate)] {
        if channels == 0 || !channels.is_multiple_of(8) {
            return Some(format!("needs {name} a multiple of 8 from 8 on, got {channels}"));
        }
    }
    for (name, given, most) in
        [("experts", problem.experts, MOST_EXPERTS), ("top_k", problem.top_k, MOST_CHOSEN)]
    {
        if given > most {
            return Some(format!("takes up to {most} {name}, got {given}"));
        }
    }
    None
}

/// Whether a router weighs by sigmoids, and whether it divides them by their sum.
fn score(problem: &MoeProblem) -> [i32; 2] {
    match problem.score {
        Score::SoftmaxOfChosen => [0, 0],
        Score::Sigmoid { renormalise } => [1, i32::from(renormalise)],
    }
}

/// The sizes of a router and how it scores, as kernels take them that choose: experts, top_k, sigmoid.
pub(super) fn router(args: Args, problem: &MoeProblem) -> Result<Args, CudaError> {
    let [sigmoid, _] = score(problem);
    Ok(args.i32(int(problem.experts)?).i32(int(problem.top_k)?).i32(sigmoid))
}

/// The same for those that weigh as well: renormalise and weight_scale behind.
pub(super) fn weighing_router(args: Args, problem: &MoeProblem) -> Result<Args, CudaError> {
    let [_, renormalise] = score(problem);
    Ok(router(args, problem)?.i32(renormalise).f32(problem.weight_scale as f32))
}

/// A launch that may start before the one ahead has ended, where GPUs can do that; its kernel waits by itself.
pub(super) fn overlapping(planner: &Planner<'_>, launch: Launch) -> Launch {
    Launch { overlaps: planner.here().compute >= ComputeCapability::new(9, 0), ..launch }
}

/// 32-bit words that elements of the storage type take.
pub(super) fn words(elements: usize) -> usize {
    elements.div_ceil(2)
}
