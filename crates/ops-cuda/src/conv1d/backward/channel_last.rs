//! `channel_last` of the gradient: the channels of a token are contiguous, sequences dense or packed. The contract is in `channel_last.cu`.

use super::{Operands, Params, finish, partial_floats, too_old};
use crate::conv1d::channel_last::rows_of_warps;
use crate::conv1d::operands::vector;
use crate::{CudaVariant, Planner, arguments, int, source};
use device::cuda::{CudaCapabilities, DeviceError, GpuArch, KernelSource, SourcePart};
use ops::GradientProblem;
use ops::conv1d::{Conv1dProblem, Layout};

pub(super) const VARIANT: CudaVariant<GradientProblem<Conv1dProblem>> =
    CudaVariant { name: "channel_last", why_not, plan };

const PARTS: &[SourcePart] = &[
    source!("../../include/order.cuh"),
    source!("../../include/storage.cuh"),
    source!("sequence.cuh"),
    source!("channel_last.cu"),
];

/// Segments per block, one warp each.
const WARPS: usize = 4;
/// Elements of an access, at most: registers hold the taps, sums and windows of this many channels.
const VECTOR: usize = 4;
/// Minimum tokens per segment: each computes the activation's gradient of up to three more.
const SHORTEST: usize = 16;

fn why_not(problem: &GradientProblem<Conv1dProblem>, here: &CudaCapabilities) -> Option<String> {
    if problem.forward.layout != Layout::ChannelLast {
        return Some("needs layout=channel_last".to_owned());
    }
    too_old(here)
}

/// `has_final` is whether the gradient of the final state is given.
pub(super) fn source(
    params: Params,
    vector: usize,
    has_final: bool,
    arch: GpuArch,
) -> KernelSource {
    params
        .source("conv1d_backward_channel_last", PARTS, arch)
        .define("VECTOR", vector)
        .define("FINAL", u8::from(has_final))
        .define("WARPS", WARPS)
        // dx is not read again.
        .define("STORE_GLOBAL", "\"st.global.cs\"")
}

/// Tokens per segment, so that all blocks are resident at once; `strips` is the number of warps per token.
fn segment(tokens: usize, strips: usize, resident: usize) -> usize {
    let parts = (resident / strips.max(1)).max(1);
    tokens.div_ceil(parts * WARPS).max(SHORTEST)
}

arguments! {
    ChannelLast: conv1d_backward_channel_last {
        x: Pointer, weight: Pointer, bias: Nullable, initial_state: Nullable, cu_seqlens: Nullable, d_o: Pointer, dfinal: Nullable,
        dx: Pointer, partial: Pointer, sequences: i32, tokens: i32, total: i32, channels: i32, state_len: i32, segment: i32,
        weight_f32: i32, bias_f32: i32, state_f32: i32,
    }
}

fn plan(
    problem: &GradientProblem<Conv1dProblem>,
    planner: &mut Planner<'_>,
) -> Result<(), DeviceError> {
    let problem = &problem.forward;
    let vector = vector(problem.channels, problem.dtype).min(VECTOR);
    let has_final = planner.dtype("dfinal_state").is_some();
    let source = source(Params::of(problem), vector, has_final, planner.arch());
    let kernel = planner.kernel(&source)?;
    let (total, strips) = (problem.sequences.total(), problem.channels.div_ceil(32 * vector));
    let resident = kernel.blocks_per_multiprocessor(32 * WARPS as u32, 0)?.max(1);
    let resident = (resident * planner.here().multiprocessors) as usize;
    let segment = segment(total, strips, resident);
    let parts = total.div_ceil(segment * WARPS);
    let operands = Operands::new(problem, planner)?;
    let partial = planner.scratch(partial_floats(problem, parts))?;
    let args = ChannelLast {
        x: &operands.x,
        weight: &operands.weight,
        bias: operands.bias.as_deref(),
        initial_state: operands.initial_state.as_deref(),
        cu_seqlens: operands.cu_seqlens.as_deref(),
        d_o: &operands.d_o,
        dfinal: operands.dfinal.as_deref(),
        dx: &operands.dx,
        partial: &partial,
        sequences: operands.sequences,
        tokens: operands.tokens,
        total: int(total)?,
        channels: operands.channels,
        state_len: operands.state_len,
        segment: int(segment)?,
        weight_f32: operands.weight_f32,
        bias_f32: operands.bias_f32,
        state_f32: operands.state_f32,
    };
    planner.launch(kernel, rows_of_warps([(strips * parts) as u32, 1, 1], WARPS), args);
    finish(problem, &operands, &partial, parts, planner)
}

#[cfg(test)]
mod tests {
    use super::segment;

    #[test]
    fn segments_fill_one_wave() {
        // 4352 channels at 4 per thread are 34 warps per token; 132 SMs of 4 blocks.
        for (tokens, strips, expect) in
            [(8192, 34, 137), (65536, 34, 1093), (1, 34, 16), (8192, 1, 16), (8192, 600, 2048)]
        {
            assert_eq!(segment(tokens, strips, 132 * 4), expect, "{tokens} {strips}");
        }
    }
}
