//! `decode`: few tokens, each weight read once. The contracts are in `decode_gate_up.cu` and `decode_down.cu`.

use super::operands::{
    self, AMPERE, CHOOSE, GroupScales, HOPPER, NARROW, ScaleBuffers, Weighing, clamping,
    group_shift, overlapping, weighing, words,
};
use super::route::{self, CHUNK, List};
use crate::{CudaVariant, Planner, arguments, int, source};
use device::cuda::{
    Args, BundledArch, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, SourcePart,
};
use ops::DType;
use ops::moe::{MoeProblem, QuantizedExperts};

pub(super) const VARIANT: CudaVariant<MoeProblem> = CudaVariant { name: "decode", why_not, plan };

const GATE_UP: &[SourcePart] =
    &[AMPERE, NARROW, CHOOSE, source!("decode.cuh"), source!("decode_gate_up.cu")];
const DOWN: &[SourcePart] =
    &[AMPERE, NARROW, CHOOSE, source!("decode.cuh"), source!("decode_down.cu")];

/// Pairs of a tile.
const TILE: usize = 8;
/// `WARPS` of `decode.cuh`, and 16 bytes for each lane of one.
const WARPS: usize = 8;
const PIECE: usize = 512;

/// Compile-time parameters of the kernels; the constants were measured on an H200 (README.md).
#[derive(Debug, Clone, Copy)]
struct DecodeParams {
    tokens: Tokens,
    gated: bool,
    dtype: DType,
    /// Whether this GPU may hold only some of the experts.
    share: bool,
    narrow: Option<QuantizedExperts>,
}

/// The range of the number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tokens {
    /// One token: each block finds its experts without a list.
    One,
    /// Up to [`FEW`].
    Few,
    More,
}

/// Maximum number of tokens for which a block takes eight rows of W_down; with more, the traffic of the tokens is significant
/// compared with that of the weights.
const FEW: usize = 16;

/// Parameters of the down projection.
struct DownProjection {
    /// Rows of a block divided by eight.
    octets: usize,
    /// Steps per iteration.
    span: usize,
    /// Iterations in flight.
    ahead: usize,
}

impl DecodeParams {
    fn one(self) -> bool {
        self.tokens == Tokens::One
    }

    /// Channels in the 16 bytes of weights of a lane.
    fn per_lane(self) -> usize {
        match self.narrow {
            None => 8,
            Some(narrow) => 16 / narrow.dtype.bytes_of(2) * 2,
        }
    }

    /// Channels of a step.
    fn depth(self) -> usize {
        4 * self.per_lane()
    }

    /// Steps in flight in the gate and up projections.
    fn ahead(self) -> usize {
        if self.one() { 4 } else { 3 }
    }

    /// Resident blocks per SM of the gate and up projections: as many as fit in shared memory.
    fn resident(self, here: &CudaCapabilities) -> usize {
        let room = here.shared_bytes as usize / (self.gate_up_bytes() + STATIC_BYTES + 1024);
        room.clamp(1, if self.one() { 4 } else { 3 })
    }

    fn of_down(self) -> DownProjection {
        // A step of quantized weights has more channels: one step is as much work, and twice as many steps in flight
        // are as many bytes.
        let narrow = self.narrow.is_some();
        let (span, times) = if narrow { (1, 2) } else { (2, 1) };
        let (octets, ahead) = match self.tokens {
            // All iterations of a warp for Kimi-Linear's experts.
            Tokens::One => (1, 8),
            Tokens::Few => (1, 4 * times),
            Tokens::More => (2, 3 * times),
        };
        DownProjection { octets, span, ahead }
    }

    /// The source of the gate and up projections or, if `down`, of the down projection.
    fn source(
        self,
        (name, parts): (&'static str, &'static [SourcePart]),
        ahead: usize,
        down: bool,
        arch: &GpuArch,
    ) -> KernelSource {
        let source = KernelSource::new(name, parts, arch.clone())
            .define("DTYPE", self.dtype)
            .define("ONE", u8::from(self.one()))
            .define("AHEAD", ahead)
            .define("GROUPED", u8::from(self.is_grouped(down)))
            .define("SHARE", u8::from(self.share && self.one()));
        operands::of_weights(source, self.narrow)
    }

    fn gate_up(self, arch: &GpuArch) -> KernelSource {
        let source = self.source(("moe_decode_gate_up", GATE_UP), self.ahead(), false, arch);
        if self.gated { source } else { source.define("GATED", 0) }
    }

