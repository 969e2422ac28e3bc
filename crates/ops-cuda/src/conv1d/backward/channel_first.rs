//! `channel_first` of the gradient: the tokens of a channel are contiguous. The contract is in `channel_first.cu`.

use super::{Operands, Params, finish, partial_floats, too_old};
use crate::conv1d::channel_last::rows_of_warps;
use crate::conv1d::operands::vector;
use crate::{CudaVariant, Planner, arguments, int, source};
use device::cuda::{CudaCapabilities, DeviceError, GpuArch, KernelSource, SourcePart};
use ops::GradientProblem;
use ops::conv1d::{Conv1dProblem, Layout};

pub(super) const VARIANT: CudaVariant<GradientProblem<Conv1dProblem>> =
    CudaVariant { name: "channel_first", why_not, plan };

const PARTS: &[SourcePart] = &[
    source!("../../include/order.cuh"),
    source!("../../include/storage.cuh"),
    source!("sequence.cuh"),
    source!("channel_first.cu"),
];

/// Channels per block, one warp each.
const WARPS: usize = 4;
/// Tokens of a warp, which are whole strips of all vectors.
const CHUNK: usize = 2048;
/// Grid size in z, at most: warps take several sequences, so that partial sums are few.
const SEQUENCES: usize = 16;
/// Maximum grid size in y.
const MAX_GRID_Y: usize = 65535;

fn why_not(problem: &GradientProblem<Conv1dProblem>, here: &CudaCapabilities) -> Option<String> {
    let problem = &problem.forward;
    if problem.layout != Layout::ChannelFirst {
        return Some("needs layout=channel_first".to_owned());
    }
    let most = WARPS * MAX_GRID_Y;
    if problem.channels > most {
        return Some(format!("needs up to {most} channels, got {}", problem.channels));
    }
    too_old(here)
}

pub(super) fn source(params: Params, vector: usize, arch: GpuArch) -> KernelSource {
    params
        .source("conv1d_backward_channel_first", PARTS, arch)
        .define("VECTOR", vector)
        .define("WARPS", WARPS)
}

arguments! {
    ChannelFirst: conv1d_backward_channel_first {
        x: Pointer, weight: Pointer, bias: Nullable, initial_state: Nullable, d_o: Pointer, dfinal: Nullable, dx: Pointer,
        partial: Pointer, sequences: i32, tokens: i32, channels: i32, state_len: i32, chunk: i32, weight_f32: i32, bias_f32: i32,
        state_f32: i32,
    }
}

fn plan(
    problem: &GradientProblem<Conv1dProblem>,
    planner: &mut Planner<'_>,
) -> Result<(), DeviceError> {
    let problem = &problem.forward;
    let tokens = problem.sequences.longest();
    let vector = vector(tokens, problem.dtype);
    let kernel = planner.kernel(&source(Params::of(problem), vector, planner.arch()))?;
    let (chunks, sequences) = (tokens.div_ceil(CHUNK), problem.sequences.count().min(SEQUENCES));
    let operands = Operands::new(problem, planner)?;
    let parts = chunks * sequences;
    let partial = planner.scratch(partial_floats(problem, parts))?;
    let args = ChannelFirst {
        x: &operands.x,
        weight: &operands.weight,
        bias: operands.bias.as_deref(),
        initial_state: operands.initial_state.as_deref(),
        d_o: &operands.d_o,
        dfinal: operands.dfinal.as_deref(),
        dx: &operands.dx,
        partial: &partial,
        sequences: operands.sequences,
        tokens: operands.tokens,
        channels: operands.channels,
        state_len: operands.state_len,
        chunk: int(CHUNK)?,
        weight_f32: operands.weight_f32,
        bias_f32: operands.bias_f32,
        state_f32: operands.state_f32,
    };
    let grid = [chunks as u32, problem.channels.div_ceil(WARPS) as u32, sequences as u32];
    planner.launch(kernel, rows_of_warps(grid, WARPS), args);
    finish(problem, &operands, &partial, parts, planner)
}
