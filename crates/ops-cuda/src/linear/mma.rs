//! `mma`: tiles of up to 128 by 128 on GPUs of compute capability 8.0 and later. The contract is in `mma.cu`.

use super::direct;
use super::operands::{Operands, ProjectionParams, Rest, across, group, not_many};
use crate::{CudaVariant, Planner, arguments, source};
use device::cuda::{
    BundledArch, ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch,
    SourcePart,
};
use ops::ChoiceTable;
use ops::linear::LinearProblem;

pub(super) const VARIANT: CudaVariant<LinearProblem> = CudaVariant { name: "mma", why_not, plan };

const PARTS: &[SourcePart] = &[
    source!("../include/ampere.cuh"),
    source!("../include/storage.cuh"),
    source!("mma_tile.cuh"),
    source!("work.cuh"),
    source!("mma.cu"),
];

/// Rows of x and of W in a block's tile, and stages of its loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    rows: usize,
    columns: usize,
    stages: usize,
}

/// The first tile that yields at least one tile per SM is taken, otherwise the last. Each fits in the 99 KiB of
/// shared memory that the smaller GPUs have.
const TILES: &[Tile] = &[
    Tile { rows: 128, columns: 128, stages: 3 },
    Tile { rows: 64, columns: 128, stages: 4 },
    Tile { rows: 64, columns: 64, stages: 4 },
];

pub(super) fn table() -> ChoiceTable {
    let row = |tile: &Tile| [tile.rows, tile.columns, tile.stages].map(|n| n.to_string()).to_vec();
    ChoiceTable {
        title: "tile of linear's mma: the first that gives every SM one",
        columns: &["rows of x", "rows of w", "stages"],
        rows: TILES.iter().map(row).collect(),
    }
}

impl Tile {
    fn of(problem: &LinearProblem, here: &CudaCapabilities) -> Self {
        let fills = |tile: &&Self| tile.count(problem) >= here.multiprocessors as usize;
        *TILES.iter().find(fills).unwrap_or(&TILES[TILES.len() - 1])
    }

    /// Tiles of a call.
    fn count(&self, problem: &LinearProblem) -> usize {
        let columns = if problem.swiglu { self.columns / 2 } else { self.columns };
        problem.tokens.div_ceil(self.rows) * across(problem, columns)
    }

    /// 64 channels of each row in each stage.
    fn shared_bytes(&self) -> usize {
        self.stages * (self.rows + self.columns) * 128
    }
}

fn why_not(problem: &LinearProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    if !problem.inputs.is_multiple_of(2) {
        return Some(format!("needs an even K, got {}", problem.inputs));
    }
    direct::instead(problem, here).or_else(|| not_many(problem))
}

fn source(tile: Tile, vector: usize, params: ProjectionParams, arch: GpuArch) -> KernelSource {
    let source = KernelSource::new("linear_mma", PARTS, arch)
        .define("BLOCK_M", tile.rows)
        .define("BLOCK_N", tile.columns)
        .define("STAGES", tile.stages)
        .define("VECTOR", vector);
    params.define(source)
}

/// Large tiles, except where `hopper` takes such calls.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    if arch.compute == ComputeCapability::new(9, 0) {
        return Vec::new();
    }
    ProjectionParams::COMMON.map(|params| source(TILES[0], 8, params, arch.arch())).to_vec()
}

arguments! {
    LinearMma: linear_mma {
        x: Pointer, w: Pointer, o0: Pointer, o1: Pointer, o2: Pointer, o3: Pointer, o4: Pointer, o5: Pointer, rest: (Rest),
    }
}

fn plan(problem: &LinearProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let tile = Tile::of(problem, planner.here());
    let vector = [8, 4].into_iter().find(|wide| problem.inputs.is_multiple_of(*wide)).unwrap_or(2);
    let kernel =
        planner.kernel(&source(tile, vector, ProjectionParams::of(problem), planner.arch()))?;
    let operands = Operands::new(problem, planner)?;
    let [o0, o1, o2, o3, o4, o5] = operands.each_output(|output| &*operands.outputs[output].0);
    let args = LinearMma {
        x: &operands.x,
        w: &operands.w,
        o0,
        o1,
        o2,
        o3,
        o4,
        o5,
        rest: operands.rest(group(problem, planner.here(), tile.rows))?,
    };
    let blocks = tile.count(problem) as u32;
    let mut launch = Launch::new([blocks, 1, 1], 256, tile.shared_bytes() as u32);
    // With PDL, it starts while the previous kernel ends; it waits for that kernel, but not before it reads weights.
    launch.overlaps =
        problem.scales.is_none() && planner.here().compute >= ComputeCapability::new(9, 0);
    planner.launch(kernel, launch, args);
    Ok(())
}
