//! `stream`: a few rows of x, limited by the bandwidth of the weights. The contract is in `stream.cu`.

use super::operands::{OUTPUTS, firsts, in_storage, not_half, squared};
use crate::{CudaVariant, Planner, arguments, int, slots, source};
use device::cuda::{
    BundledArch, ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch,
    Part,
};
use ops::DType;
use ops::linear::LinearProblem;

pub(super) const VARIANT: CudaVariant<LinearProblem> =
    CudaVariant { name: "stream", why_not, plan };

const PARTS: &[Part] = &[
    source!("../include/ampere.cuh"),
    source!("../include/storage.cuh"),
    source!("convolution.cuh"),
    source!("stream.cuh"),
    source!("stream.cu"),
];

/// Compile-time parameters of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Form {
    /// Most rows of x.
    tokens: usize,
    /// Ring lengths in steps, best first.
    stages: &'static [usize],
    /// Buffers of the warps' sums, as in `stream.cu`.
    sums: usize,
    /// Whether an SM has registers for two blocks.
    two: bool,
}

/// The first form with enough rows of x is taken.
const FORMS: [Form; 3] = [
    Form { tokens: FEW, stages: &[6, 5, 4], sums: 2, two: true },
    Form { tokens: 16, stages: &[6, 4, 3], sums: 1, two: false },
    Form { tokens: 32, stages: &[4, 3], sums: 1, two: false },
];

/// Most rows of x that each block normalizes or rounds while it reads them. A separate launch prepares more rows.
pub(super) const FEW: usize = 8;

impl Form {
    fn of(problem: &LinearProblem) -> Option<Self> {
        FORMS.into_iter().find(|form| problem.tokens <= form.tokens)
    }

    /// `taps` of a convolution, 0 for none.
    fn source(
        self,
        dtype: DType,
        stages: usize,
        taps: usize,
        place: Place,
        arch: GpuArch,
    ) -> KernelSource {
        let source = KernelSource::new("linear_stream", PARTS, arch)
            .define("DTYPE", dtype)
            .define("TOKENS", self.tokens)
            .define("STAGES", stages)
            .define("TAPS", taps);
        match place {
            Place::Any => source,
            Place::From => source.define("REGISTERS", FROM_REGISTERS).define("RESIDUAL", 0),
            Place::Onto => source.define("REGISTERS", ONTO_REGISTERS),
        }
    }
}

/// Which kernel's block may be resident on an SM together with this one. One block of each of two consecutive kernels
/// must fit, and never two of one kernel: otherwise some SMs have double work and others none. Models alternate
/// between projections from the residual stream and onto it, so each kind has to exclude only itself, by a resource
/// that the other kind has left over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// No constraint.
    Any,
    /// Without a residual: few registers; with many weights, more than half of the shared memory.
    From,
    /// With a residual: more than half of the registers and less than half of the shared memory.
    Onto,
}

impl Place {
    fn of(problem: &LinearProblem, form: Form, here: &CudaCapabilities) -> Self {
        // On other targets the compiler uses too many registers for the two kinds to fit together.
        if !form.two || here.compute != ComputeCapability::new(9, 0) {
            return Self::Any;
        }
        if problem.residual { Self::Onto } else { Self::From }
    }
}

/// Blocks of 256 threads with this many registers leave enough for one block of the other kind; two `Onto` blocks do
/// not fit.
const FROM_REGISTERS: usize = 112;
const ONTO_REGISTERS: usize = 144;

/// Weights that are read in about the time of a kernel boundary, bytes. Smaller calls need no exclusion.
const LITTLE: usize = 4 << 20;

/// As in `stream.cu` and `stream.cuh`.
const WARPS: usize = 8;
const STEP: usize = 64;
const ROUND: usize = WARPS * STEP;
const SEGMENT: usize = 256;
const STEP_BYTES: usize = 16 * STEP * 2;
const SUMS_BYTES: usize = WARPS * 20 * 4;

/// Taps of the convolutions that models have.
const TAPS: usize = 4;

/// Fewest columns of a block: fewer are not worth starting it.
const COLUMNS: usize = 4;

fn why_not(problem: &LinearProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    if problem.scales.is_some() {
        return Some(format!("needs weights in the storage type, got {}", problem.w_dtype));
    }
    if Form::of(problem).is_none() {
        let most = FORMS[FORMS.len() - 1].tokens;
        return Some(format!("is for up to {most} rows of x, got {}", problem.tokens));
    }
    if problem.convolution.is_some() && problem.tokens > FEW {
        return Some(format!(
            "convolves up to {FEW} rows of x, got {}: more are faster in a separate kernel",
            problem.tokens
        ));
    }
    // A row of w is copied by 16 bytes.
    if !problem.inputs.is_multiple_of(8) {
        return Some(format!("needs K a multiple of 8, got {}", problem.inputs));
    }
    let groups = problem.norm.map_or(1, |norm| norm.groups);
    if problem.tokens <= FEW && groups > 1 && !(problem.inputs / groups).is_multiple_of(SEGMENT) {
        return Some(format!(
            "needs groups of a multiple of {SEGMENT} channels, got {groups} of {}",
            problem.inputs / groups
        ));
    }
    if Share::of(problem, here).is_none() {
        return Some(format!("has no room in shared memory for {} rows of x", problem.tokens));
    }
    not_half(problem)
}

