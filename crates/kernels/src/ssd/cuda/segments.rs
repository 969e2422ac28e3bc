//! Long sequences that are few are cut into segments: how many, and the launches that make the states between them.

use super::operands::Operands;
use crate::cuda::{Planner, int};
use crate::ssd::SsdProblem;
use device::cuda::{Args, Buffer, CudaError, GpuArch, Kernel, KernelSource, Launch};
use std::sync::Arc;

const COMBINE: &[&str] = &[include_str!("combine.cu")];

/// Tokens of a chunk, `Q` of the kernels.
pub(super) const CHUNK_TOKENS: usize = 64;
/// Chunks that a segment has at least: shorter ones do not pay for reading x twice.
const SEGMENT_CHUNKS: usize = 4;

/// The kernel that chains the states of segments.
pub(super) fn combine_source(arch: GpuArch) -> KernelSource {
    KernelSource::new("ssd_combine", COMBINE, arch)
}

/// Segments that the sequences are cut into, where a block takes `heads` heads: as many as give every multiprocessor a
/// block, where whole sequences would leave half of them idle.
pub(super) fn count(problem: &SsdProblem, heads: usize, multiprocessors: usize) -> usize {
    let blocks = problem.heads / heads * problem.sequences.count();
    count_of(blocks, problem.sequences.longest(), multiprocessors)
}

fn count_of(blocks: usize, longest: usize, multiprocessors: usize) -> usize {
    let chunks = longest.div_ceil(CHUNK_TOKENS);
    (multiprocessors / blocks.max(1)).min(chunks / SEGMENT_CHUNKS).max(1)
}

/// Adds the launch that makes the state each segment leaves by itself, whose arguments from `cu_seqlens` on are those of
/// `states.cu` and the earlier ones `args`, and the one that chains them; gives the states that segments end with.
pub(super) fn plan_states(
    problem: &SsdProblem,
    planner: &mut Planner<'_>,
    operands: &Operands,
    (kernel, launch, args): (Kernel, Launch, Args),
    segments: usize,
) -> Result<Arc<Buffer>, CudaError> {
    let sequences = problem.sequences.count();
    let combine = planner.kernel(&combine_source(planner.arch()))?;
    let rows = sequences * (segments - 1) * problem.heads;
    let states = planner.scratch(rows * problem.state_len())?;
    let decays = planner.scratch(rows)?;
    let args = args
        .maybe(operands.cu_seqlens.as_deref())
        .maybe(operands.state_indices.as_deref())
        .buffer(&states)
        .buffer(&decays)
        .i32(operands.tokens)
        .i32(operands.heads)
        .i32(operands.groups)
        .i32(operands.apart.x)
        .i32(operands.apart.dt)
        .i32(operands.apart.b)
        .i32(int(segments)?);
    let args = operands.state_settings(args);
    planner.launch(kernel, launch, args);
    let args = Args::new()
        .buffer(&states)
        .buffer(&decays)
        .maybe(operands.initial_state.as_deref())
        .maybe(operands.cu_seqlens.as_deref())
        .maybe(operands.state_indices.as_deref())
        .i32(operands.tokens)
        .i32(operands.heads)
        .i32(int(problem.state_len())?)
        .i32(int(segments)?);
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
    fn every_multiprocessor_gets_a_block_where_segments_stay_long() {
        // Blocks of whole sequences, tokens of the longest, segments on 132 multiprocessors.
        for (blocks, longest, expect) in
            [(16, 8192, 8), (128, 8192, 1), (64, 8192, 2), (16, 300, 1), (2, 1000, 4), (0, 0, 1)]
        {
            assert_eq!(count_of(blocks, longest, 132), expect, "{blocks} {longest}");
        }
    }
}
