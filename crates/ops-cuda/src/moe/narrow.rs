//! `narrow`: any number of tokens by 8-bit or 4-bit weights, a grouped GEMM over experts with `wgmma`, whose left
//! operand is dequantized to bf16 in registers. The contract is in `hopper_narrow.cu`.

use super::hopper::{self, GATHER_THREADS, TILE, WORK, tokens_map};
use super::operands::{
    self, AMPERE, GroupScales, NARROW, ScaleBuffers, group_shift, overlapping, words,
};
use super::route::{self, List};
use super::{clamp, sum};
use crate::{CudaVariant, Planner, arguments, int, source};
use device::cuda::{
    Args, Buffer, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, SourcePart,
    Swizzle, TiledLayout, TmaElement,
};
use ops::moe::{MoeProblem, QuantizedExperts};

pub(super) const VARIANT: CudaVariant<MoeProblem> = CudaVariant { name: "narrow", why_not, plan };

const ORDER: SourcePart = source!("order.cuh");
const PRODUCT: &[SourcePart] = &[hopper::COMMON, NARROW, WORK, ORDER, source!("hopper_narrow.cu")];
const GATHER: &[SourcePart] = &[AMPERE, NARROW, ORDER, source!("gather_narrow.cu")];

const GATE_UP: &str = "w_gate_up";
const DOWN: &str = "w_down";

/// As in `hopper_work.cuh`: channels of an iteration, and rows of weights of a half tile.
const BLOCK_K: usize = 64;
const ROWS: usize = 128;
const STAGES: usize = 5;

fn why_not(problem: &MoeProblem, here: &CudaCapabilities) -> Option<String> {
    let Some(narrow) = problem.quantized else {
        return Some(format!("needs weights in e4m3, i8 or u4, got {}", problem.dtype));
    };
    for (name, channels, scales) in [
        ("H", problem.hidden, narrow.scales_per_row[0]),
        ("I", problem.intermediate, narrow.scales_per_row[1]),
    ] {
        if !channels.is_multiple_of(BLOCK_K) {
            return Some(format!("needs {name} a multiple of {BLOCK_K}, got {channels}"));
        }
        if scales > 1 && group_shift(narrow.group, BLOCK_K).is_none() {
            let group = narrow.group;
            return Some(format!(
                "needs groups of {BLOCK_K} times a power of two of columns, got {group}"
            ));
        }
    }
    if !problem.gated {
        return Some("multiplies gates with ups, and these experts have none".to_owned());
    }
    hopper::why_not(problem, here)
}

/// Bytes of 64 channels of a row of weights.
fn row_bytes(narrow: QuantizedExperts) -> usize {
    narrow.dtype.bytes_of(BLOCK_K)
}

/// `SHARED_BYTES` of `hopper_narrow.cu`: 256 rows of weights and the pairs, two transposed results, barriers.
fn shared_bytes(narrow: QuantizedExperts) -> usize {
    let stage = 2 * ROWS * row_bytes(narrow) + TILE * 2 * BLOCK_K;
    STAGES * stage + 2 * TILE * 128 + 16 * STAGES + 1024
}

fn product_source(narrow: QuantizedExperts, w: &str, up: bool, arch: &GpuArch) -> KernelSource {
    let grouped = narrow.scales_per_row[usize::from(w == DOWN)] > 1;
    let source = KernelSource::new("moe_hopper_narrow", PRODUCT, arch.clone())
        .define("DTYPE", ops::DType::Bf16)
        .define("UP", u8::from(up))
        .define("TILE", TILE)
        .define("STAGES", STAGES)
        .define("GROUPED", u8::from(grouped));
    operands::of_weights(source, Some(narrow))
}

fn gather_source(narrow: QuantizedExperts, arch: &GpuArch) -> KernelSource {
    let source = KernelSource::new("moe_gather_narrow", GATHER, arch.clone());
    operands::of_weights(source, Some(narrow))
}

/// For the bundle.
pub(super) fn bundled(narrow: QuantizedExperts, arch: &GpuArch) -> Vec<KernelSource> {
    vec![
        gather_source(narrow, arch),
        product_source(narrow, GATE_UP, true, arch),
        product_source(narrow, DOWN, false, arch),
    ]
}

