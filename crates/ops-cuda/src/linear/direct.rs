//! `direct`: up to 32 rows of x by e4m3 or integer weights, which are loaded straight into registers. The contract is in
//! `direct_contract.cuh`.

use super::operands::{OUTPUTS, factor_bits, firsts, in_storage, squared};
use super::stream::{FEW, blocks};
use crate::{CudaVariant, Planner, arguments, int, slots, source};
use device::cuda::{
    Buffer, ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, Part,
};
use ops::DType;
use ops::linear::{LinearProblem, SCALED, Scales};

mod bundle;
mod share;
pub(super) use bundle::bundled;
use share::Share;

pub(super) const VARIANT: CudaVariant<LinearProblem> =
    CudaVariant { name: "direct", why_not, plan };

/// The sources that both kernels share, followed by the kernel's own.
macro_rules! parts {
    ($($own:literal),+) => {
        &[
            source!("../include/ampere.cuh"),
            source!("../include/storage.cuh"),
            source!("../include/narrow.cuh"),
            source!("convolution.cuh"),
            source!("stream.cuh"),
            source!("direct_weights.cuh"),
            source!("direct_batch.cuh"),
            source!("direct_numbers.cuh"),
            source!("direct_rows.cuh"),
            source!("direct_around.cuh"),
            $(source!($own)),+,
        ]
    };
}

const PARTS: &[Part] = parts!("direct_contract.cuh", "direct.cu");

/// The prologue kernel: normalizes and reorders several rows of x in a separate launch.
const READY: &[Part] = parts!("direct_ready.cu");

/// As in `direct.cu` and `stream.cuh`.
const WARPS: usize = 8;
const ROWS: usize = 16;
const SEGMENT: usize = 256;
const SUM_STRIDE: usize = 20;

/// Most warps of a prologue block; each takes a segment.
const MOST_WARPS: usize = 32;

/// Row counts that kernels are compiled for; `MOST` is the largest.
const ROWS_OF_X: [usize; 4] = [1, FEW, 16, MOST];
const MOST: usize = 32;

/// Columns of a GGUF block, which has one scale.
const BLOCK: usize = 32;

/// Most times that a block reads x from L2.
const AGAIN: usize = 2;

/// Split-K factors, smallest first, for calls whose rows of x do not fit in one block's shared memory.
const SPLITS: [usize; 2] = [2, 4];

/// Most shared memory that leaves L1 enough capacity for the weights in flight, bytes.
const LITTLE: usize = 80 << 10;

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weights {
    E4m3,
    I8,
    U4,
}

impl Weights {
    fn of(problem: &LinearProblem) -> Option<Self> {
        match problem.w_dtype {
            DType::E4m3 => Some(Self::E4m3),
            DType::I8 => Some(Self::I8),
            DType::U4 => Some(Self::U4),
            _ => None,
        }
    }

    fn integers(self) -> bool {
        self != Self::E4m3
    }

    fn four_bits(self) -> bool {
        self == Self::U4
    }

    /// Columns that all warps load at once. `by_block`: the sums of each 32 columns are scaled separately.
    fn round(self, by_block: bool) -> usize {
        WARPS * if self.four_bits() || by_block { 256 } else { 128 }
    }

    /// Batches in flight per warp when the sums of all tiles do not fit in shared memory at once.
    fn ring(self, by_block: bool, tokens: usize) -> usize {
        match self {
            Self::E4m3 if (2..=FEW).contains(&tokens) => 6,
            _ if self.four_bits() || by_block => 3,
            _ => 4,
        }
    }

    /// Columns that share a scale if they are few: 32 for most GGUF types, 16 for Q6_K.
    fn block(self, problem: &LinearProblem) -> Option<usize> {
        let sizes: &[usize] = match self {
            Self::E4m3 => &[],
            Self::I8 => &[BLOCK, BLOCK / 2],
            Self::U4 => &[BLOCK],
        };
        sizes.iter().copied().find(|size| by_groups(problem, *size))
    }
}

/// Compile-time parameters of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Form {
    weights: Weights,
    /// Whether each 128 columns of a row have a separate scale.
    grouped: bool,
    /// Columns of a row that otherwise share a scale, 0 for none.
    blocks: usize,
    /// Whether these groups have offsets too (one row of x), or offsets or zero points (more than eight rows).
    /// Kernels for two to eight rows test for them at run time, which costs nothing there.
    offset: bool,
    /// Most rows of x.
    tokens: usize,
    /// Whether each block normalizes x itself: only for one row.
    normed: bool,
    x_f32: bool,
    /// Whether x is read from global memory at each multiplication.
    through: bool,
    residual: bool,
    swiglu: bool,
    squared: bool,
    /// Taps of a fused convolution, 0 for none.
    taps: usize,
    /// The split-K factor.
    parts: usize,
}

