//! `gather`: each query copies the tokens that it reads. Any problem in bf16 or f16, on GPUs of compute capability
//! 8.0 and later. The contract is in `gather.cu`.

use super::operands::{Gates, Operands, Sequences, row_bytes, shape_macros};
use super::stages::{self, Selection, compress};
use crate::{CudaVariant, Planner, arguments, source};
use device::cuda::{
    BundledArch, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, SourcePart,
};
use ops::nsa::NsaProblem;
use ops::{ChoiceTable, DType};

pub(super) const VARIANT: CudaVariant<NsaProblem> = CudaVariant { name: "gather", why_not, plan };

const PARTS: &[SourcePart] = &[
    source!("../include/ampere.cuh"),
    source!("call.cuh"),
    source!("softmax.cuh"),
    source!("common.cuh"),
    source!("gather.cu"),
];

/// A row of the tile table.
#[derive(Debug)]
struct Tile {
    /// The larger of D and Dv, at most.
    channels: usize,
    keys: usize,
    warps: usize,
}

const fn tile(channels: usize, keys: usize, warps: usize) -> Tile {
    Tile { channels, keys, warps }
}

const TILES: &[Tile] =
    &[tile(128, 32, 4), tile(128, 32, 2), tile(320, 16, 4), tile(320, 16, 2), tile(320, 16, 1)];

impl Tile {
    fn shared_bytes(&self, (head_dim, value_dim): (usize, usize)) -> usize {
        let stage = self.keys * (row_bytes(head_dim) + row_bytes(value_dim));
        self.warps * (16 * row_bytes(head_dim) + 2 * stage)
    }

    fn source(&self, dtype: DType, dims: (usize, usize), arch: GpuArch) -> KernelSource {
        shape_macros(KernelSource::new("nsa_gather", PARTS, arch), dtype, dims)
            .define("TILE", self.keys)
            .define("WARPS", self.warps)
            .define("BLOCKS_PER_SM", 1)
    }
}

fn choose(dims: (usize, usize), shared_bytes: u32) -> Option<&'static Tile> {
    TILES.iter().find(|tile| {
        dims.0.max(dims.1) <= tile.channels && tile.shared_bytes(dims) <= shared_bytes as usize
    })
}

pub(super) fn table() -> ChoiceTable {
    let row =
        |tile: &Tile| [tile.channels, tile.keys, tile.warps].iter().map(usize::to_string).collect();
    ChoiceTable {
        title: "tile of nsa_gather: the first row that fits and whose shared memory the GPU has",
        columns: &["channels up to", "tokens", "warps"],
        rows: TILES.iter().map(row).collect(),
    }
}

/// Common shapes, for the bundle.
pub(super) fn bundled(dtype: DType, dims: (usize, usize), arch: &BundledArch) -> Vec<KernelSource> {
    let tile = choose(dims, arch.shared_bytes);
    tile.map(|tile| tile.source(dtype, dims, arch.arch())).into_iter().collect()
}

fn why_not(problem: &NsaProblem, here: &CudaCapabilities) -> Option<String> {
    stages::why_not(problem, here).or_else(|| {
        let shared = here.shared_bytes;
        choose((problem.head_dim, problem.value_dim), shared)
            .is_none()
            .then(|| format!("no tile fits the {shared} bytes of shared memory of a block here"))
    })
}

fn plan(problem: &NsaProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let operands = Operands::new(problem, planner)?;
    let compressed = compress(problem, &operands, planner)?;
    let selection = Selection::new(problem, &operands, planner, (0, usize::MAX))?;
    for first in selection.chunks(&operands) {
        selection.plan(problem, (&operands, compressed.as_ref()), planner, first, None)?;
    }
    let mut accumulate = compressed.is_some() && problem.branches.compressed;
    for (selected, there) in [(true, problem.branches.selected), (false, problem.branches.window)] {
        if there {
            branch(problem, &operands, planner, selected, accumulate)?;
            accumulate = true;
        }
    }
    Ok(())
}

arguments! {
    Gather: nsa_gather {
        q: Pointer, k: Pointer, v: Pointer, o: Pointer, indices: Nullable, reads: Pointer, gates: (Gates), sequences: (Sequences), heads: i32,
        kv_heads: i32, select_block: i32, select_count: i32, window: i32, accumulate: i32, scale: f32,
    }
}

/// Adds the selected branch or the window branch, which writes `o` or adds to it.
pub(super) fn branch(
    problem: &NsaProblem,
    operands: &Operands,
    planner: &mut Planner<'_>,
    selected: bool,
    accumulate: bool,
) -> Result<(), DeviceError> {
    let dims = (problem.head_dim, problem.value_dim);
    let Some(tile) = choose(dims, planner.here().shared_bytes) else {
        return Err(DeviceError::Refused { what: format!("gather has no tile for D {}", dims.0) });
    };
    let kernel = planner.kernel(&tile.source(problem.dtype, dims, planner.arch()))?;
    let args = Gather {
        q: &operands.q,
        k: &operands.k,
        v: &operands.v,
        o: &operands.o,
        indices: selected.then_some(&*operands.indices),
        reads: &operands.reads,
        gates: operands.gates(),
        sequences: operands.sequences(),
        heads: operands.heads,
        kv_heads: operands.kv_heads as i32,
        select_block: problem.select_block as i32,
        select_count: problem.select_count as i32,
        window: problem.window as i32,
        accumulate: i32::from(accumulate),
        scale: problem.scale as f32,
    };
    let grid = [
        operands.queries.div_ceil(tile.warps) as u32,
        operands.head_slabs(),
        operands.batch as u32,
    ];
    let shared = tile.shared_bytes(dims) as u32;
    planner.launch(kernel, Launch::new(grid, 32 * tile.warps as u32, shared), args);
    Ok(())
}
