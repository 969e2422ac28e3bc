//! `decode`: few tokens, each weight read once. The contracts stand in `decode_gate_up.cu` and `decode_down.cu`.

use super::operands::{self, AMPERE, CHOOSE, HOPPER, overlapping, router, weighing_router, words};
use super::route::{self, CHUNK, List};
use crate::DType;
use crate::cuda::{CudaVariant, Planner, int};
use crate::moe::MoeProblem;
use device::cuda::{Args, BundledArch, CudaCapabilities, CudaError, GpuArch, KernelSource, Launch};

pub(super) const VARIANT: CudaVariant<MoeProblem> = CudaVariant { name: "decode", why_not, plan };

const GATE_UP: &[&str] =
    &[AMPERE, CHOOSE, include_str!("decode.cuh"), include_str!("decode_gate_up.cu")];
const DOWN: &[&str] = &[AMPERE, CHOOSE, include_str!("decode.cuh"), include_str!("decode_down.cu")];

/// Pairs of a tile: rows of a matrix product.
const TILE: usize = 16;
/// `WARPS`, `DEPTH` and a lane's 16 bytes for each of 32, of `decode.cuh`.
const WARPS: usize = 8;
const DEPTH: usize = 32;
const PIECE: usize = 512;

/// How a form of the kernels is compiled.
#[derive(Debug, Clone, Copy)]
struct Form {
    /// A single token, whose experts each block finds by itself.
    one: bool,
    dtype: DType,
}

impl Form {
    /// Depths of 32 that are under way on the way up and on the way down, measured on an H200 (README.md).
    fn ahead(self) -> (usize, usize) {
        if self.one { (6, 12) } else { (4, 4) }
    }

    fn source(
        self,
        name: &'static str,
        parts: &'static [&'static str],
        ahead: usize,
        arch: &GpuArch,
    ) -> KernelSource {
        KernelSource::new(name, parts, arch.clone())
            .define("DTYPE", self.dtype)
            .define("ONE", u8::from(self.one))
            .define("AHEAD", ahead)
    }

    fn gate_up(self, arch: &GpuArch) -> KernelSource {
        self.source("moe_decode_gate_up", GATE_UP, self.ahead().0, arch)
    }

    fn down(self, arch: &GpuArch) -> KernelSource {
        self.source("moe_decode_down", DOWN, self.ahead().1, arch).define("OCTETS", OCTETS)
    }

    /// Shared memory of a block on the way up, bytes.
    fn gate_up_bytes(self, problem: &MoeProblem) -> usize {
        let pieces = if self.one { 2 } else { 4 };
        let token = if self.one { 2 * problem.hidden.next_multiple_of(DEPTH) } else { 0 };
        WARPS * PIECE * pieces * self.ahead().0 + token
    }

    /// The same on the way down.
    fn down_bytes(self, problem: &MoeProblem) -> usize {
        let pieces = if self.one { 1 } else { OCTETS + 2 };
        let token = 2 * problem.top_k * problem.intermediate.next_multiple_of(DEPTH);
        let sums = 4 * WARPS * 8 * OCTETS * problem.tokens;
        WARPS * PIECE * pieces * self.ahead().1 + sums + if self.one { token } else { 0 }
    }
}

/// Rows of W_down of a block, in eights.
const OCTETS: usize = 1;

fn form(problem: &MoeProblem) -> Form {
    Form { one: problem.tokens == 1, dtype: problem.dtype }
}

fn why_not(problem: &MoeProblem, here: &CudaCapabilities) -> Option<String> {
    if problem.tokens > CHUNK {
        return Some(format!("takes up to {CHUNK} tokens, got {}", problem.tokens));
    }
    if let Some(reason) = operands::why_not(problem, here) {
        return Some(reason);
    }
    let form = form(problem);
    let wanted = form.gate_up_bytes(problem).max(form.down_bytes(problem)) + STATIC_BYTES;
    let most = here.shared_bytes as usize;
    (wanted > most).then(|| format!("needs {wanted} bytes of shared memory, a block has {most}"))
}

/// Shared memory that the kernels declare themselves, at most.
const STATIC_BYTES: usize = 8320;

/// For the bundle: on Hopper, for which this was measured, all of it; elsewhere what a single token needs.
pub(super) fn bundled(dtype: DType, here: &BundledArch) -> Vec<KernelSource> {
    let arch = &here.arch();
    let (one, few) = (Form { one: true, dtype }, Form { one: false, dtype });
    let mut sources = vec![one.gate_up(arch), one.down(arch)];
    if here.compute == HOPPER {
        sources.extend([few.gate_up(arch), few.down(arch), route::route_source(TILE, arch)]);
    }
    sources
}

fn plan(problem: &MoeProblem, planner: &mut Planner<'_>) -> Result<(), CudaError> {
    let (form, arch) = (form(problem), &planner.arch());
    let (gate_up, down) = (planner.kernel(&form.gate_up(arch))?, planner.kernel(&form.down(arch))?);
    let list = match form.one {
        true => None,
        false => Some(route::plan_few(problem, planner, TILE)?),
    };
    let tiles = |list: &List| list.tiles.clone();
    let (tiles, pairs, most_tiles) = match &list {
        Some(list) => (Some(tiles(list)), Some(list.pairs.clone()), list.most_tiles),
        None => (None, None, problem.top_k),
    };
    let (hidden, inner) = (problem.hidden, problem.intermediate);
    let made = planner.scratch(words(problem.pairs() * inner))?;
    let own = |buffer| if form.one { Some(buffer) } else { None };
    let logits = planner.required("logits")?;
    let correction = planner.input("correction")?.filter(|_| form.one);
    let chosen = planner.output("chosen")?;

    let args = Args::new()
        .buffer(&*planner.required("x")?)
        .buffer(&*planner.required("w_gate_up")?)
        .maybe(own(&*logits))
        .maybe(correction.as_deref())
        .maybe(own(&*chosen))
        .buffer(&*planner.output("weights")?)
        .maybe(tiles.as_deref())
        .maybe(pairs.as_deref())
        .buffer(&made)
        .i32(int(hidden)?)
        .i32(int(inner)?);
    let grid = [inner.div_ceil(8) as u32, most_tiles as u32, 1];
    let launch = Launch::new(grid, 32 * WARPS as u32, form.gate_up_bytes(problem) as u32);
    let launch = overlapping(planner, launch);
    planner.launch(gate_up, launch, weighing_router(args, problem)?);

    let args = Args::new()
        .buffer(&made)
        .buffer(&*planner.required("w_down")?)
        .maybe(own(&*logits))
        .maybe(correction.as_deref())
        .maybe(tiles.as_deref())
        .maybe(pairs.as_deref())
        .maybe(planner.input("residual")?.as_deref())
        .buffer(&*planner.output("o")?)
        .i32(int(problem.tokens)?)
        .i32(int(hidden)?)
        .i32(int(inner)?);
    // Without tokens there are no tiles to read.
    let blocks = if problem.tokens == 0 { 0 } else { hidden / (8 * OCTETS) };
    let launch =
        Launch::new([blocks as u32, 1, 1], 32 * WARPS as u32, form.down_bytes(problem) as u32);
    let launch = overlapping(planner, launch);
    planner.launch(down, launch, router(args, problem)?.f32(problem.scale as f32));
    Ok(())
}
