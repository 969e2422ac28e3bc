//! `hopper`: a persistent TMA kernel for many rows of x. The contract is in `hopper.cu`.

use super::direct;
use super::operands::{Operands, ProjectionParams, Rest, across, group, not_many};
use crate::{CudaVariant, Planner, arguments, map_element, source};
use device::cuda::{
    Buffer, ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, Map,
    SourcePart, Swizzle, TiledLayout, TmaDescriptor,
};
use ops::linear::LinearProblem;
use ops::{ChoiceTable, DType};
use std::sync::Arc;

pub(super) const VARIANT: CudaVariant<LinearProblem> =
    CudaVariant { name: "hopper", why_not, plan };

const PARTS: &[SourcePart] = &[
    source!("../include/hopper.cuh"),
    source!("../include/storage.cuh"),
    source!("hopper_tile.cuh"),
    source!("work.cuh"),
    source!("hopper_finish.cuh"),
    source!("hopper.cu"),
];

/// Rows of x that a block works on, and channels of a stage.
const ROWS: usize = 128;
const CHANNELS: usize = 64;

/// Estimated fixed cost of a tile, in units of [`Tile::time`]: half a microsecond for an epilogue that overlaps the
/// loads of the next tile; two with split-K, where each tile starts a block, reduces over the cluster and ends.
const TILE_COST: usize = 250;
const SPLIT_TILE_COST: usize = 1000;

/// Bytes that an SM loads from L2 in 4 cycles: 128 by 128 tiles reached 613 TFLOP/s, limited by this rate.
const FROM_L2: usize = 208;

/// A row of the tile table: macros of `hopper.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    /// Rows of W.
    columns: usize,
    stages: usize,
    slots: usize,
    /// Whether two vertically adjacent blocks share their loads of W.
    pair: bool,
    /// Blocks that split the channels (K) of a tile.
    split: usize,
}

const fn row(columns: usize, [stages, slots]: [usize; 2], pair: bool, split: usize) -> Tile {
    Tile { columns, stages, slots, pair, split }
}

/// The tile with the smallest [`Tile::time`]; the first of equal ones.
const TILES: &[Tile] = &[
    row(256, [4, 2], true, 1),
    row(192, [5, 1], true, 1),
    row(256, [4, 2], false, 1),
    row(128, [6, 2], false, 1),
    row(256, [4, 2], false, 2),
    row(256, [4, 2], false, 4),
    row(128, [6, 2], false, 2),
    row(128, [6, 2], false, 4),
];

pub(super) fn table() -> ChoiceTable {
    let row = |tile: &Tile| {
        let cluster = match (tile.pair, tile.split) {
            (true, _) => "2 that share weights".to_owned(),
            (false, 1) => "1".to_owned(),
            (false, split) => format!("{split} that split K"),
        };
        vec![tile.columns.to_string(), cluster, tile.stages.to_string()]
    };
    ChoiceTable {
        title: "tile of linear's hopper, 128 rows of x: the one with the smallest estimated time",
        columns: &["rows of w", "blocks of a cluster", "stages"],
        rows: TILES.iter().map(row).collect(),
    }
}

impl Tile {
    /// Columns of o.
    fn out_columns(&self, params: ProjectionParams) -> usize {
        if params.swiglu { self.columns / 2 } else { self.columns }
    }

    fn rows(&self) -> usize {
        if self.pair { 2 * ROWS } else { ROWS }
    }

    fn cluster(&self) -> usize {
        if self.pair { 2 } else { self.split }
    }

    fn count(&self, problem: &LinearProblem) -> usize {
        problem.tokens.div_ceil(self.rows())
            * across(problem, self.out_columns(ProjectionParams::of(problem)))
    }

    /// Whether each block of a cluster writes whole TMA boxes.
    fn is_for(&self, params: ProjectionParams) -> bool {
        self.out_columns(params).is_multiple_of(self.split * row_elements(params.out()))
    }

    /// Whether the tile supports the call: [`Tile::is_for`], and K has a stage for each block of a cluster.
    fn fits(&self, problem: &LinearProblem) -> bool {
        self.is_for(ProjectionParams::of(problem))
            && self.split <= problem.inputs.div_ceil(CHANNELS)
    }

