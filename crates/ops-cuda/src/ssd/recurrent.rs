//! `recurrent`: token by token, any shape and storage type; the decode step. The contract is in `recurrent.cu`.

use super::operands::{MAX_GRID_YZ, Operands, Settings, unfit};
use crate::{CudaVariant, Planner, arguments, slots, source};
use device::cuda::{
    BundledArch, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, SourcePart,
};
use ops::DType;
use ops::ssd::SsdProblem;

pub(super) const VARIANT: CudaVariant<SsdProblem> =
    CudaVariant { name: "recurrent", why_not, plan };

const PARTS: &[SourcePart] = &[
    source!("../include/order.cuh"),
    source!("../include/storage.cuh"),
    source!("state.cuh"),
    source!("recurrent.cu"),
];

const WARPS: usize = 4;
/// Maximum number of values of the state in a lane.
const PER_LANE: usize = 32;
/// Widest state whose rows fit in a lane's registers.
const WIDEST: usize = 512;

/// Mapping of a row of the state to lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    vector: usize,
    lanes: usize,
    rows: usize,
}

impl Tile {
    /// Vectors of at most `most` values: 16 bytes of the states, and of B and C.
    fn of(state_dim: usize, most: usize) -> Self {
        let fits = |wide: &usize| *wide <= most && state_dim.is_multiple_of(*wide);
        let vector = [8, 4, 2, 1].into_iter().find(fits).unwrap_or(1);
        let lanes = state_dim.div_ceil(vector).next_power_of_two().min(32);
        let of_row = state_dim.div_ceil(lanes * vector) * vector;
        let rows = [8, 4, 2, 1].into_iter().find(|rows| rows * of_row <= PER_LANE).unwrap_or(1);
        Self { vector, lanes, rows }
    }

    /// Rows of a block.
    fn block_rows(&self) -> usize {
        WARPS * (32 / self.lanes) * self.rows
    }
}

fn why_not(problem: &SsdProblem, here: &CudaCapabilities) -> Option<String> {
    if problem.state_dim > WIDEST {
        return Some(format!("needs N up to {WIDEST}, got {}", problem.state_dim));
    }
    if problem.state_dim == 0 {
        return Some("needs a state of one column or more".to_owned());
    }
    unfit(problem, here)
}

/// Resident blocks per SM that the kernel must allow, which limits its registers. With one token nothing is
/// prefetched, which takes fewer registers.
fn resident(state_dim: usize, one_token: bool) -> usize {
    match (state_dim, one_token) {
        (..=256, true) => 5,
        (..=256, false) => 3,
        _ => 2,
    }
}

/// Types of the large tensors and of the states.
type Types = (DType, DType);

/// `one_token`: no sequence of the call is longer than one token.
fn source(
    (dtype, states): Types,
    (state_dim, tile): (usize, Tile),
    one_token: bool,
    arch: GpuArch,
) -> KernelSource {
    // For 12.x the compiler needs a few registers more than five resident blocks leave, and would spill them.
    let most = if arch.as_str().starts_with("sm_12") { 4 } else { usize::MAX };
    KernelSource::new("ssd_recurrent", PARTS, arch)
        .define("DTYPE", dtype)
        .define("STATE_BF16", u8::from(states == DType::Bf16))
        .define("N", state_dim)
        .define("VECTOR", tile.vector)
        .define("LANES", tile.lanes)
        .define("ROWS", tile.rows)
        .define("WARPS", WARPS)
        .define("ONE_TOKEN", u8::from(one_token))
        .define("BLOCKS_PER_SM", resident(state_dim, one_token).min(most))
}

/// Maximum number of values of a vector: 16 bytes of the states and of the inputs.
fn widest(states: DType) -> usize {
    if states == DType::Bf16 { 8 } else { 4 }
}

/// The state width of the models, as they are stored.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    let of = |states| {
        let tile = (128, Tile::of(128, widest(states)));
        [true, false].map(|one_token| source((DType::Bf16, states), tile, one_token, arch.arch()))
    };
    [DType::F32, DType::Bf16].into_iter().flat_map(of).collect()
}

