//! The launch that sums over a token's experts. The contract stands in `sum.cu`.

use super::operands::{AMPERE, STORAGE, overlapping};
use crate::DType;
use crate::cuda::{Planner, int};
use crate::moe::MoeProblem;
use device::cuda::{Args, Buffer, CudaError, GpuArch, KernelSource, Launch};

const PARTS: &[&str] = &[AMPERE, STORAGE, include_str!("sum.cu")];

/// Threads of a block, and elements of each.
const THREADS: usize = 256;
const OF_THREAD: usize = 8;

pub(super) fn source(dtype: DType, arch: &GpuArch) -> KernelSource {
    KernelSource::new("moe_sum", PARTS, arch.clone()).define("DTYPE", dtype)
}

/// Adds the launch over `made`, `[pairs as listed, H]`, where `places` says where each pair stands.
pub(super) fn plan(
    problem: &MoeProblem,
    planner: &mut Planner<'_>,
    made: &Buffer,
    places: &Buffer,
) -> Result<(), CudaError> {
    let kernel = planner.kernel(&source(problem.dtype, &planner.arch()))?;
    let args = Args::new()
        .buffer(made)
        .buffer(&*planner.output("weights")?)
        .buffer(places)
        .maybe(planner.input("residual")?.as_deref())
        .buffer(&*planner.output("o")?)
        .i32(int(problem.tokens)?)
        .i32(int(problem.hidden)?)
        .i32(int(problem.top_k)?)
        .f32(problem.scale as f32);
    let blocks = (problem.tokens * problem.hidden).div_ceil(THREADS * OF_THREAD) as u32;
    let launch = overlapping(planner, Launch::new([blocks, 1, 1], THREADS as u32, 0));
    planner.launch(kernel, launch, args);
    Ok(())
}
