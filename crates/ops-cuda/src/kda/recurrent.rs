//! `recurrent.cuda`: the recurrence token by token with the state in registers, for decode steps and for every shape and
//! type that the chunk kernels do not support. Runs on every GPU from compute capability 8.0 on. The contract is in
//! `recurrent.cu`.

use super::operands::{Gates, Operands, storage_macros, too_many};
use crate::{CudaVariant, Planner, arguments, int, slots, source};
use device::cuda::{
    BundledArch, ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch,
    Part,
};
use ops::kda::{Decays, KdaProblem};
use ops::{ChoiceTable, DType};

pub(super) const VARIANT: CudaVariant<KdaProblem> =
    CudaVariant { name: "recurrent.cuda", why_not, plan };

const PARTS: &[Part] =
    &[source!("../include/ampere.cuh"), source!("gates.cuh"), source!("recurrent.cu")];

/// A larger K would not fit the registers that hold the state.
const LARGEST_KEY_DIM: usize = 512;

/// A row of the tile table.
#[derive(Debug)]
struct Tile {
    /// Maximum K.
    key_dim: usize,
    /// Whether it is only for one token per sequence: without a loop, registers hold more of the state.
    one_token: bool,
    /// Minimum number of blocks of 32 columns per SM for this tile; 0 for no minimum.
    blocks: usize,
    /// Value columns per block if each lane has four of them.
    columns: usize,
    /// Threads per block.
    threads: usize,
    /// Minimum number of resident blocks per SM.
    resident: usize,
}

impl Tile {
    /// Prefetch distance in blocks: a block prefetches into L2 the state of the block this many further on. A quarter of the
    /// resident blocks if the grid has more than are resident, otherwise 0 (no prefetch). Measured in `README.md`.
    fn ahead(&self, grid: &[u32; 3], multiprocessors: u32) -> i32 {
        let at_once = self.resident as u32 * multiprocessors;
        let more = grid.iter().map(|size| u64::from(*size)).product::<u64>() > u64::from(at_once);
        if self.one_token && more { at_once as i32 / 4 } else { 0 }
    }
}

/// The first row that fits is used; measured in `README.md`. With many states, registers hold 192 KiB of states per SM; few states
/// are split among more blocks.
const TILES: &[Tile] = &[
    Tile { key_dim: 128, one_token: true, blocks: 8, columns: 64, threads: 64, resident: 6 },
    Tile { one_token: true, ..ANY },
    ANY,
];

/// The tile for every shape.
const ANY: Tile = Tile {
    key_dim: LARGEST_KEY_DIM,
    one_token: false,
    blocks: 0,
    columns: 32,
    threads: 256,
    resident: 2,
};

pub(super) fn table() -> ChoiceTable {
    let row = |tile: &Tile| {
        let tokens = if tile.one_token { "1" } else { "any" };
        let sizes = [tile.key_dim, tile.blocks, tile.columns, tile.threads];
        let [key_dim, blocks, columns, threads] = sizes.map(|size| size.to_string());
        vec![key_dim, tokens.to_owned(), blocks, columns, threads]
    };
    ChoiceTable {
        title: "tile of recurrent.cuda: the first row that fits",
        columns: &[
            "K up to",
            "tokens up to",
            "blocks of 32 columns per SM from",
            "columns",
            "threads",
        ],
        rows: TILES.iter().map(row).collect(),
    }
}

fn choose(problem: &KdaProblem, multiprocessors: u32) -> Option<&'static Tile> {
    let heads = problem.sequences.count() * problem.value_heads;
    let blocks = heads * problem.value_dim.div_ceil(32) / (multiprocessors as usize).max(1);
    let one_token = problem.sequences.longest() <= 1;
    TILES.iter().find(|tile| {
        problem.key_dim <= tile.key_dim && blocks >= tile.blocks && (one_token || !tile.one_token)
    })
}

fn why_not(problem: &KdaProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    if problem.key_dim > LARGEST_KEY_DIM {
        return Some(format!("needs K up to {LARGEST_KEY_DIM}, got {}", problem.key_dim));
    }
    too_many(problem)
}

/// Columns per lane: the largest of 4, 2 and 1 that divides V, since a row of the state must be whole vectors.
fn vector(value_dim: usize) -> usize {
    [4, 2, 1].into_iter().find(|vector| value_dim.is_multiple_of(*vector)).unwrap_or(1)
}