impl Form {
    /// The last launch may have fewer rows than the others and uses the same kernel.
    fn of(problem: &LinearProblem, weights: Weights, share: Share) -> Self {
        let one = problem.tokens <= 1;
        let folded = weights.block(problem).is_some() && share.tokens > FEW;
        let least = if folded { FEW + 1 } else { 0 };
        let enough = |most: &usize| (share.tokens.max(least)..).contains(most);
        Self {
            weights,
            grouped: by_groups(problem, SCALED) && !in_registers(problem, weights),
            blocks: if in_registers(problem, weights) { problem.w_group } else { 0 },
            offset: problem.offsets && one || folded && (problem.offsets || problem.zeros),
            tokens: ROWS_OF_X.into_iter().find(enough).unwrap_or(MOST),
            normed: one && problem.norm.is_some(),
            x_f32: one && problem.x_dtype == DType::F32,
            through: share.through,
            residual: problem.residual,
            swiglu: problem.swiglu,
            squared: problem.squared,
            taps: problem.convolution.as_ref().map_or(0, |of| of.width),
            parts: share.parts,
        }
    }

    /// Parameters of the prologue kernel that prepares x for this one, with or without a norm.
    fn ready(self, normed: bool, x_f32: bool) -> Self {
        let most = if self.weights.integers() && self.blocks == 0 { 16 } else { FEW };
        let tokens = if self.tokens <= most { FEW } else { MOST };
        let (residual, swiglu, squared, taps) = (false, false, false, 0);
        let (grouped, offset, parts) = (false, false, 1);
        let of_x = Self { tokens, normed, x_f32, ..self };
        Self { grouped, offset, residual, swiglu, squared, taps, parts, ..of_x }
    }

    fn source(self, arch: GpuArch) -> KernelSource {
        self.source_of("linear_direct", PARTS, arch)
    }

    fn ready_source(self, arch: GpuArch) -> KernelSource {
        self.source_of("linear_direct_ready", READY, arch)
    }

    fn source_of(self, name: &'static str, parts: &'static [Part], arch: GpuArch) -> KernelSource {
        let Self {
            weights, grouped, blocks, tokens, normed, x_f32, through, residual, swiglu, ..
        } = self;
        let flags = [
            ("OFFSET", self.offset),
            ("INTEGERS", weights.integers()),
            ("GROUPED", grouped),
            ("NORMED", normed),
            ("X_F32", x_f32),
            ("THROUGH", through),
            ("RESIDUAL", residual),
            ("SWIGLU", swiglu),
        ];
        let source = squared(KernelSource::new(name, parts, arch), self.squared)
            .define("DTYPE", DType::Bf16)
            .define("WEIGHT_BITS", if weights.four_bits() { 4 } else { 8 })
            .define("TOKENS", tokens)
            .define("BLOCKS", blocks)
            .define("TAPS", self.taps)
            .define("PARTS", self.parts);
        flags.into_iter().fold(source, |source, (name, flag)| source.define(name, u8::from(flag)))
    }
}

fn why_not(problem: &LinearProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    let Some(weights) = Weights::of(problem) else {
        return Some(format!("needs weights in e4m3 or integers, got {}", problem.w_dtype));
    };
    if problem.tokens > MOST {
        return Some(format!("is for up to {MOST} rows of x, got {}", problem.tokens));
    }
    if problem.convolution.is_some() && problem.tokens > FEW {
        return Some(format!("convolves up to {FEW} rows of x, got {}", problem.tokens));
    }
    let whole = if weights.four_bits() { 32 } else { 16 };
    if !problem.inputs.is_multiple_of(whole) {
        return Some(format!("needs K a multiple of {whole}, got {}", problem.inputs));
    }
    if problem.scales == Some(Scales::Groups) {
        let group = problem.w_group;
        match group {
            SCALED => {}
            _ if weights.block(problem).is_some() => {}
            _ if !weights.integers() => {
                return Some(format!("needs groups of {SCALED} columns, got {group}"));
            }
            _ => return Some(format!("needs groups of {SCALED} or {BLOCK} columns, got {group}")),
        }
    }
    if problem.offsets && !by_groups(problem, BLOCK) {
        return Some(format!("subtracts offsets of groups of {BLOCK} columns alone"));
    }
    if problem.ordered {
        return Some("multiplies columns of x as they come, not in an order".to_owned());
    }
    if let Some(norm) = problem.norm.filter(|norm| problem.tokens <= 1 && norm.groups > 1) {
        return Some(format!("normalises x as a whole, not in {} groups", norm.groups));
    }
    if Share::of(problem, weights, here).is_none() {
        return Some(format!("has no room in shared memory for {} rows of x", problem.tokens));
    }
    None
}