    fn down(self, arch: &GpuArch) -> KernelSource {
        let down = self.of_down();
        self.source(("moe_decode_down", DOWN), down.ahead, true, arch)
            .define("OCTETS", down.octets)
            .define("SPAN", down.span)
    }

    /// Whether the weights of the gate and up projections, or of the down projection if `down`, have group scales.
    fn is_grouped(self, down: bool) -> bool {
        self.narrow.is_some_and(|narrow| narrow.scales_per_row[usize::from(down)] > 1)
    }

    /// Bytes of a stage of a warp's ring: `octets` times eight rows of weights, and the tokens of `steps` steps.
    fn stage_bytes(self, octets: usize, steps: usize, down: bool) -> usize {
        let of_row = self.narrow.map_or(0, |narrow| if narrow.offset { 2 } else { 1 });
        let factors = if self.is_grouped(down) { of_row } else { 0 };
        let tokens = PIECE * self.per_lane() / 8 / if self.one() { 8 } else { 1 };
        (PIECE + PIECE / 2 * factors) * octets + tokens * steps
    }

    /// Shared memory of a block of the gate and up projections, bytes.
    fn gate_up_bytes(self) -> usize {
        WARPS * self.ahead() * self.stage_bytes(if self.gated { 2 } else { 1 }, 1, false)
    }

    /// Shared memory of a block of the down projection, bytes.
    fn down_bytes(self, tokens: usize) -> usize {
        let down = self.of_down();
        let sums = 4 * WARPS * 8 * down.octets * tokens;
        WARPS * down.ahead * self.stage_bytes(down.span * down.octets, down.span, true) + sums
    }
}

fn params(problem: &MoeProblem) -> DecodeParams {
    let tokens = match problem.tokens {
        1 => Tokens::One,
        0..=FEW => Tokens::Few,
        _ => Tokens::More,
    };
    let share = problem.held < problem.experts;
    let (gated, narrow) = (problem.gated, problem.quantized);
    DecodeParams { tokens, gated, dtype: problem.dtype, share, narrow }
}

/// Whether the kernels for a few tokens read quantized weights in e4m3, i8 or u4 `[rows, columns]` directly, with a
/// scale for each `group` columns of a row or for whole rows. Otherwise each call dequantizes them to bf16.
pub fn reads_once(dtype: DType, columns: usize, group: Option<usize>) -> bool {
    let narrow = Some(QuantizedExperts { dtype, scales_per_row: [1; 2], group: 0, offset: false });
    let tokens = Tokens::One;
    let params = DecodeParams { tokens, gated: true, dtype: DType::Bf16, share: false, narrow };
    columns.is_multiple_of(params.per_lane())
        && group.is_none_or(|group| group_shift(group, params.depth()).is_some())
}

fn why_not(problem: &MoeProblem, here: &CudaCapabilities) -> Option<String> {
    if problem.tokens > CHUNK {
        return Some(format!("takes up to {CHUNK} tokens, got {}", problem.tokens));
    }
    if let Some(reason) = operands::why_not(problem, here) {
        return Some(reason);
    }
    let params = params(problem);
    if let Some(narrow) = problem.quantized {
        for (name, channels, scales) in [
            ("H", problem.hidden, narrow.scales_per_row[0]),
            ("I", problem.intermediate, narrow.scales_per_row[1]),
        ] {
            let (lane, type_) = (params.per_lane(), narrow.dtype);
            if !channels.is_multiple_of(lane) {
                return Some(format!(
                    "needs {name} a multiple of {lane} in {type_}, got {channels}"
                ));
            }
            if scales > 1 && group_shift(narrow.group, params.depth()).is_none() {
                let (depth, group) = (params.depth(), narrow.group);
                return Some(format!(
                    "needs groups of {depth} times a power of two of columns in {type_}, got {group}"
                ));
            }
        }
    }
    let wanted = params.gate_up_bytes().max(params.down_bytes(problem.tokens)) + STATIC_BYTES;
    let most = here.shared_bytes as usize;
    (wanted > most).then(|| format!("needs {wanted} bytes of shared memory, a block has {most}"))
}

/// Maximum static shared memory of the kernels.
const STATIC_BYTES: usize = 8448;