/// Columns per block: fewer if lanes have fewer columns, at least 8.
fn columns(tile: &Tile, value_dim: usize) -> usize {
    (tile.columns * vector(value_dim) / 4).max(8)
}

fn source(
    decays: Decays,
    dtype: DType,
    (key_dim, value_dim): (usize, usize),
    tile: &Tile,
    arch: GpuArch,
) -> KernelSource {
    // On 12.x the compiler would spill registers with six resident blocks.
    let most = if arch.as_str().starts_with("sm_12") { 4 } else { tile.resident };
    storage_macros(KernelSource::new("kda_recurrent", PARTS, arch), dtype)
        .define("KD", key_dim)
        .define("VD", value_dim)
        .define("COLUMNS", columns(tile, value_dim))
        .define("VECTOR", vector(value_dim))
        .define("THREADS", tile.threads)
        .define("ONE_TOKEN", i32::from(tile.one_token))
        .define("BLOCKS", tile.resident.min(most))
        .define("PER_HEAD", i32::from(decays == Decays::PerHead))
}

/// Common shapes for the bundle: decode steps of few and of many sequences.
pub(super) fn bundled(decays: Decays, arch: &BundledArch) -> Vec<KernelSource> {
    let of = |tile| source(decays, DType::Bf16, (128, 128), tile, arch.arch());
    TILES.iter().map(of).collect()
}

arguments! {
    Recurrent: kda_recurrent {
        q: Pointer, k: Pointer, v: Pointer, g: Pointer, beta: Pointer, a_log: Nullable, dt_bias: Nullable, initial: Nullable,
        o: Pointer, final_state: Pointer, offsets: Nullable, slots: Nullable, tokens: i32, heads: i32, value_heads: i32,
        gates: (Gates), q_row: i32, k_row: i32, v_row: i32,
        beta_row: i32, ahead: i32,
    }
}

fn plan(problem: &KdaProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let Some(tile) = choose(problem, planner.here().multiprocessors) else {
        let what = format!("recurrent.cuda has no tile for K {}", problem.key_dim);
        return Err(DeviceError::Refused { what });
    };
    let dims = (problem.key_dim, problem.value_dim);
    let source = source(problem.decays, problem.dtype, dims, tile, planner.arch());
    let kernel = planner.kernel(&source)?;
    let keys = problem.heads * problem.key_dim;
    let [q_row, k_row, v_row, beta_row] = [
        planner.row("q", keys)?,
        planner.row("k", keys)?,
        planner.row("v", problem.value_heads * problem.value_dim)?,
        planner.row("beta", problem.value_heads)?,
    ];
    let operands = Operands::new(problem, planner)?;
    let grid = [
        problem.value_dim.div_ceil(columns(tile, problem.value_dim)) as u32,
        problem.value_heads as u32,
        problem.sequences.count() as u32,
    ];
    let ahead = tile.ahead(&grid, planner.here().multiprocessors);
    let args = Recurrent {
        q: &operands.q,
        k: &operands.k,
        v: &operands.v,
        g: &operands.g,
        beta: &operands.beta,
        a_log: operands.a_log.as_deref(),
        dt_bias: operands.dt_bias.as_deref(),
        initial: operands.initial.as_deref(),
        o: &operands.o,
        final_state: &operands.final_state,
        offsets: operands.offsets.as_deref(),
        slots: operands.slots.as_deref(),
        tokens: operands.tokens,
        heads: int(problem.heads)?,
        value_heads: int(problem.value_heads)?,
        gates: operands.gates(problem),
        q_row,
        k_row,
        v_row,
        beta_row,
        ahead,
    };
    let launch = planner.overlapping(Launch::new(grid, tile.threads as u32, 0));
    planner.launch(kernel, launch, args);
    slots::plan_unused_slots(
        planner,
        &problem.slots,
        problem.sequences.count(),
        problem.value_heads * problem.state_len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_a_state_row_fit_one_warp() {
        for tile in TILES {
            for value_dim in 1..=260 {
                let lanes = columns(tile, value_dim) / vector(value_dim);
                assert!(lanes.is_power_of_two() && lanes <= 32, "V {value_dim}: {lanes}");
                assert_eq!(columns(tile, value_dim) % vector(value_dim), 0);
                assert!(tile.threads.is_multiple_of(32) && tile.threads >= lanes, "{tile:?}");
            }
        }
    }
}