/// Why a variant that dequantizes weights to bf16 first leaves a call to this one: with few rows the second rounding
/// is visible. Two rows of 320 gates and ups of u4 differ by 3.9e-3 on average, and in one of sixty draws by more
/// than 5e-3.
pub(super) fn instead(problem: &LinearProblem, here: &CudaCapabilities) -> Option<String> {
    let few = problem.scales.is_some() && problem.tokens <= FEW;
    (few && why_not(problem, here).is_none()).then(|| {
        let narrow = problem.w_dtype;
        format!("rounds {narrow} once more: `direct` reads it as it is, up to {FEW} rows of x")
    })
}

/// Whether each `columns` columns of a row have a scale.
fn by_groups(problem: &LinearProblem, columns: usize) -> bool {
    problem.scales == Some(Scales::Groups) && problem.w_group == columns
}

/// Whether group scales are loaded into registers together with the weights.
fn in_registers(problem: &LinearProblem, weights: Weights) -> bool {
    let one = problem.tokens == 1 && weights.four_bits();
    weights.block(problem).is_some() || one && by_groups(problem, SCALED)
}

/// Number of blocks over which the columns are distributed; with split-K, of groups of `parts` blocks.
fn shares(problem: &LinearProblem, here: &CudaCapabilities, parts: usize) -> usize {
    let blocks = blocks(problem, here);
    (blocks / parts).max(blocks.min(1))
}

arguments! {
    LinearDirect: linear_direct {
        x: Pointer, w: Pointer, norm: Nullable, bias: Nullable, residual: Nullable, o0: Nullable, o1: Nullable, o2: Nullable,
        o3: Nullable, o4: Nullable, o5: Nullable, start1: i32, start2: i32, start3: i32, start4: i32, start5: i32, tokens: i32,
        inputs: i32, columns: i32, norm_f32: i32, bias_f32: i32, out_f32: i32, scale: f32, eps: f32, held: i32,
        conv_weight: Nullable, conv_bias: Nullable, initial_state: Nullable, final_state: Nullable, state_indices: Nullable,
        conv_weight_f32: i32, conv_bias_f32: i32, conv_silu: i32, conv_first: i32, conv_channels: i32, w_scale: Pointer,
        w_zero: Nullable, w_offset: Nullable, factor_bits: i32, partial: Nullable, counters: Nullable,
    }
}

arguments! {
    LinearDirectReady: linear_direct_ready {
        x: Pointer, norm: Nullable, to: Pointer, tokens: i32, inputs: i32, norm_f32: i32, eps: f32, depth: i32,
    }
}