arguments! {
    SsdRecurrent: ssd_recurrent {
        x: Pointer, dt: Pointer, rate: Pointer, b: Pointer, c: Pointer, d: Nullable, z: Nullable, dt_bias: Nullable,
        initial_state: Nullable, cu_seqlens: Nullable, state_indices: Nullable, o: Pointer, final_state: Pointer, sequences: i32,
        tokens: i32, heads: i32, groups: i32, head_dim: i32, x_row: i32, dt_row: i32, b_row: i32, c_row: i32, z_row: i32,
        settings: (Settings),
        ahead: i32,
    }
}

fn plan(problem: &SsdProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let one_token = problem.sequences.longest() <= 1;
    let operands = Operands::new(problem, planner)?;
    let types = (problem.dtype, problem.state_dtype);
    // Whether tokens of B and C are aligned to whole vectors.
    let whole = [operands.strides.b, operands.strides.c].iter().all(|stride| stride % 8 == 0);
    let tile = Tile::of(problem.state_dim, if whole { widest(problem.state_dtype) } else { 4 });
    let source = source(types, (problem.state_dim, tile), one_token, planner.arch());
    let kernel = planner.kernel(&source)?;
    let sequences = problem.sequences.count();
    let blocks = problem.head_dim.div_ceil(tile.block_rows());
    let at_once = resident(problem.state_dim, one_token) * planner.here().multiprocessors as usize;
    // With more than one wave of blocks, each prefetches into L2 the state rows of the block half a wave later.
    let more = one_token && blocks * problem.heads * sequences > at_once;
    let args = SsdRecurrent {
        x: &operands.x,
        dt: &operands.dt,
        rate: &operands.rate,
        b: &operands.b,
        c: &operands.c,
        d: operands.d.as_deref(),
        z: operands.z.as_deref(),
        dt_bias: operands.dt_bias.as_deref(),
        initial_state: operands.initial_state.as_deref(),
        cu_seqlens: operands.cu_seqlens.as_deref(),
        state_indices: operands.state_indices.as_deref(),
        o: &operands.o,
        final_state: &operands.final_state,
        sequences: operands.sequences,
        tokens: operands.tokens,
        heads: operands.heads,
        groups: operands.groups,
        head_dim: operands.head_dim,
        x_row: operands.strides.x,
        dt_row: operands.strides.dt,
        b_row: operands.strides.b,
        c_row: operands.strides.c,
        z_row: operands.strides.z,
        settings: operands.settings(),
        ahead: if more { at_once as i32 / 2 } else { 0 },
    };
    let grid = [blocks as u32, operands.heads as u32, sequences.min(MAX_GRID_YZ) as u32];
    let launch = planner.overlapping(Launch::new(grid, 32 * WARPS as u32, 0));
    planner.launch(kernel, launch, args);
    slots::copy_unused(planner, &problem.slots, sequences, problem.heads * problem.state_len())
}

#[cfg(test)]
mod tests {
    use super::Tile;

    #[test]
    fn rows_are_distributed_over_as_many_lanes_as_they_fill() {
        for (state_dim, most, vector, lanes, rows) in [
            (128, 4, 4, 32, 8),
            (256, 4, 4, 32, 4),
            (512, 4, 4, 32, 2),
            (64, 4, 4, 16, 8),
            (16, 4, 4, 4, 8),
            (20, 4, 4, 8, 8),
            (33, 4, 1, 32, 8),
            (34, 4, 2, 32, 8),
            (1, 4, 1, 1, 8),
            // bf16 states.
            (128, 8, 8, 16, 4),
            (256, 8, 8, 32, 4),
            (512, 8, 8, 32, 2),
            (20, 8, 4, 8, 8),
            (33, 8, 1, 32, 8),
        ] {
            assert_eq!(Tile::of(state_dim, most), Tile { vector, lanes, rows }, "{state_dim}");
        }
    }
}
