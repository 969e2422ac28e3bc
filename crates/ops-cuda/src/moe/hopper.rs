//! `hopper`: any number of tokens, a grouped GEMM over experts with `wgmma`. The contract is in `hopper.cu`.

use super::operands::{self, AMPERE, HOPPER, overlapping, up_mode, words};
use super::route::{self, List};
use super::{clamp, sum};
use crate::{CudaVariant, Planner, arguments, int, source};
use device::cuda::{
    Args, Buffer, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, SourcePart,
    Swizzle, TiledLayout, TmaDescriptor, TmaElement,
};
use ops::DType;
use ops::moe::MoeProblem;

pub(super) const VARIANT: CudaVariant<MoeProblem> = CudaVariant { name: "hopper", why_not, plan };

pub(super) const COMMON: SourcePart = source!("../include/hopper.cuh");
pub(super) const WORK: SourcePart = source!("hopper_work.cuh");
const PRODUCT: &[SourcePart] = &[COMMON, WORK, source!("hopper.cu")];
const GATHER: &[SourcePart] = &[AMPERE, source!("gather.cu")];

/// Threads of a block of the kernel that gathers tokens.
pub(super) const GATHER_THREADS: usize = 256;

/// Pairs of a tile, and stages.
pub(super) const TILE: usize = 128;
const STAGES: usize = 4;
/// `SHARED_BYTES` of `hopper.cu`: 256 rows of weights and the pairs, 128 bytes each; two transposed results;
/// barriers.
const SHARED_BYTES: usize = STAGES * (256 + TILE) * 128 + 2 * TILE * 128 + 16 * STAGES + 1024;
/// TMA boxes: channels; rows of pairs and of weights.
const BLOCK_K: u32 = 64;
const PAIRS: u32 = 32;
const ROWS: u32 = 128;

pub(super) fn why_not(problem: &MoeProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute != HOPPER {
        return Some(format!("needs compute capability 9.0, this GPU has {}", here.compute));
    }
    operands::why_not(problem, here)
}

fn product_source(dtype: DType, up: u8, arch: &GpuArch) -> KernelSource {
    KernelSource::new("moe_hopper", PRODUCT, arch.clone())
        .define("DTYPE", dtype)
        .define("UP", up)
        .define("TILE", TILE)
        .define("STAGES", STAGES)
}

fn gather_source(arch: &GpuArch) -> KernelSource {
    KernelSource::new("moe_gather", GATHER, arch.clone())
}

/// For the bundle.
pub(super) fn bundled(dtype: DType, arch: &GpuArch) -> Vec<KernelSource> {
    vec![
        route::route_source(TILE, arch),
        route::sort_source(TILE, arch),
        gather_source(arch),
        product_source(dtype, 0, arch),
        product_source(dtype, 1, arch),
        product_source(dtype, 2, arch),
        sum::source(dtype, arch),
    ]
}

arguments! {
    Gather: moe_gather {
        x: Pointer, tiles: Pointer, pairs: Pointer, to: Pointer, hidden: i32, top_k: i32,
    }
}

fn plan(problem: &MoeProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let (list, places) = route::plan(problem, planner, TILE)?;
    let (pairs, hidden, inner) = (problem.pairs(), problem.hidden, problem.intermediate);
    // TMA needs at least one row.
    let rows = pairs.max(1);
    let gathered = planner.scratch(words(rows * hidden))?;
    let activated = planner.scratch(words(rows * inner))?;
    let made = planner.scratch(words(rows * hidden))?;

    gather(problem, planner, &list, &gathered)?;
    let w_gate_up = operands::expanded(problem, planner, "w_gate_up")?;
    let w_down = operands::expanded(problem, planner, "w_down")?;
    if let Some(clamp) = problem.clamp {
        let both = planner.scratch(words(rows * 2 * inner))?;
        let up = Product { from: &gathered, weights: &w_gate_up, to: &both };
        up.plan(problem, planner, &list, (2 * inner, hidden, 0))?;
        clamp::plan((problem, clamp), planner, &list, None, [&both, &activated])?;
    } else {
        let up = Product { from: &gathered, weights: &w_gate_up, to: &activated };
        up.plan(problem, planner, &list, (inner, hidden, up_mode(problem)))?;
    }
    let down = Product { from: &activated, weights: &w_down, to: &made };
    down.plan(problem, planner, &list, (hidden, inner, 0))?;
    sum::plan(problem, planner, &made, &places)
}