/// Bundled kernels: all on Hopper, where they were measured; elsewhere those for one token.
pub(super) fn bundled(
    dtype: DType,
    narrow: Option<QuantizedExperts>,
    here: &BundledArch,
) -> Vec<KernelSource> {
    let arch = &here.arch();
    let [one, few, more] = [Tokens::One, Tokens::Few, Tokens::More].map(|tokens| DecodeParams {
        tokens,
        gated: true,
        dtype,
        share: false,
        narrow,
    });
    let squared = |params: DecodeParams| DecodeParams { gated: false, ..params }.gate_up(arch);
    let mut sources = vec![one.gate_up(arch), squared(one), one.down(arch)];
    if here.compute == HOPPER {
        sources.extend([few.gate_up(arch), squared(few), few.down(arch), more.down(arch)]);
        sources.push(route::route_source(TILE, arch));
        let rank = DecodeParams { share: true, ..one };
        sources.extend([rank.gate_up(arch), rank.down(arch)]);
    }
    sources
}

arguments! {
    GateUp: moe_decode_gate_up {
        x: Pointer, w_gate_up: Pointer, logits: Nullable, correction: Nullable, chosen: Nullable, weights: Pointer,
        tiles: Nullable, pairs: Nullable, made: Pointer, hidden: i32, inner: i32, weighing: (Weighing), scales: (GroupScales),
        bias: Nullable, limit: f32, alpha: f32,
    }
}

arguments! {
    WayDown: moe_decode_down {
        made: Pointer, w_down: Pointer, logits: Nullable, correction: Nullable, tiles: Nullable, pairs: Nullable,
        residual: Nullable, o: Pointer, tokens: i32, hidden: i32, inner: i32, experts: i32, first_held: i32, held: i32, top_k: i32,
        always: i32, sigmoid: i32, scale: f32, scales: (GroupScales), bias: Nullable, chosen: Pointer, weights: Pointer,
    }
}

fn plan(problem: &MoeProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let (params, arch) = (params(problem), &planner.arch());
    let (way_up, way_down) =
        (planner.kernel(&params.gate_up(arch))?, planner.kernel(&params.down(arch))?);
    let list = match params.one() {
        true => None,
        false => Some(route::plan_few(problem, planner, TILE)?),
    };
    let tiles = |list: &List| list.tiles.clone();
    let (tiles, pairs, most_tiles) = match &list {
        Some(list) => (Some(tiles(list)), Some(list.pairs.clone()), list.most_tiles),
        None => (None, None, problem.of_token()),
    };
    let (hidden, inner) = (problem.hidden, problem.intermediate);
    let made = planner.scratch(words(problem.pairs() * inner))?;
    let own = |buffer| if params.one() { Some(buffer) } else { None };
    let logits = planner.required("logits")?;
    let correction = planner.input("correction")?.filter(|_| params.one());
    let (chosen, weights) = (planner.output("chosen")?, planner.output("weights")?);
    let [limit, alpha] = clamping(problem);

    let scales_up = ScaleBuffers::new(problem, planner, "w_gate_up", params.depth())?;
    let scales_down = ScaleBuffers::new(problem, planner, "w_down", params.depth())?;
    let args = Args::from(GateUp {
        x: &*planner.required("x")?,
        w_gate_up: &*planner.required("w_gate_up")?,
        logits: own(&*logits),
        correction: correction.as_deref(),
        chosen: own(&*chosen),
        weights: &weights,
        tiles: tiles.as_deref(),
        pairs: pairs.as_deref(),
        made: &made,
        hidden: int(problem.hidden)?,
        inner: int(inner)?,
        weighing: weighing(problem)?,
        scales: scales_up.args()?,
        bias: planner.input("gate_up_bias")?.as_deref(),
        limit,
        alpha,
    });
    // Blocks process the list in a grid-stride loop: as many start as can be resident.
    let (across, most) =
        (inner / 8, params.resident(planner.here()) * planner.here().multiprocessors as usize);
    let down = most_tiles.min((most / across).max(1));
    let grid = [across as u32, down as u32, 1];
    let launch = Launch::new(grid, 32 * WARPS as u32, params.gate_up_bytes() as u32);
    let launch = overlapping(planner, launch);
    planner.launch(way_up, launch, args);

    let Weighing { experts, first_held, held, top_k, always, sigmoid, .. } = weighing(problem)?;
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
        first_held,
        held,
        top_k,
        always,
        sigmoid,
        scale: problem.scale as f32,
        scales: scales_down.args()?,
        bias: planner.input("down_bias")?.as_deref(),
        chosen: &chosen,
        weights: &weights,
    });
    // Without tokens there are no tiles to read.
    let rows = 8 * params.of_down().octets;
    let blocks = if problem.tokens == 0 { 0 } else { hidden.div_ceil(rows) };
    let launch = Launch::new(
        [blocks as u32, 1, 1],
        32 * WARPS as u32,
        params.down_bytes(problem.tokens) as u32,
    );
    let launch = overlapping(planner, launch);
    planner.launch(way_down, launch, args);
    Ok(())
}