/// The shared-memory layout of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    stages: usize,
    /// Whether x is loaded through the ring.
    streamed: bool,
    /// Columns of x in shared memory at once if it is not.
    phase: usize,
    place: Place,
    bytes: usize,
}

impl Share {
    /// The longest ring that leaves shared memory for a second block, so that the next kernel fills its ring while
    /// this one ends. Otherwise one block per SM with all of x; the last choice reads x in pieces. Several rows of x
    /// without a prologue are loaded through the ring if a block has one tile, which reads them once.
    fn of(problem: &LinearProblem, here: &CudaCapabilities) -> Option<Self> {
        let form = Form::of(problem)?;
        let LinearProblem { tokens, inputs, .. } = *problem;
        let normed = problem.norm.is_some() && tokens <= FEW;
        let ready = tokens > FEW || problem.norm.is_none() && problem.x_dtype == problem.dtype;
        let blocks = blocks(problem, here).max(1);
        let one_tile = problem.columns().div_ceil(blocks) <= if problem.swiglu { 8 } else { 16 };
        let all = inputs.next_multiple_of(ROUND);
        let of = |streamed: bool, stages: usize, phase: usize| {
            let x_step = if streamed { form.tokens * STEP * 2 } else { 0 };
            let x = if streamed { 0 } else { 2 * phase + 64 };
            let squares = if normed { inputs.div_ceil(SEGMENT) * 4 } else { 0 };
            let ring = WARPS * stages * (STEP_BYTES + x_step);
            let bytes = ring + tokens * (form.sums * SUMS_BYTES + x + squares);
            Self { stages, streamed, phase, place: Place::Any, bytes }
        };
        let each =
            |streamed: bool| form.stages.iter().map(move |stages| of(streamed, *stages, all));
        let streamed = each(true).filter(|_| ready && one_tile && tokens > 1);
        let whole: Vec<Self> = streamed.chain(each(false)).collect();
        let most = here.shared_bytes as usize;
        // A block occupies 1 KiB more than it requests. An exclusive block requests `apart` more than the other kind
        // leaves.
        let apart = 128;
        let half = (most + 1024) / 2 - 1024;
        let beside = if form.two { half - apart } else { most };
        let shortest = form.stages[form.stages.len() - 1];
        let rounds = if tokens <= FEW { all / ROUND } else { 1 };
        let phases = (1..rounds).rev().map(|rounds| of(false, shortest, rounds * ROUND));
        let alone = whole.iter().copied().chain(phases).find(|share| share.bytes <= most);
        let Some(fits) = whole.iter().copied().find(|share| share.bytes <= beside) else {
            return alone;
        };
        let place = Place::of(problem, form, here);
        let much = problem.outputs * inputs * problem.dtype.bytes() >= LITTLE;
        let bytes = if place == Place::From && much { half + apart } else { fits.bytes };
        Some(Self { place, bytes, ..fits })
    }
}

/// Blocks of a launch, which share the columns; none if there is nothing to compute.
pub(super) fn blocks(problem: &LinearProblem, here: &CudaCapabilities) -> usize {
    let most = if problem.tokens == 0 { 0 } else { problem.columns().div_ceil(COLUMNS) };
    most.min(here.multiprocessors as usize)
}

/// Kernels of common bf16 calls: few rows of x, also with the longer rings if two of them fit and with the
/// convolution that models have (not onto a residual); batches on GPUs with enough shared memory.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    let [few, batches @ ..] = FORMS;
    let most = arch.shared_bytes as usize;
    let fits = |stages: &&usize| *stages * WARPS * STEP_BYTES * 2 <= most;
    let shortest = few.stages.last().filter(|stages| !fits(stages));
    let rings: Vec<usize> = few.stages.iter().filter(fits).chain(shortest).copied().collect();
    let batches =
        batches.into_iter().filter(|_| most > 200 << 10).map(|form| (form, form.stages[0]));
    let any = rings.iter().map(|stages| (few, *stages)).chain(batches);
    let mut each: Vec<_> = any.map(|(form, stages)| (form, stages, Place::Any)).collect();
    if arch.compute == ComputeCapability::new(9, 0) {
        let beside = rings
            .iter()
            .flat_map(|stages| [Place::From, Place::Onto].map(|place| (few, *stages, place)));
        each.extend(beside);
    }
    let source = |(form, stages, place): (Form, usize, Place)| {
        let convolves = form.tokens <= FEW && place != Place::Onto;
        let taps = [0, TAPS].into_iter().filter(move |taps| *taps == 0 || convolves);
        taps.map(move |taps| form.source(DType::Bf16, stages, taps, place, arch.arch()))
    };
    // Squared ReLU is not combined with a residual.
    let onto = |place: Place| place == Place::Onto;
    let squares = each.iter().filter(|(.., place)| !onto(*place)).map(|(form, stages, place)| {
        squared(form.source(DType::Bf16, *stages, 0, *place, arch.arch()), true)
    });
    let squares: Vec<_> = squares.collect();
    each.into_iter().flat_map(source).chain(squares).collect()
}

