//! `step`: token by token, any shape and storage type; the decode step. The contract is in `step.cu`.

use super::operands::{MAX_GRID_YZ, Operands, ScanArguments, TokenStrides, unfit};
use crate::{CudaVariant, Planner, arguments, slots, source};
use device::cuda::{
    BundledArch, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, SourcePart,
};
use ops::DType;
use ops::selective_scan::SelectiveScanProblem;

pub(super) const VARIANT: CudaVariant<SelectiveScanProblem> =
    CudaVariant { name: "step", why_not, plan };

const PARTS: &[SourcePart] = &[
    source!("../include/order.cuh"),
    source!("../include/storage.cuh"),
    source!("update.cuh"),
    source!("step.cu"),
];

const THREADS: usize = 128;
/// Resident blocks of `THREADS` threads per SM, limited by their 40 registers.
const RESIDENT: usize = 12;
/// Maximum number of sequences of a block: the rates are then read for a quarter of them, and with more the last wave would be
/// small.
const TAKEN: usize = 4;

fn why_not(problem: &SelectiveScanProblem, here: &CudaCapabilities) -> Option<String> {
    unfit(problem, here)
}

/// Lanes of a channel, each with vectors of `vector` states.
fn lanes(state_dim: usize, vector: usize) -> usize {
    state_dim.div_ceil(vector).next_power_of_two().min(32)
}

/// `one_token`: no sequence of the call is longer than one token.
fn source(
    dtype: DType,
    (state_dim, vector): (usize, usize),
    one_token: bool,
    arch: GpuArch,
) -> KernelSource {
    KernelSource::new("selective_scan_step", PARTS, arch)
        .define("DTYPE", dtype)
        .define("N", state_dim)
        .define("VECTOR", vector)
        .define("LANES", lanes(state_dim, vector))
        .define("THREADS", THREADS)
        .define("ONE_TOKEN", u8::from(one_token))
}

/// The state width of the models, as they are stored.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    [true, false].map(|one_token| source(DType::Bf16, (16, 4), one_token, arch.arch())).to_vec()
}

/// Sequences of a block such that one wave of blocks covers all of them.
fn taken(blocks: usize, sequences: usize, multiprocessors: usize) -> usize {
    (blocks * sequences / (RESIDENT * multiprocessors).max(1)).clamp(1, TAKEN)
}

arguments! {
    SelectiveScanStep: selective_scan_step { given: (ScanArguments) }
}

fn plan(problem: &SelectiveScanProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let strides = TokenStrides::of(problem, planner)?;
    let vector = strides.state_piece(problem, 4);
    let element = problem.dtype.bytes();
    for name in ["B", "C"] {
        planner.widest(name, vector * element);
    }
    let one_token = problem.sequences.longest() <= 1;
    let source = source(problem.dtype, (problem.state_dim, vector), one_token, planner.arch());
    let kernel = planner.kernel(&source)?;
    let operands = Operands::new(problem, strides, planner)?;
    let sequences = problem.sequences.count();
    let blocks = problem.channels.div_ceil(THREADS / lanes(problem.state_dim, vector));
    let each = taken(blocks, sequences, planner.here().multiprocessors as usize);
    let grid = [blocks as u32, sequences.div_ceil(each).min(MAX_GRID_YZ) as u32, 1];
    let launch = planner.overlapping(Launch::new(grid, THREADS as u32, 0));
    planner.launch(kernel, launch, SelectiveScanStep { given: operands.arguments() });
    slots::copy_unused(planner, &problem.slots, sequences, problem.channels * problem.state_dim)
}

#[cfg(test)]
mod tests {
    use super::{lanes, taken};

    #[test]
    fn states_are_distributed_over_as_many_lanes_as_they_fill() {
        for (state_dim, vector, expect) in
            [(16, 4, 4), (64, 4, 16), (256, 4, 32), (17, 1, 32), (1, 1, 1), (6, 2, 4)]
        {
            assert_eq!(lanes(state_dim, vector), expect, "{state_dim} {vector}");
        }
    }

    #[test]
    fn blocks_take_several_sequences_beyond_one_wave() {
        // 256 blocks are a sequence of 8192 channels.
        for (blocks, sequences, expect) in
            [(256, 1, 1), (256, 8, 1), (256, 32, 4), (256, 256, 4), (0, 0, 1)]
        {
            assert_eq!(taken(blocks, sequences, 132), expect, "{blocks} {sequences}");
        }
    }
}