    /// Estimated time of a call with this tile, in units of 64 channels of one row of W (4 cycles): its products, and
    /// for each wave the fixed cost of a tile.
    fn time(&self, problem: &LinearProblem, here: &CudaCapabilities) -> usize {
        let at_once = here.multiprocessors as usize / self.cluster();
        let waves = self.count(problem).div_ceil(at_once.max(1));
        let fixed = if self.split > 1 { SPLIT_TILE_COST } else { TILE_COST };
        waves * (self.step() * problem.inputs.div_ceil(CHANNELS).div_ceil(self.split) + fixed)
    }

    /// Time of 64 channels of a tile in the same units: the larger of its products and its loads.
    fn step(&self) -> usize {
        let weights = if self.pair { self.columns / 2 } else { self.columns };
        self.columns.max((ROWS + weights) * 2 * CHANNELS / FROM_L2)
    }

    fn of(problem: &LinearProblem, here: &CudaCapabilities) -> Option<&'static Self> {
        let fitting = TILES.iter().filter(|tile| tile.fits(problem));
        fitting.min_by_key(|tile| tile.time(problem, here))
    }

    /// As `hopper_tile.cuh` counts them.
    fn shared_bytes(&self) -> usize {
        self.stages * (ROWS + self.columns) * 128 + self.slots * 2 * 8192 + self.stages * 16 + 1024
    }
}

fn why_not(problem: &LinearProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute != ComputeCapability::new(9, 0) {
        return Some(format!("needs compute capability 9.0, this GPU has {}", here.compute));
    }
    // TMA needs rows of a multiple of 16 bytes, and no empty tensor.
    if !problem.inputs.is_multiple_of(8) {
        return Some(format!("needs K a multiple of 8, got {}", problem.inputs));
    }
    if problem.tokens == 0 {
        return Some("needs one row of x at least".to_owned());
    }
    let whole = 16 / problem.out.bytes();
    if let Some(width) = problem.widths.iter().find(|n| **n == 0 || !n.is_multiple_of(whole)) {
        return Some(format!("needs outputs of whole 16 bytes a row, got {width} columns"));
    }
    direct::instead(problem, here).or_else(|| not_many(problem))
}

fn source(params: ProjectionParams, tile: &Tile) -> KernelSource {
    let arch = GpuArch::of(ComputeCapability::new(9, 0));
    let source = KernelSource::new("linear_hopper", PARTS, arch)
        .define("BLOCK_N", tile.columns)
        .define("STAGES", tile.stages)
        .define("SLOTS", tile.slots)
        .define("PAIR", u8::from(tile.pair))
        .define("SPLIT", tile.split);
    params.define(source)
}

/// Every tile with all parameters that it supports.
pub(super) fn bundled() -> Vec<KernelSource> {
    let each = |params| {
        TILES.iter().filter(move |tile| tile.is_for(params)).map(move |tile| source(params, tile))
    };
    ProjectionParams::COMMON.into_iter().flat_map(each).collect()
}

/// Elements of a row of a box, which is 128 bytes.
fn row_elements(dtype: DType) -> usize {
    128 / dtype.bytes()
}

/// A matrix `[rows, columns]` of `dtype` in boxes of 128 bytes by `box_rows`.
fn matrix(
    planner: &Planner<'_>,
    buffer: &Buffer,
    dtype: DType,
    [rows, columns]: [usize; 2],
    box_rows: usize,
) -> Result<TmaDescriptor, DeviceError> {
    let row = (columns * dtype.bytes()) as u64;
    let all = row * rows as u64;
    let layout = TiledLayout {
        element: map_element(dtype),
        offset: 0,
        sizes: &[columns as u64, rows as u64, 1, 1],
        strides: &[row, all, all],
        tile: &[row_elements(dtype) as u32, box_rows as u32, 1, 1],
        swizzle: Swizzle::Bytes128,
    };
    planner.tensor_map(buffer, &layout)
}

arguments! {
    LinearHopper: linear_hopper {
        map_x: Map, map_w: Map, map_residual: Map, map_o0: Map, map_o1: Map, map_o2: Map, map_o3: Map, map_o4: Map, map_o5: Map,
        rest: (Rest),
    }
}