arguments! {
    LinearStream: linear_stream {
        x: Pointer, w: Pointer, norm: Nullable, bias: Nullable, residual: Nullable, o0: Nullable, o1: Nullable, o2: Nullable,
        o3: Nullable, o4: Nullable, o5: Nullable, start1: i32, start2: i32, start3: i32, start4: i32, start5: i32, tokens: i32,
        inputs: i32, columns: i32, x_f32: i32, norm_f32: i32, bias_f32: i32, out_f32: i32, swiglu: i32, scale: f32, eps: f32,
        phase: i32, groups: i32, deferred: i32, streamed: i32, conv_weight: Nullable, conv_bias: Nullable,
        initial_state: Nullable, final_state: Nullable, state_indices: Nullable, conv_weight_f32: i32, conv_bias_f32: i32,
        conv_silu: i32, conv_first: i32, conv_channels: i32,
    }
}

fn plan(problem: &LinearProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let no_room = || DeviceError::Refused { what: "no room in shared memory".to_owned() };
    let form = Form::of(problem).ok_or_else(no_room)?;
    let share = Share::of(problem, planner.here()).ok_or_else(no_room)?;
    let taps = problem.convolution.as_ref().map_or(0, |of| of.width);
    let source = form.source(problem.dtype, share.stages, taps, share.place, planner.arch());
    let kernel = planner.kernel(&squared(source, problem.squared))?;
    let few = problem.tokens <= FEW;
    let norm = problem.norm.filter(|_| few);
    let groups = norm.map_or(1, |norm| norm.groups);
    let whole = share.phase >= problem.inputs;
    // Rounding x before the division by the root mean square is as exact in bf16, but f16 could overflow.
    let deferred = norm.is_some() && groups == 1 && whole && problem.dtype == DType::Bf16;
    let x = if few { planner.required("x")? } else { in_storage(problem, planner)? };
    let weight = if few { planner.input("norm")? } else { None };
    let (w, bias, residual) =
        (planner.required("w")?, planner.input("bias")?, planner.input("residual")?);
    let mut outputs = [const { None }; OUTPUTS.len()];
    for ((output, name), _) in outputs.iter_mut().zip(OUTPUTS).zip(&problem.widths) {
        *output = Some(planner.output(name)?);
    }
    let [o0, o1, o2, o3, o4, o5] = outputs.each_ref().map(Option::as_deref);
    let [start1, start2, start3, start4, start5] = firsts(problem)?;
    let convolution = problem.convolution.as_ref();
    let (conv_weight, conv_bias) = (planner.input("conv_weight")?, planner.input("conv_bias")?);
    let initial_state = planner.input("initial_state")?;
    let final_state = convolution.map(|_| planner.output("final_state")).transpose()?;
    let state_indices = planner.input("state_indices")?;
    let args = LinearStream {
        x: &x,
        w: &w,
        norm: weight.as_deref(),
        bias: bias.as_deref(),
        residual: residual.as_deref(),
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
        tokens: int(problem.tokens)?,
        inputs: int(problem.inputs)?,
        columns: int(problem.columns())?,
        x_f32: if few { planner.is_f32("x") } else { 0 },
        norm_f32: planner.is_f32("norm"),
        bias_f32: planner.is_f32("bias"),
        out_f32: (problem.out == DType::F32).into(),
        swiglu: problem.swiglu.into(),
        scale: problem.scale as f32,
        eps: norm.map_or(0.0, |norm| norm.eps) as f32,
        phase: int(share.phase)?,
        groups: int(groups)?,
        deferred: deferred.into(),
        streamed: share.streamed.into(),
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
    };
    let blocks = blocks(problem, planner.here());
    int(problem.columns() * blocks)?;
    let grid = [blocks as u32, 1, 1];
    let mut launch = Launch::new(grid, 32 * WARPS as u32, share.bytes as u32);
    // With PDL, its weights load while the previous kernel ends; it waits for that kernel before it reads x.
    launch.overlaps = planner.here().compute >= ComputeCapability::new(9, 0);
    planner.launch(kernel, launch, args);
    let Some(of) = convolution else { return Ok(()) };
    slots::hand_on(planner, &of.slots, problem.tokens, of.channels * (of.width - 1))
}

#[cfg(test)]
pub(super) mod tests;
