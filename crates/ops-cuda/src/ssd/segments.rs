//! Splits long sequences into segments if there are few sequences: the number of segments, and the launches that
//! compute the states between them.

use super::operands::Operands;
use crate::{Planner, arguments, int, source};
use device::cuda::{Buffer, DeviceError, GpuArch, Kernel, KernelSource, Launch, SourcePart};
use ops::DType;
use ops::ssd::SsdProblem;
use std::sync::Arc;

const COMBINE: &[SourcePart] = &[source!("state.cuh"), source!("combine.cu")];

/// Tokens of a chunk, `Q` of the kernels.
pub(super) const CHUNK_TOKENS: usize = 64;
/// Minimum number of chunks of a segment: shorter ones do not pay for reading x twice.
const SEGMENT_CHUNKS: usize = 2;

/// The kernel that propagates states across segments.
pub(super) fn combine_source(states: DType, arch: GpuArch) -> KernelSource {
    let narrow = u8::from(states == DType::Bf16);
    KernelSource::new("ssd_combine", COMBINE, arch).define("STATE_BF16", narrow)
}

/// Number of segments per sequence if a block takes `heads` heads: enough to give every SM a block when whole
/// sequences would leave half of the SMs idle.
pub(super) fn count(problem: &SsdProblem, heads: usize, multiprocessors: usize) -> usize {
    let blocks = problem.heads / heads * problem.sequences.count();
    count_of(blocks, problem.sequences.longest(), multiprocessors)
}

fn count_of(blocks: usize, longest: usize, multiprocessors: usize) -> usize {
    let chunks = longest.div_ceil(CHUNK_TOKENS);
    (multiprocessors / blocks.max(1)).min(chunks / SEGMENT_CHUNKS).max(1)
}

arguments! {
    SsdStates: ssd_states {
        x: Pointer, dt: Pointer, rate: Pointer, b: Pointer, dt_bias: Nullable, cu_seqlens: Nullable, state_indices: Nullable,
        states: Pointer, decays: Pointer, tokens: i32, heads: i32, groups: i32, x_row: i32, dt_row: i32, b_row: i32,
        segments: i32, dt_f32: i32, rate_f32: i32, bias_f32: i32, softplus: i32, dt_min: f32, dt_max: f32,
    }
}

arguments! {
    SsdCombine: ssd_combine {
        states: Pointer, decays: Pointer, initial_state: Nullable, cu_seqlens: Nullable, state_indices: Nullable, tokens: i32,
        heads: i32, size: i32, segments: i32,
    }
}

/// Adds the launch that computes the state of each segment from zero and the one that propagates states across
/// segments; returns the segments' final states.
pub(super) fn plan_states(
    problem: &SsdProblem,
    planner: &mut Planner<'_>,
    operands: &Operands,
    (kernel, launch): (Kernel, Launch),
    segments: usize,
) -> Result<Arc<Buffer>, DeviceError> {
    let sequences = problem.sequences.count();
    let combine = planner.kernel(&combine_source(problem.state_dtype, planner.arch()))?;
    let rows = sequences * (segments - 1) * problem.heads;
    let states = planner.scratch(rows * problem.state_len())?;
    let decays = planner.scratch(rows)?;
    let args = SsdStates {
        x: &operands.x,
        dt: &operands.dt,
        rate: &operands.rate,
        b: &operands.b,
        dt_bias: operands.dt_bias.as_deref(),
        cu_seqlens: operands.cu_seqlens.as_deref(),
        state_indices: operands.state_indices.as_deref(),
        states: &states,
        decays: &decays,
        tokens: operands.tokens,
        heads: operands.heads,
        groups: operands.groups,
        x_row: operands.strides.x,
        dt_row: operands.strides.dt,
        b_row: operands.strides.b,
        segments: int(segments)?,
        dt_f32: operands.dt_f32,
        rate_f32: operands.rate_f32,
        bias_f32: operands.bias_f32,
        softplus: operands.softplus,
        dt_min: operands.dt_min,
        dt_max: operands.dt_max,
    };
    planner.launch(kernel, launch, args);
    let args = SsdCombine {
        states: &states,
        decays: &decays,
        initial_state: operands.initial_state.as_deref(),
        cu_seqlens: operands.cu_seqlens.as_deref(),
        state_indices: operands.state_indices.as_deref(),
        tokens: operands.tokens,
        heads: operands.heads,
        size: int(problem.state_len())?,
        segments: int(segments)?,
    };
    let blocks = problem.state_len().div_ceil(4 * 256) as u32;
    let grid = [blocks, problem.heads as u32, sequences as u32];
    let launch = Launch { overlaps: true, ..Launch::new(grid, 256, 0) };
    planner.launch(combine, launch, args);
    Ok(states)
}

#[cfg(test)]
mod tests {
    use super::count_of;

    #[test]
    fn every_sm_gets_a_block_while_segments_stay_long() {
        // Blocks of whole sequences, tokens of the longest, segments on 132 SMs.
        for (blocks, longest, expect) in [
            (16, 8192, 8),
            (128, 8192, 1),
            (64, 8192, 2),
            (16, 250, 2),
            (16, 120, 1),
            (2, 1000, 8),
            (0, 0, 1),
        ] {
            assert_eq!(count_of(blocks, longest, 132), expect, "{blocks} {longest}");
        }
    }
}
