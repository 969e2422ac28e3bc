//! `hopper`: chunks of 64 tokens by warpgroup products, for the head width of Mamba-2 on compute capability 9.0. The
//! contracts stand in `hopper.cu` and `hopper_states.cu`.

use super::operands::{MOST, Operands, unfit};
use super::segments::{self, CHUNK_TOKENS};
use crate::DType;
use crate::cuda::{CudaVariant, Planner, int, slots};
use crate::ssd::SsdProblem;
use device::cuda::{
    Args, BundledArch, ComputeCapability, CudaCapabilities, CudaError, GpuArch, KernelSource,
    Launch,
};

pub(super) const VARIANT: CudaVariant<SsdProblem> = CudaVariant { name: "hopper", why_not, plan };

const SCAN: &[&str] = &[
    include_str!("../../cuda/hopper.cuh"),
    include_str!("../../cuda/storage.cuh"),
    include_str!("decays.cuh"),
    include_str!("hopper_tile.cuh"),
    include_str!("hopper.cu"),
];
const STATES: &[&str] = &[
    include_str!("../../cuda/hopper.cuh"),
    include_str!("../../cuda/storage.cuh"),
    include_str!("decays.cuh"),
    include_str!("hopper_tile.cuh"),
    include_str!("hopper_states.cu"),
];

const HOPPER: ComputeCapability = ComputeCapability::new(9, 0);
/// P, the rows of a warpgroup's product.
const HEAD_DIM: usize = 64;
/// Heads of a block, two a warpgroup.
const HEADS: usize = 4;
const THREADS: u32 = 256;
/// Bytes of 64 rows of 64 columns.
const PANEL: usize = CHUNK_TOKENS * 128;
/// Stages of loads: the scan's take all of the shared memory that its mixing weights leave.
const SCAN_STAGES: usize = 2;
const STATES_STAGES: usize = 4;

fn why_not(problem: &SsdProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute != HOPPER {
        return Some(format!("needs compute capability 9.0, this GPU has {}", here.compute));
    }
    if !matches!(problem.dtype, DType::Bf16 | DType::F16) {
        return Some(format!("needs bf16 or f16 tensors, got {}", problem.dtype));
    }
    if problem.head_dim != HEAD_DIM || ![64, 128].contains(&problem.state_dim) {
        return Some(format!(
            "needs P 64 and N 64 or 128, got P {} and N {}",
            problem.head_dim, problem.state_dim
        ));
    }
    if !problem.heads_per_group().is_multiple_of(HEADS) {
        return Some(format!("needs groups of 4, 8, .. heads, got {}", problem.heads_per_group()));
    }
    if problem.has_z {
        return Some("applies no gate z".to_owned());
    }
    if problem.sequences.count() > MOST {
        return Some(format!("needs up to {MOST} sequences, got {}", problem.sequences.count()));
    }
    unfit(problem, here)
}

/// `SHARED_BYTES` of `hopper_tile.cuh`.
fn shared_bytes(state_dim: usize, stages: usize, states_only: bool) -> u32 {
    let (projections, mixes, decays) = if states_only { (1, 0, 4) } else { (2, HEADS, 8) };
    let stage = (HEADS + projections * state_dim / 64) * PANEL;
    (stages * stage + mixes * PANEL + 2 * HEADS * decays * CHUNK_TOKENS * 4 + 1024) as u32
}

fn scan_source(dtype: DType, state_dim: usize, arch: GpuArch) -> KernelSource {
    KernelSource::new("ssd_hopper", SCAN, arch)
        .define("DTYPE", dtype)
        .define("N", state_dim)
        .define("STAGES", SCAN_STAGES)
        .define("TILE_DECAYS", 1)
}

fn states_source(dtype: DType, state_dim: usize, arch: GpuArch) -> KernelSource {
    KernelSource::new("ssd_hopper_states", STATES, arch)
        .define("DTYPE", dtype)
        .define("N", state_dim)
        .define("STAGES", STATES_STAGES)
        .define("STATES_ONLY", 1)
}

/// N 128, as the models have it.
pub(super) fn bundled() -> Vec<KernelSource> {
    let mut sources = Vec::new();
    for arch in BundledArch::ALL.iter().filter(|arch| arch.compute == HOPPER) {
        for dtype in [DType::Bf16, DType::F16] {
            sources.push(scan_source(dtype, 128, arch.arch()));
            sources.push(states_source(dtype, 128, arch.arch()));
        }
    }
    sources
}

fn plan(problem: &SsdProblem, planner: &mut Planner<'_>) -> Result<(), CudaError> {
    let (dtype, state_dim) = (problem.dtype, problem.state_dim);
    let operands = Operands::new(problem, planner)?;
    let sequences = problem.sequences.count();
    let segments = segments::count(problem, HEADS, planner.here().multiprocessors as usize);
    let head_blocks = (problem.heads / HEADS) as u32;
    let states = if segments > 1 {
        let kernel = planner.kernel(&states_source(dtype, state_dim, planner.arch()))?;
        let grid = [head_blocks, segments as u32 - 1, sequences as u32];
        let launch = Launch::new(grid, THREADS, shared_bytes(state_dim, STATES_STAGES, true));
        Some(segments::plan_states(problem, planner, &operands, (kernel, launch), segments)?)
    } else {
        None
    };
    let kernel = planner.kernel(&scan_source(dtype, state_dim, planner.arch()))?;
    let args = Args::new()
        .buffer(&operands.x)
        .buffer(&operands.dt)
        .buffer(&operands.rate)
        .buffer(&operands.b)
        .buffer(&operands.c)
        .maybe(operands.d.as_deref())
        .maybe(operands.dt_bias.as_deref())
        .maybe(operands.initial_state.as_deref())
        .maybe(operands.cu_seqlens.as_deref())
        .maybe(operands.state_indices.as_deref())
        .maybe(states.as_deref())
        .buffer(&operands.o)
        .buffer(&operands.final_state)
        .i32(operands.tokens)
        .i32(operands.heads)
        .i32(operands.groups)
        .i32(int(segments)?);
    let args = operands.output_settings(args);
    let shared = shared_bytes(state_dim, SCAN_STAGES, false);
    let grid = [head_blocks, segments as u32, sequences as u32];
    planner.launch(kernel, Launch::new(grid, THREADS, shared), args);
    slots::hand_on(planner, &problem.slots, sequences, problem.heads * problem.state_len())
}
