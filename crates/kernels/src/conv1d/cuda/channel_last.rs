//! `channel_last`: tokens a row of channels apart, dense or packed. The contract stands in `channel_last.cu`.

use super::operands::{Operands, shape_macros, too_old, vector};
use crate::DType;
use crate::conv1d::{Conv1dProblem, Layout};
use crate::cuda::{CudaVariant, Planner, slots};
use device::cuda::{BundledArch, CudaCapabilities, CudaError, GpuArch, KernelSource};

pub(super) const VARIANT: CudaVariant<Conv1dProblem> =
    CudaVariant { name: "channel_last", why_not, plan };

const PARTS: &[&str] = &[include_str!("../../cuda/storage.cuh"), include_str!("channel_last.cu")];

/// Segments of a block, a warp each.
const WARPS: usize = 4;
/// Tokens that a thread walks, where there are so many: measured in `README.md`.
const SEGMENT: usize = 64;

fn why_not(problem: &Conv1dProblem, here: &CudaCapabilities) -> Option<String> {
    // One token of each channel is the same memory in both layouts.
    let one = problem.sequences.batch_and_tokens().is_some_and(|(_, tokens)| tokens == 1);
    if problem.layout == Layout::ChannelFirst && !one {
        return Some("needs layout=channel_last, or one token".to_owned());
    }
    too_old(here)
}

fn source(dtype: DType, width: usize, vector: usize, arch: GpuArch) -> KernelSource {
    shape_macros(KernelSource::new("conv1d_channel_last", PARTS, arch), dtype, width)
        .define("VECTOR", vector)
        .define("WARPS", WARPS)
}

/// Width 4, whole vectors.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    let of = |dtype: DType| source(dtype, 4, 4, arch.arch());
    [DType::Bf16, DType::F16].map(of).to_vec()
}

fn plan(problem: &Conv1dProblem, planner: &mut Planner<'_>) -> Result<(), CudaError> {
    let vector = vector(problem.channels, problem.dtype).min(4);
    let kernel = planner.kernel(&source(problem.dtype, problem.width, vector, planner.arch()))?;
    let operands = Operands::new(problem, planner)?;
    let args = operands
        .first_args()
        .maybe(operands.cu_seqlens.as_deref())
        .maybe(operands.state_indices.as_deref())
        .maybe(operands.state_positions.as_deref())
        .buffer(&operands.o)
        .buffer(&operands.final_state)
        .i32(operands.sequences)
        .i32(operands.tokens)
        .i32(operands.channels)
        .i32(operands.state_len)
        .i32(SEGMENT as i32);
    let args = operands.last_args(args);
    let segments = problem.sequences.longest().div_ceil(SEGMENT).max(1);
    let blocks = problem.channels.div_ceil(32 * vector) * segments.div_ceil(WARPS);
    let sequences = problem.sequences.count();
    let grid = [blocks as u32, sequences.min(65535) as u32, 1];
    planner.launch(kernel, rows_of_warps(grid, WARPS), args);
    slots::hand_on(planner, &problem.slots, sequences, problem.channels * problem.state_len)
}

/// A launch with blocks of `warps` warps, which the kernels of this op know by `threadIdx.y`.
pub(super) fn rows_of_warps(grid: [u32; 3], warps: usize) -> device::cuda::Launch {
    device::cuda::Launch { block: [32, warps as u32, 1], ..device::cuda::Launch::new(grid, 32, 0) }
}