fn plan(problem: &LinearProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let params = ProjectionParams::of(problem);
    let Some(tile) = Tile::of(problem, planner.here()) else {
        return Err(DeviceError::Refused {
            what: "linear's hopper has no tile for this".to_owned(),
        });
    };
    let kernel = planner.kernel(&source(params, tile))?;
    let operands = Operands::new(problem, planner)?;
    let (tokens, inputs, dtype) = (problem.tokens, problem.inputs, problem.dtype);
    let x = matrix(planner, &operands.x, dtype, [tokens, inputs], ROWS)?;
    let w = matrix(planner, &operands.w, dtype, [problem.outputs, inputs], tile.columns / 2)?;
    let residual = match &operands.residual {
        Some(given) => matrix(planner, given, DType::F32, [tokens, problem.columns()], ROWS)?,
        None => x,
    };
    let output = |(buffer, width): &(Arc<Buffer>, usize)| {
        matrix(planner, buffer, problem.out, [tokens, *width], ROWS / 2)
    };
    let outputs = operands.outputs.iter().map(output).collect::<Result<Vec<_>, DeviceError>>()?;
    let [map_o0, map_o1, map_o2, map_o3, map_o4, map_o5] =
        operands.each_output(|output| Map::from(&outputs[output]));
    let args = LinearHopper {
        map_x: (&x).into(),
        map_w: (&w).into(),
        map_residual: (&residual).into(),
        map_o0,
        map_o1,
        map_o2,
        map_o3,
        map_o4,
        map_o5,
        rest: operands.rest(group(problem, planner.here(), tile.rows()))?,
    };
    let (tiles, cluster) = (tile.count(problem), tile.cluster());
    let at_once = (planner.here().multiprocessors as usize / cluster).max(1);
    let clusters = if tile.split > 1 { tiles } else { tiles.min(at_once) };
    let grid = [(clusters * cluster) as u32, 1, 1];
    let mut launch = Launch::new(grid, 384, tile.shared_bytes() as u32);
    // The kernel reads weights before it waits for the previous kernel, so that one must not write them.
    launch.overlaps = problem.scales.is_none();
    planner.launch(kernel, launch, args);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ops::linear::LinearOp;
    use ops::{Family, Inputs, Options, Settings, Tensor, TensorMap};

    #[test]
    fn tiles_fit_the_shared_memory_of_a_block() {
        for tile in TILES {
            assert!(tile.shared_bytes() <= 232_448, "{tile:?}");
            // A residual of 32 columns and a box of results are read whole from a stage.
            assert!((ROWS + tile.columns) * 128 >= 32 * 4 * ROWS, "{tile:?}");
        }
    }

    #[test]
    fn every_parameter_set_has_a_tile_for_every_k() {
        for params in ProjectionParams::COMMON {
            assert!(TILES.iter().any(|tile| tile.split == 1 && tile.is_for(params)), "{params:?}");
        }
    }

    /// Granite 4.0-H micro on an H200.
    #[test]
    fn tile_choice_minimizes_waves() {
        let here = CudaCapabilities {
            name: "H200".to_owned(),
            compute: ComputeCapability::new(9, 0),
            multiprocessors: 132,
            shared_bytes: 232_448,
            l2_bytes: 50 << 20,
            memory_bytes: 141 << 30,
            driver: (13, 0),
        };
        let tile = |tokens, [outputs, inputs]: [usize; 2], settings: Settings, residual: bool| {
            let x = Tensor::poisoned(&[tokens, inputs], DType::Bf16);
            let w = Tensor::poisoned(&[outputs, inputs], DType::Bf16);
            let mut tensors = TensorMap::from([("x".to_owned(), x), ("w".to_owned(), w)]);
            if residual {
                let residual = Tensor::poisoned(&[tokens, outputs], DType::F32);
                tensors.insert("residual".to_owned(), residual);
            }
            let inputs = Inputs::of_map(LinearOp::SPEC, &tensors);
            let problem = LinearOp::parse(inputs, &Options::read(&settings).unwrap()).unwrap();
            let tile = Tile::of(&problem, &here).unwrap();
            (tile.columns, tile.pair, tile.split)
        };
        let split = || Settings::new().with("split", "4096,4352,64");
        let swiglu = || Settings::new().with("activation", "swiglu");
        assert_eq!(tile(4096, [8512, 2048], split(), false), (256, true, 1));
        assert_eq!(tile(512, [8512, 2048], split(), false), (192, true, 1));
        assert_eq!(tile(4096, [2048, 4096], Settings::new(), true), (256, true, 1));
        assert_eq!(tile(512, [2048, 4096], Settings::new(), true), (256, false, 4));
        assert_eq!(tile(512, [16384, 2048], swiglu(), false), (256, true, 1));
    }
}
