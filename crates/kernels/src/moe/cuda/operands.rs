//! What the variants' kernels share: parts of their sources, limits and arguments.

use crate::DType;
use crate::cuda::{Planner, arguments, int};
use crate::moe::{MoeProblem, Score};
use device::cuda::{ComputeCapability, CudaCapabilities, CudaError, Launch};

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

/// `UP` of kernels of many tokens on the way up.
pub(super) fn way_up(problem: &MoeProblem) -> u8 {
    if problem.gated { 1 } else { 2 }
}

arguments! {
    /// The sizes of a router, how it scores, and how it weighs.
    pub(super) Weighing { experts: i32, top_k: i32, sigmoid: i32, renormalise: i32, sum_eps: f32, weight_scale: f32 }
}

pub(super) fn weighing<'a>(problem: &MoeProblem) -> Result<Weighing<'a>, CudaError> {
    let (sigmoid, renormalise) = match problem.score {
        Score::SoftmaxOfChosen => (0, 0),
        Score::Sigmoid { renormalise } => (1, i32::from(renormalise)),
    };
    let (experts, top_k) = (int(problem.experts)?, int(problem.top_k)?);
    let (sum_eps, weight_scale) = (problem.sum_eps as f32, problem.weight_scale as f32);
    Ok(Weighing { experts, top_k, sigmoid, renormalise, sum_eps, weight_scale })
}

/// A launch that may start before the one ahead has ended, where GPUs can do that; its kernel waits by itself.
pub(super) fn overlapping(planner: &Planner<'_>, launch: Launch) -> Launch {
    Launch { overlaps: planner.here().compute >= ComputeCapability::new(9, 0), ..launch }
}

/// 32-bit words that elements of the storage type take.
pub(super) fn words(elements: usize) -> usize {
    elements.div_ceil(2)
}