fn plan(problem: &LinearProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let no_room = || DeviceError::Refused { what: "no room in shared memory".to_owned() };
    let weights = Weights::of(problem).ok_or_else(no_room)?;
    let share = Share::of(problem, weights, planner.here()).ok_or_else(no_room)?;
    let several = problem.tokens > 1;
    // Several rows of x are prepared in multiplication order by one prologue launch. If that is not possible, another
    // one writes them in row order.
    let by_block = by_groups(problem, BLOCK) && share.tokens <= FEW;
    let round = weights.round(by_block);
    let segments = problem.inputs.div_ceil(round) * round / SEGMENT;
    let apart = problem.norm.is_some_and(|norm| norm.groups > 1 || segments > MOST_WARPS);
    let stored = share.through || several && apart;
    let x = if stored { in_storage(problem, planner)? } else { planner.required("x")? };
    let norm = if stored { None } else { planner.input("norm")? };
    let normed = !stored && problem.norm.is_some();
    let x_dtype = if stored { problem.dtype } else { problem.x_dtype };
    let rows = several && !share.through;
    let ready = rows.then(|| planner.scratch((share.parts * share.x).div_ceil(4))).transpose()?;
    let eps = problem.norm.map_or(0.0, |norm| norm.eps) as f32;
    let (w, bias) = (planner.required("w")?, planner.input("bias")?);
    let residual = planner.input("residual")?;
    let factor_bits = factor_bits(planner);
    let (w_scale, w_zero) = (planner.required("w_scale")?, planner.input("w_zero")?);
    let w_offset = planner.input("w_offset")?;
    let mut outputs = Vec::new();
    for (name, width) in OUTPUTS.into_iter().zip(&problem.widths) {
        outputs.push((planner.output(name)?, width * problem.out.bytes()));
    }
    let [start1, start2, start3, start4, start5] = firsts(problem)?;
    let convolution = problem.convolution.as_ref();
    let (conv_weight, conv_bias) = (planner.input("conv_weight")?, planner.input("conv_bias")?);
    let initial_state = planner.input("initial_state")?;
    let final_state = convolution.map(|_| planner.output("final_state")).transpose()?;
    let state_indices = planner.input("state_indices")?;
    let shares = shares(problem, planner.here(), share.parts);
    let blocks = shares * share.parts;
    int(problem.columns() * blocks)?;
    let sums = share.parts * problem.tokens * problem.columns();
    let in_parts = share.parts > 1;
    let partial = in_parts.then(|| planner.scratch(sums)).transpose()?;
    let counters = in_parts.then(|| planner.zeroed(shares)).transpose()?;
    let form = Form::of(problem, weights, share);
    for first in (0..problem.tokens.max(1)).step_by(share.tokens.max(1)) {
        let kernel = planner.kernel(&form.source(planner.arch()))?;
        let tokens = share.tokens.min(problem.tokens - first);
        let part = |of: &Buffer, row: usize| of.part(first * row, tokens * row);
        let parts = outputs.iter().map(|(output, row)| part(output, *row));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let [o0, o1, o2, o3, o4, o5] = std::array::from_fn(|at| parts.get(at));
        let row = problem.columns() * DType::F32.bytes();
        let residual = residual.as_ref().map(|residual| part(residual, row)).transpose()?;
        let x = part(&x, problem.inputs * x_dtype.bytes())?;
        if let Some(to) = &ready {
            let form = form.ready(normed, x_dtype == DType::F32);
            let kernel = planner.kernel(&form.ready_source(planner.arch()))?;
            let norm_f32 = planner.is_f32("norm");
            let (norm, tokens, inputs) = (norm.as_deref(), int(tokens)?, int(problem.inputs)?);
            let depth = int(problem.inputs / share.parts)?;
            let args = LinearDirectReady { x: &x, norm, to, tokens, inputs, norm_f32, eps, depth };
            // A large block does not fit on an SM next to the previous kernel's and starts only after it; a norm
            // needs the whole row in one block.
            let warps = segments.min(if normed { MOST_WARPS } else { 8 });
            let sharing = if normed { 1 } else { segments.div_ceil(warps) };
            let launch = Launch::new([tokens as u32, sharing as u32, 1], 32 * warps as u32, 0);
            let launch = planner.overlapping(launch);
            planner.launch_auxiliary(kernel, launch, args);
        }
        let args = LinearDirect {
            x: ready.as_deref().unwrap_or(&x),
            w: &w,
            norm: if several { None } else { norm.as_deref() },
            bias: bias.as_deref(),
            residual: residual.as_ref(),
            o0,
            o1,
            o2,
            o3,
            o4,
            o5,
            start1,
            start2,
            start3,
            start4,
            start5,
            tokens: int(tokens)?,
            inputs: int(problem.inputs)?,
            columns: int(problem.columns())?,
            norm_f32: planner.is_f32("norm"),
            bias_f32: planner.is_f32("bias"),
            out_f32: (problem.out == DType::F32).into(),
            scale: problem.scale as f32,
            eps,
            held: int(share.held)?,
            conv_weight: conv_weight.as_deref(),
            conv_bias: conv_bias.as_deref(),
            initial_state: initial_state.as_deref(),
            final_state: final_state.as_deref(),
            state_indices: state_indices.as_deref(),
            conv_weight_f32: planner.is_f32("conv_weight"),
            conv_bias_f32: planner.is_f32("conv_bias"),
            conv_silu: convolution.is_some_and(|of| of.silu).into(),
            conv_first: int(convolution.map_or(0, |of| of.first))?,
            conv_channels: int(convolution.map_or(0, |of| of.channels))?,
            w_scale: &w_scale,
            w_zero: w_zero.as_deref(),
            w_offset: w_offset.as_deref(),
            factor_bits,
            partial: partial.as_deref(),
            counters: counters.as_deref(),
        };
        let mut launch = Launch::new([blocks as u32, 1, 1], 32 * WARPS as u32, share.bytes as u32);
        // With PDL, its weights load while the previous kernel ends; it waits for that kernel before it reads x.
        launch.overlaps = planner.here().compute >= ComputeCapability::new(9, 0);
        planner.launch(kernel, launch, args);
    }
    let Some(of) = convolution else { return Ok(()) };
    slots::plan_unused_slots(planner, &of.slots, problem.tokens, of.channels * (of.width - 1))
}

#[cfg(test)]
mod tests;