arguments! {
    Hopper: moe_hopper {
        map_from: Map, map_w: Map, tiles: Pointer, made: Pointer, columns: i32, channels: i32,
    }
}

/// Adds the launch that gathers tokens in the order of the list.
pub(super) fn gather(
    problem: &MoeProblem,
    planner: &mut Planner<'_>,
    list: &List,
    to: &Buffer,
) -> Result<(), DeviceError> {
    let kernel = planner.kernel(&gather_source(&planner.arch()))?;
    let args = Args::from(Gather {
        x: &*planner.required("x")?,
        tiles: &list.tiles,
        pairs: &list.pairs,
        to,
        hidden: int(problem.hidden)?,
        top_k: int(problem.of_token())?,
    });
    let blocks = (problem.pairs() * problem.hidden).div_ceil(8 * GATHER_THREADS) as u32;
    let launch = overlapping(planner, Launch::new([blocks, 1, 1], GATHER_THREADS as u32, 0));
    planner.launch(kernel, launch, args);
    Ok(())
}

struct Product<'a> {
    from: &'a Buffer,
    weights: &'a Buffer,
    to: &'a Buffer,
}

impl Product<'_> {
    fn plan(
        &self,
        problem: &MoeProblem,
        planner: &mut Planner<'_>,
        list: &List,
        (columns, channels, up): (usize, usize, u8),
    ) -> Result<(), DeviceError> {
        let kernel = planner.kernel(&product_source(problem.dtype, up, &planner.arch()))?;
        let rows = if up == 1 { 2 * columns } else { columns };
        let map_from = tokens_map(planner, problem, self.from, channels)?;
        let sizes = [channels, rows, problem.held];
        let map_weights = map(planner, problem.dtype, self.weights, sizes, ROWS)?;
        let args = Hopper {
            map_from: (&map_from).into(),
            map_w: (&map_weights).into(),
            tiles: &list.tiles,
            made: self.to,
            columns: int(columns)?,
            channels: int(channels)?,
        };
        let blocks = if problem.tokens == 0 { 0 } else { planner.here().multiprocessors };
        let launch = Launch::new([blocks, 1, 1], 384, SHARED_BYTES as u32);
        planner.launch(kernel, overlapping(planner, launch), args);
        Ok(())
    }
}

/// TMA descriptor of a matrix with a row of channels per pair.
pub(super) fn tokens_map(
    planner: &Planner<'_>,
    problem: &MoeProblem,
    buffer: &Buffer,
    channels: usize,
) -> Result<TmaDescriptor, DeviceError> {
    map(planner, problem.dtype, buffer, [channels, problem.pairs().max(1), 1], PAIRS)
}

/// TMA descriptor of items of rows of channels, in boxes of `tile` rows of 64 channels.
fn map(
    planner: &Planner<'_>,
    dtype: DType,
    buffer: &Buffer,
    [channels, rows, items]: [usize; 3],
    tile: u32,
) -> Result<TmaDescriptor, DeviceError> {
    let row = 2 * channels as u64;
    let layout = TiledLayout {
        element: if dtype == DType::F16 { TmaElement::F16 } else { TmaElement::Bf16 },
        offset: 0,
        sizes: &[channels as u64, rows as u64, items as u64],
        strides: &[row, row * rows as u64],
        tile: &[BLOCK_K, tile, 1],
        swizzle: Swizzle::Bytes128,
    };
    planner.tensor_map(buffer, &layout)
}
