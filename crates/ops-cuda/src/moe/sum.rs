//! The launch that sums over a token's experts. The contract is in `sum.cu`.

use super::operands::{AMPERE, STORAGE, overlapping};
use crate::{Planner, arguments, int, source};
use device::cuda::{Args, Buffer, DeviceError, GpuArch, KernelSource, Launch, SourcePart};
use ops::DType;
use ops::moe::MoeProblem;

const PARTS: &[SourcePart] = &[AMPERE, STORAGE, source!("sum.cu")];

/// Threads of a block, and elements of each.
const THREADS: usize = 256;
const OF_THREAD: usize = 8;

pub(super) fn source(dtype: DType, arch: &GpuArch) -> KernelSource {
    KernelSource::new("moe_sum", PARTS, arch.clone()).define("DTYPE", dtype)
}

arguments! {
    Sum: moe_sum {
        made: Pointer, weights: Pointer, places: Pointer, residual: Nullable, o: Pointer, tokens: i32, hidden: i32, top_k: i32,
        scale: f32, bias: Nullable, chosen: Pointer, first_held: i32,
    }
}

/// Adds the launch over `made`, `[pairs as listed, H]`; `places` has the position of each pair in the list.
pub(super) fn plan(
    problem: &MoeProblem,
    planner: &mut Planner<'_>,
    made: &Buffer,
    places: &Buffer,
) -> Result<(), DeviceError> {
    let kernel = planner.kernel(&source(problem.dtype, &planner.arch()))?;
    let args = Args::from(Sum {
        made,
        weights: &*planner.output("weights")?,
        places,
        residual: planner.input("residual")?.as_deref(),
        o: &*planner.output("o")?,
        tokens: int(problem.tokens)?,
        hidden: int(problem.hidden)?,
        top_k: int(problem.of_token())?,
        scale: problem.scale as f32,
        bias: planner.input("down_bias")?.as_deref(),
        chosen: &*planner.output("chosen")?,
        first_held: int(problem.first)?,
    });
    let blocks = (problem.tokens * problem.hidden).div_ceil(THREADS * OF_THREAD) as u32;
    let launch = overlapping(planner, Launch::new([blocks, 1, 1], THREADS as u32, 0));
    planner.launch(kernel, launch, args);
    Ok(())
}