arguments! {
    Gather: moe_gather_narrow {
        x: Pointer, tiles: Pointer, pairs: Pointer, to: Pointer, hidden: i32, top_k: i32,
    }
}

fn plan(problem: &MoeProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let Some(narrow) = problem.quantized else {
        return Err(DeviceError::Refused { what: "weights that are not narrow".to_owned() });
    };
    let (list, places) = route::plan(problem, planner, TILE)?;
    let (pairs, hidden, inner) = (problem.pairs(), problem.hidden, problem.intermediate);
    // TMA needs at least one row.
    let rows = pairs.max(1);
    let gathered = planner.scratch(words(rows * hidden))?;
    let activated = planner.scratch(words(rows * inner))?;
    let made = planner.scratch(words(rows * hidden))?;

    let kernel = planner.kernel(&gather_source(narrow, &planner.arch()))?;
    let args = Args::from(Gather {
        x: &*planner.required("x")?,
        tiles: &list.tiles,
        pairs: &list.pairs,
        to: &gathered,
        hidden: int(hidden)?,
        top_k: int(problem.of_token())?,
    });
    let blocks = (pairs * hidden / BLOCK_K).div_ceil(GATHER_THREADS) as u32;
    let launch = Launch::new([blocks, 1, 1], GATHER_THREADS as u32, 0);
    planner.launch(kernel, overlapping(planner, launch), args);

    if let Some(clamp) = problem.clamp {
        let both = planner.scratch(words(rows * 2 * inner))?;
        let up = Product { w: GATE_UP, from: &gathered, to: &both };
        up.plan((problem, narrow), planner, &list, (2 * inner, hidden, false))?;
        clamp::plan((problem, clamp), planner, &list, Some(narrow), [&both, &activated])?;
    } else {
        let up = Product { w: GATE_UP, from: &gathered, to: &activated };
        up.plan((problem, narrow), planner, &list, (inner, hidden, true))?;
    }
    let down = Product { w: DOWN, from: &activated, to: &made };
    down.plan((problem, narrow), planner, &list, (hidden, inner, false))?;
    sum::plan(problem, planner, &made, &places)
}

arguments! {
    Narrow: moe_hopper_narrow {
        map_from: Map, map_w: Map, tiles: Pointer, made: Pointer, columns: i32, channels: i32, scales: (GroupScales),
    }
}

/// One of the two projections.
struct Product<'a> {
    w: &'static str,
    from: &'a Buffer,
    to: &'a Buffer,
}

impl Product<'_> {
    /// Plans the product of `channels` of each pair to `columns`; if `up`, a gate and an up for each column.
    fn plan(
        &self,
        (problem, narrow): (&MoeProblem, QuantizedExperts),
        planner: &mut Planner<'_>,
        list: &List,
        (columns, channels, up): (usize, usize, bool),
    ) -> Result<(), DeviceError> {
        let kernel = planner.kernel(&product_source(narrow, self.w, up, &planner.arch()))?;
        let scales = ScaleBuffers::new(problem, planner, self.w, BLOCK_K)?;
        let rows = if up { 2 * columns } else { columns };
        let map_from = tokens_map(planner, problem, self.from, channels)?;
        let row = narrow.dtype.bytes_of(channels) as u64;
        let layout = TiledLayout {
            element: TmaElement::U8,
            offset: 0,
            sizes: &[row, rows as u64, problem.held as u64],
            strides: &[row, row * rows as u64],
            tile: &[row_bytes(narrow) as u32, ROWS as u32, 1],
            swizzle: Swizzle::None,
        };
        let w = planner.required(self.w)?;
        let map_w = planner.tensor_map(&w, &layout)?;
        let args = Narrow {
            map_from: (&map_from).into(),
            map_w: (&map_w).into(),
            tiles: &list.tiles,
            made: self.to,
            columns: int(columns)?,
            channels: int(channels)?,
            scales: scales.args()?,
        };
        let blocks = if problem.tokens == 0 { 0 } else { planner.here().multiprocessors };
        let launch = Launch::new([blocks, 1, 1], 384, shared_bytes(narrow) as u32);
        planner.launch(kernel, overlapping(planner, launch), args);
        Ok(())
    }
}
