//! `decode`: few tokens, each weight read once. The contracts stand in `decode_gate_up.cu` and `decode_down.cu`.

use super::operands::{self, AMPERE, CHOOSE, HOPPER, Weighing, overlapping, weighing, words};
use super::route::{self, CHUNK, List};
use crate::DType;
use crate::cuda::{CudaVariant, Planner, arguments, int};
use crate::moe::MoeProblem;
use device::cuda::{Args, BundledArch, CudaCapabilities, CudaError, GpuArch, KernelSource, Launch};

pub(super) const VARIANT: CudaVariant<MoeProblem> = CudaVariant { name: "decode", why_not, plan };

const GATE_UP: &[&str] =
    &[AMPERE, CHOOSE, include_str!("decode.cuh"), include_str!("decode_gate_up.cu")];
const DOWN: &[&str] = &[AMPERE, CHOOSE, include_str!("decode.cuh"), include_str!("decode_down.cu")];

/// Pairs of a tile.
const TILE: usize = 8;
/// `WARPS` of `decode.cuh`, and 16 bytes for each lane of one.
const WARPS: usize = 8;
const PIECE: usize = 512;

/// How a form of the kernels is compiled; the numbers were measured on an H200 (README.md).
#[derive(Debug, Clone, Copy)]
struct Form {
    tokens: Tokens,
    gated: bool,
    dtype: DType,
}

/// How many tokens there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tokens {
    /// A single one, whose experts each block finds by itself.
    One,
    /// Up to [`FEW`].
    Few,
    More,
}

/// Tokens up to which rows of W_down come in eights: with more, what is read of tokens counts beside what is read of weights.
const FEW: usize = 16;

/// How a block of the way down works.
struct Down {
    /// Rows, in eights.
    octets: usize,
    /// Depths of 32 that are worked on at once.
    span: usize,
    /// Spans that are under way.
    ahead: usize,
}

impl Form {
    fn one(self) -> bool {
        self.tokens == Tokens::One
    }

    /// Depths of 32 that are under way on the way up.
    fn ahead(self) -> usize {
        if self.one() { 4 } else { 3 }
    }

    /// Blocks of a multiprocessor on the way up.
    fn resident(self) -> usize {
        if self.one() { 4 } else { 3 }
    }

    fn of_down(self) -> Down {
        match self.tokens {
            Tokens::One => Down { octets: 1, span: 2, ahead: 8 },
            Tokens::Few => Down { octets: 1, span: 2, ahead: 4 },
            Tokens::More => Down { octets: 2, span: 2, ahead: 3 },
        }
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
            .define("ONE", u8::from(self.one()))
            .define("AHEAD", ahead)
    }

    fn gate_up(self, arch: &GpuArch) -> KernelSource {
        let source = self.source("moe_decode_gate_up", GATE_UP, self.ahead(), arch);
        if self.gated { source } else { source.define("GATED", 0) }
    }

    fn down(self, arch: &GpuArch) -> KernelSource {
        let down = self.of_down();
        self.source("moe_decode_down", DOWN, down.ahead, arch)
            .define("OCTETS", down.octets)
            .define("SPAN", down.span)
    }

    /// A stage of a warp's ring with so many rows of weights, in eights, and tokens, bytes.
    fn stage_bytes(self, octets: usize) -> usize {
        PIECE * octets + if self.one() { PIECE / 8 } else { PIECE }
    }

    /// Shared memory of a block on the way up, bytes.
    fn gate_up_bytes(self) -> usize {
        WARPS * self.ahead() * self.stage_bytes(if self.gated { 2 } else { 1 })
    }

    /// The same on the way down.
    fn down_bytes(self, tokens: usize) -> usize {
        let down = self.of_down();
        let sums = 4 * WARPS * 8 * down.octets * tokens;
        WARPS * down.ahead * down.span * self.stage_bytes(down.octets) + sums
    }
}

fn form(problem: &MoeProblem) -> Form {
    let tokens = match problem.tokens {
        1 => Tokens::One,
        0..=FEW => Tokens::Few,
        _ => Tokens::More,
    };
    Form { tokens, gated: problem.gated, dtype: problem.dtype }
}

