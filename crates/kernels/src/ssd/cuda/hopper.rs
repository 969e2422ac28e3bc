//! `hopper`: chunks of 64 tokens by warpgroup products, for the head width of Mamba-2 on compute capability 9.0. The
//! contracts stand in `hopper.cu` and `hopper_states.cu`.

use super::operands::{MOST, Operands, unfit};
use super::segments::{self, CHUNK_TOKENS};
use crate::DType;
use crate::cuda::{CudaVariant, Planner, int, slots};
use crate::ssd::SsdProblem;
use device::cuda::{
    Args, Buffer, BundledArch, ComputeCapability, CudaCapabilities, CudaError, GpuArch,
    KernelSource, Launch, MapElement, Swizzle, TensorMap, TiledLayout,
};
use std::sync::Arc;

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
/// Heads of a block, one for each warpgroup that multiplies.
const HEADS: usize = 2;
/// Those two warpgroups and the one that loads and makes the mixing weights.
const THREADS: u32 = 384;
/// Bytes of 64 rows of 64 columns.
const PANEL: usize = CHUNK_TOKENS * 128;
/// Stages of loads.
const SCAN_STAGES: usize = 3;
const STATES_STAGES: usize = 5;

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
        return Some(format!(
            "needs an even number of heads in a group, got {}",
            problem.heads_per_group()
        ));
    }
    if problem.has_z {
        return Some("applies no gate z".to_owned());
    }
    if problem.heads == 0 {
        return Some("needs heads".to_owned());
    }
    if problem.sequences.count() > MOST {
        return Some(format!("needs up to {MOST} sequences, got {}", problem.sequences.count()));
    }
    unfit(problem, here)
}

/// `SHARED_BYTES` of `hopper_tile.cuh`.
fn shared_bytes(state_dim: usize, stages: usize, states_only: bool) -> u32 {
    let projections = if states_only { 1 } else { 2 };
    let stage = (HEADS + projections * state_dim / 64) * PANEL;
    // Chunks whose decays are held, arrays of decays, and panels of mixing weights of a chunk.
    let (tables, decays, mixes) = if states_only { (stages, 4, 0) } else { (2, 8, HEADS) };
    let table = mixes * PANEL + HEADS * decays * CHUNK_TOKENS * 4 + 2 * 8;
    (stages * (stage + 8) + tables * table + HEADS * HEAD_DIM * 4 + 1024) as u32
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

/// Describes x, B or C to the copy engine: boxes of 64 columns of one head or group and a chunk's tokens.
fn panel_map(
    problem: &SsdProblem,
    planner: &mut Planner<'_>,
    buffer: &Arc<Buffer>,
    [columns, rows]: [usize; 2],
) -> Result<TensorMap, CudaError> {
    let bytes = (2 * columns * rows) as u64;
    let tokens = problem.sequences.total();
    // The copy engine takes no empty tensor. For one, a row of zeros, of which nothing is used.
    let zeros = if tokens == 0 { Some(planner.zeroed(columns * rows)?) } else { None };
    let layout = TiledLayout {
        element: if problem.dtype == DType::F16 { MapElement::F16 } else { MapElement::Bf16 },
        offset: 0,
        sizes: &[columns as u64, rows as u64, tokens.max(1) as u64],
        strides: &[2 * columns as u64, bytes],
        tile: &[64, 1, CHUNK_TOKENS as u32],
        swizzle: Swizzle::Bytes128,
    };
    planner.tensor_map(zeros.as_ref().unwrap_or(buffer), &layout)
}

fn plan(problem: &SsdProblem, planner: &mut Planner<'_>) -> Result<(), CudaError> {
    let (dtype, state_dim) = (problem.dtype, problem.state_dim);
    let operands = Operands::new(problem, planner)?;
    let sequences = problem.sequences.count();
    let segments = segments::count(problem, HEADS, planner.here().multiprocessors as usize);
    let head_blocks = (problem.heads / HEADS) as u32;
    let x = panel_map(problem, planner, &operands.x, [HEAD_DIM, problem.heads])?;
    let b = panel_map(problem, planner, &operands.b, [state_dim, problem.groups])?;
    let c = panel_map(problem, planner, &operands.c, [state_dim, problem.groups])?;
    let states = if segments > 1 {
        let kernel = planner.kernel(&states_source(dtype, state_dim, planner.arch()))?;
        let grid = [head_blocks, segments as u32 - 1, sequences as u32];
        let launch = Launch::new(grid, THREADS, shared_bytes(state_dim, STATES_STAGES, true));
        let args = Args::new()
            .map(&x)
            .map(&b)
            .buffer(&operands.dt)
            .buffer(&operands.rate)
            .maybe(operands.dt_bias.as_deref());
        let states = (kernel, launch, args);
        Some(segments::plan_states(problem, planner, &operands, states, segments)?)
    } else {
        None
    };
    let kernel = planner.kernel(&scan_source(dtype, state_dim, planner.arch()))?;
    let args = Args::new()
        .map(&x)
        .map(&b)
        .map(&c)
        .buffer(&operands.dt)
        .buffer(&operands.rate)
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
    let launch = Launch { overlaps: segments > 1, ..Launch::new(grid, THREADS, shared) };
    planner.launch(kernel, launch, args);
    slots::hand_on(planner, &problem.slots, sequences, problem.heads * problem.state_len())
}
