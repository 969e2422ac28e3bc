//! `grouped`: any number of tokens, a grouped GEMM over experts with `mma.sync`. The contract is in `grouped.cu`.

use super::operands::{self, AMPERE, STORAGE, overlapping, up_mode, words};
use super::route::{self, List};
use super::{clamp, hopper, sum};
use crate::{CudaVariant, Planner, arguments, int, source};
use device::cuda::{
    Buffer, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, SourcePart,
};
use ops::DType;
use ops::moe::MoeProblem;

pub(super) const VARIANT: CudaVariant<MoeProblem> = CudaVariant { name: "grouped", why_not, plan };

const PARTS: &[SourcePart] = &[AMPERE, STORAGE, source!("grouped.cu")];

const THREADS: u32 = 256;
/// `BLOCK_N` of `grouped.cu`: rows of weights of a block.
const ROWS: usize = 128;

/// Pairs of a tile, and stages: as many as fit in the shared memory of one block on the smaller GPUs, or of two on an
/// H200.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    pairs: usize,
    stages: usize,
}

impl Tile {
    /// Experts with few tokens get short tiles, since absent rows cost as much as present ones.
    fn of(problem: &MoeProblem) -> Self {
        if problem.pairs() > 64 * problem.experts {
            Self { pairs: 128, stages: 3 }
        } else {
            Self { pairs: 64, stages: 4 }
        }
    }

    /// Dynamic shared memory of a block, bytes.
    fn shared_bytes(self) -> usize {
        self.stages * (self.pairs + ROWS) * 128
    }
}

fn why_not(problem: &MoeProblem, here: &CudaCapabilities) -> Option<String> {
    if let Some(reason) = operands::why_not(problem, here) {
        return Some(reason);
    }
    let (wanted, most) = (Tile::of(problem).shared_bytes(), here.shared_bytes as usize);
    (wanted > most).then(|| format!("needs {wanted} bytes of shared memory, a block has {most}"))
}

fn source(dtype: DType, tile: Tile, up: u8, arch: &GpuArch) -> KernelSource {
    KernelSource::new("moe_grouped", PARTS, arch.clone())
        .define("DTYPE", dtype)
        .define("UP", up)
        .define("TILE", tile.pairs)
        .define("STAGES", tile.stages)
}

fn plan(problem: &MoeProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let tile = Tile::of(problem);
    let (list, places) = route::plan(problem, planner, tile.pairs)?;
    let (hidden, inner) = (problem.hidden, problem.intermediate);
    let activated = planner.scratch(words(problem.pairs() * inner))?;
    let made = planner.scratch(words(problem.pairs() * hidden))?;
    let x = planner.required("x")?;
    let w_gate_up = operands::expanded(problem, planner, "w_gate_up")?;
    let w_down = operands::expanded(problem, planner, "w_down")?;
    let (up, down) = ([&*x, &*w_gate_up, &*activated], [&*activated, &*w_down, &*made]);
    if let Some(clamp) = problem.clamp {
        let gathered = planner.scratch(words(problem.pairs() * hidden))?;
        hopper::gather(problem, planner, &list, &gathered)?;
        let both = planner.scratch(words(problem.pairs() * 2 * inner))?;
        let up = [&*gathered, &*w_gate_up, &*both];
        product(problem, planner, (&list, tile), up, (2 * inner, hidden, 0))?;
        clamp::plan((problem, clamp), planner, &list, None, [&both, &activated])?;
    } else {
        product(problem, planner, (&list, tile), up, (inner, hidden, up_mode(problem)))?;
    }
    product(problem, planner, (&list, tile), down, (hidden, inner, 0))?;
    sum::plan(problem, planner, &made, &places)
}

arguments! {
    Grouped: moe_grouped {
        from: Pointer, w: Pointer, tiles: Pointer, pairs: Pointer, made: Pointer, columns: i32, channels: i32, top_k: i32,
    }
}

/// Adds a launch over `[from, weights, to]`.
fn product(
    problem: &MoeProblem,
    planner: &mut Planner<'_>,
    (list, tile): (&List, Tile),
    [from, weights, to]: [&Buffer; 3],
    (columns, channels, up): (usize, usize, u8),
) -> Result<(), DeviceError> {
    let kernel = planner.kernel(&source(problem.dtype, tile, up, &planner.arch()))?;
    let args = Grouped {
        from,
        w: weights,
        tiles: &list.tiles,
        pairs: &list.pairs,
        made: to,
        columns: int(columns)?,
        channels: int(channels)?,
        top_k: int(problem.of_token())?,
    };
    let of_block = if up == 1 { ROWS / 2 } else { ROWS };
    let grid = [columns.div_ceil(of_block) as u32, list.most_tiles as u32, 1];
    let launch = Launch::new(grid, THREADS, tile.shared_bytes() as u32);
    planner.launch(kernel, overlapping(planner, launch), args);
    Ok(())
}
