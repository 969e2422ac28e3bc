//! `channel_last`: the channels of a token are contiguous, sequences dense or packed. The contract is in `channel_last.cu`.

use super::operands::{Operands, narrow_states, shape_macros, too_old, vector};
use crate::{CudaVariant, Planner, arguments, slots, source};
use device::cuda::{BundledArch, CudaCapabilities, DeviceError, GpuArch, KernelSource, SourcePart};
use ops::DType;
use ops::conv1d::{Conv1dProblem, Layout};

pub(super) const VARIANT: CudaVariant<Conv1dProblem> =
    CudaVariant { name: "channel_last", why_not, plan };

const PARTS: &[SourcePart] = &[source!("../include/storage.cuh"), source!("channel_last.cu")];

/// Segments per block, one warp each.
const WARPS: usize = 4;
/// Tokens per thread in calls of many waves of blocks.
const SEGMENT: usize = 64;
/// Blocks per SM, in tenths, in calls that fit about one wave: a little more than one wave would leave most of the GPU idle at
/// the end. `README.md` has measurements of both.
const ONE_WAVE: usize = 33;
/// Minimum and maximum tokens per segment of such a call.
const SHORTEST: usize = 8;
const LONGEST: usize = 160;

/// Tokens per thread; `strips` is the number of warps per token, over all sequences.
fn segment(tokens: usize, strips: usize, multiprocessors: usize) -> usize {
    let even = (10 * tokens * strips).div_ceil(ONE_WAVE * WARPS * multiprocessors.max(1));
    if even > LONGEST { SEGMENT } else { even.max(SHORTEST) }
}

fn why_not(problem: &Conv1dProblem, here: &CudaCapabilities) -> Option<String> {
    // One token of each channel is the same memory in both layouts.
    let one = problem.sequences.batch_and_tokens().is_some_and(|(_, tokens)| tokens == 1);
    if problem.layout == Layout::ChannelFirst && !one {
        return Some("needs layout=channel_last, or one token".to_owned());
    }
    narrow_states(problem).or(too_old(here))
}

fn source(dtype: DType, width: usize, vector: usize, arch: GpuArch) -> KernelSource {
    shape_macros(KernelSource::new("conv1d_channel_last", PARTS, arch), dtype, width)
        .define("VECTOR", vector)
        .define("WARPS", WARPS)
}

/// The bundled kernels: bf16 and f16, width 4, vectors of 4.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    let of = |dtype: DType| source(dtype, 4, 4, arch.arch());
    [DType::Bf16, DType::F16].map(of).to_vec()
}

arguments! {
    ChannelLast: conv1d_channel_last {
        x: Pointer, weight: Pointer, bias: Nullable, initial_state: Nullable, cu_seqlens: Nullable, state_indices: Nullable,
        state_positions: Nullable, o: Pointer, final_state: Pointer, sequences: i32, tokens: i32, channels: i32, state_len: i32,
        segment: i32, x_row: i32, weight_f32: i32, bias_f32: i32, use_silu: i32,
    }
}

fn plan(problem: &Conv1dProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let vector = vector(problem.channels, problem.dtype).min(4);
    let (tokens, sequences) = (problem.sequences.longest(), problem.sequences.count());
    let channel_blocks = problem.channels.div_ceil(32 * vector);
    let multiprocessors = planner.here().multiprocessors as usize;
    let segment = segment(tokens, channel_blocks * sequences, multiprocessors);
    let kernel = planner.kernel(&source(problem.dtype, problem.width, vector, planner.arch()))?;
    let x_row = planner.row("x", problem.channels)?;
    let operands = Operands::new(problem, planner)?;
    let args = ChannelLast {
        x: &operands.x,
        weight: &operands.weight,
        bias: operands.bias.as_deref(),
        initial_state: operands.initial_state.as_deref(),
        cu_seqlens: operands.cu_seqlens.as_deref(),
        state_indices: operands.state_indices.as_deref(),
        state_positions: operands.state_positions.as_deref(),
        o: &operands.o,
        final_state: &operands.final_state,
        sequences: operands.sequences,
        tokens: operands.tokens,
        channels: operands.channels,
        state_len: operands.state_len,
        segment: segment as i32,
        x_row,
        weight_f32: operands.weight_f32,
        bias_f32: operands.bias_f32,
        use_silu: operands.silu,
    };
    let blocks = channel_blocks * tokens.div_ceil(segment).max(1).div_ceil(WARPS);
    let grid = [blocks as u32, sequences.min(65535) as u32, 1];
    planner.launch(kernel, rows_of_warps(grid, WARPS), args);
    slots::copy_unused(planner, &problem.slots, sequences, problem.channels * problem.state_len)
}

/// A launch with blocks of `warps` warps, numbered by `threadIdx.y`.
pub(super) fn rows_of_warps(grid: [u32; 3], warps: usize) -> device::cuda::Launch {
    device::cuda::Launch { block: [32, warps as u32, 1], ..device::cuda::Launch::new(grid, 32, 0) }
}

#[cfg(test)]
mod tests {
    use super::segment;

    #[test]
    fn segments_fill_one_wave_and_are_short_for_many_waves() {
        // 4352 channels at 4 per thread are 34 warps per token; 132 SMs.
        for (tokens, sequences, expect) in [(8192, 1, 160), (8192, 8, 64), (4096, 1, 80), (1, 1, 8)]
        {
            assert_eq!(segment(tokens, 34 * sequences, 132), expect, "{tokens} {sequences}");
        }
    }
}