fn why_not(problem: &MoeProblem, here: &CudaCapabilities) -> Option<String> {
    if problem.tokens > CHUNK {
        return Some(format!("takes up to {CHUNK} tokens, got {}", problem.tokens));
    }
    if let Some(reason) = operands::why_not(problem, here) {
        return Some(reason);
    }
    let form = form(problem);
    let wanted = form.gate_up_bytes().max(form.down_bytes(problem.tokens)) + STATIC_BYTES;
    let most = here.shared_bytes as usize;
    (wanted > most).then(|| format!("needs {wanted} bytes of shared memory, a block has {most}"))
}

/// Shared memory that the kernels declare themselves, at most.
const STATIC_BYTES: usize = 8448;

/// For the bundle: on Hopper, for which this was measured, all of it; elsewhere what a single token needs.
pub(super) fn bundled(dtype: DType, here: &BundledArch) -> Vec<KernelSource> {
    let arch = &here.arch();
    let [one, few, more] =
        [Tokens::One, Tokens::Few, Tokens::More].map(|tokens| Form { tokens, gated: true, dtype });
    let squared = |form: Form| Form { gated: false, ..form }.gate_up(arch);
    let mut sources = vec![one.gate_up(arch), squared(one), one.down(arch)];
    if here.compute == HOPPER {
        sources.extend([few.gate_up(arch), squared(few), few.down(arch), more.down(arch)]);
        sources.push(route::route_source(TILE, arch));
    }
    sources
}

arguments! {
    GateUp: moe_decode_gate_up {
        x: Pointer, w_gate_up: Pointer, logits: Nullable, correction: Nullable, chosen: Nullable, weights: Pointer,
        tiles: Nullable, pairs: Nullable, made: Pointer, hidden: i32, inner: i32, weighing: (Weighing),
    }
}

arguments! {
    WayDown: moe_decode_down {
        made: Pointer, w_down: Pointer, logits: Nullable, correction: Nullable, tiles: Nullable, pairs: Nullable,
        residual: Nullable, o: Pointer, tokens: i32, hidden: i32, inner: i32, experts: i32, top_k: i32, sigmoid: i32, scale: f32,
    }
}

fn plan(problem: &MoeProblem, planner: &mut Planner<'_>) -> Result<(), CudaError> {
    let (form, arch) = (form(problem), &planner.arch());
    let (way_up, way_down) =
        (planner.kernel(&form.gate_up(arch))?, planner.kernel(&form.down(arch))?);
    let list = match form.one() {
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
    let own = |buffer| if form.one() { Some(buffer) } else { None };
    let logits = planner.required("logits")?;
    let correction = planner.input("correction")?.filter(|_| form.one());
    let chosen = planner.output("chosen")?;

    let args = Args::from(GateUp {
        x: &*planner.required("x")?,
        w_gate_up: &*planner.required("w_gate_up")?,
        logits: own(&*logits),
        correction: correction.as_deref(),
        chosen: own(&*chosen),
        weights: &*planner.output("weights")?,
        tiles: tiles.as_deref(),
        pairs: pairs.as_deref(),
        made: &made,
        hidden: int(problem.hidden)?,
        inner: int(inner)?,
        weighing: weighing(problem)?,
    });
    // Blocks walk the list: as many start as can be resident.
    let (across, most) = (inner / 8, form.resident() * planner.here().multiprocessors as usize);
    let down = most_tiles.min((most / across).max(1));
    let grid = [across as u32, down as u32, 1];
    let launch = Launch::new(grid, 32 * WARPS as u32, form.gate_up_bytes() as u32);
    let launch = overlapping(planner, launch);
    planner.launch(way_up, launch, args);

    let Weighing { experts, top_k, sigmoid, .. } = weighing(problem)?;
    let args = Args::from(WayDown {
        made: &made,
        w_down: &*planner.required("w_down")?,
        logits: own(&*logits),
        correction: correction.as_deref(),
        tiles: tiles.as_deref(),
        pairs: pairs.as_deref(),
        residual: planner.input("residual")?.as_deref(),
        o: &*planner.output("o")?,
        tokens: int(problem.tokens)?,
        hidden: int(problem.hidden)?,
        inner: int(inner)?,
        experts,
        top_k,
        sigmoid,
        scale: problem.scale as f32,
    });
    // Without tokens there are no tiles to read.
    let rows = 8 * form.of_down().octets;
    let blocks = if problem.tokens == 0 { 0 } else { hidden.div_ceil(rows) };
    let launch = Launch::new(
        [blocks as u32, 1, 1],
        32 * WARPS as u32,
        form.down_bytes(problem.tokens) as u32,
    );
    let launch = overlapping(planner, launch);
    planner.launch(way_down, launch, args);
    Ok(())
}
