//! The gradient of the state-space scan on NVIDIA GPUs from compute capability 8.0 on. Both variants compute the states that enter chunks and
//! the gradients of the states that leave them, then everything within chunks, then sums in a fixed order. The contracts are in
//! `gradient_*.cu`.

mod chunk;
mod float32;

use super::operands::{MAX_GRID_YZ, unfit};
use crate::{CudaTable, CudaVariant, Planner, arguments, int, source};
use device::cuda::{Buffer, CudaCapabilities, DeviceError, KernelSource, Launch, SourcePart};
use ops::GradientProblem;
use ops::ssd::SsdProblem;
use std::sync::Arc;

type Problem = GradientProblem<SsdProblem>;

/// The variants, preferred first.
static VARIANTS: &[CudaVariant<Problem>] = &[chunk::VARIANT, float32::VARIANT];

/// The gradient's variants. No kernel is bundled: each is compiled on first use.
pub(crate) static CUDA: CudaTable<Problem> = CudaTable::new(VARIANTS, Vec::new);

const STORAGE: SourcePart = source!("../include/storage.cuh");
const SHARED: SourcePart = source!("gradient.cuh");
const STATE: SourcePart = source!("state.cuh");

const REDUCE: &[SourcePart] = &[STORAGE, SHARED, source!("gradient_reduce.cu")];

fn why_not(problem: &SsdProblem, here: &CudaCapabilities) -> Option<String> {
    let sequences = problem.sequences.count();
    if sequences > MAX_GRID_YZ {
        return Some(format!("needs up to {MAX_GRID_YZ} sequences, got {sequences}"));
    }
    unfit(problem, here)
}

arguments! {
    /// Types and limits of the step sizes.
    StepSettings { dt_f32: i32, rate_f32: i32, bias_f32: i32, softplus: i32, dt_min: f32, dt_max: f32 }
}
arguments! {
    Reduce: ssd_gradient_reduce {
        sums: Pointer, sums_d: Pointer, partial: Nullable, da: Pointer, ddt_bias: Nullable, dd: Nullable, db: Pointer, dc: Pointer,
        projection: i64, heads: i32, slots: i32, d_columns: i32, splits: i32, rate_f32: i32, bias_f32: i32, d_f32: i32,
    }
}

/// Threads of a block of the kernels without MMA.
const THREADS: u32 = 256;

/// Parts of the heads of a group: enough blocks for every SM, at least four heads a block.
fn splits(problem: &SsdProblem, chunks: usize, sms: usize) -> usize {
    let blocks = problem.groups * chunks;
    if blocks >= sms {
        return 1;
    }
    (sms / blocks.max(1)).min(problem.heads_per_group() / 4).max(1)
}

/// Tensors and sizes of one call.
struct SsdBackwardOperands {
    x: Arc<Buffer>,
    dt: Arc<Buffer>,
    rate: Arc<Buffer>,
    b: Arc<Buffer>,
    c: Arc<Buffer>,
    d: Option<Arc<Buffer>>,
    z: Option<Arc<Buffer>>,
    dt_bias: Option<Arc<Buffer>>,
    initial_state: Option<Arc<Buffer>>,
    cu_seqlens: Option<Arc<Buffer>>,
    output_gradient: Arc<Buffer>,
    final_gradient: Option<Arc<Buffer>>,
    dx: Arc<Buffer>,
    ddt: Arc<Buffer>,
    da: Arc<Buffer>,
    db: Arc<Buffer>,
    dc: Arc<Buffer>,
    dd: Option<Arc<Buffer>>,
    dz: Option<Arc<Buffer>>,
    ddt_bias: Option<Arc<Buffer>>,
    initial_gradient: Option<Arc<Buffer>>,
    /// Tokens of a dense sequence, or of the longest packed one.
    tokens: i32,
    heads: i32,
    groups: i32,
    /// H * P.
    width: i32,
    /// G * N.
    projection: i32,
    d_f32: i32,
    /// Whether D has a weight for each channel of a head.
    d_per_channel: i32,
    dt_f32: i32,
    rate_f32: i32,
    bias_f32: i32,
    softplus: i32,
    dt_min: f32,
    dt_max: f32,
}

impl SsdBackwardOperands {
    /// Uploads the inputs.
    fn new(problem: &SsdProblem, planner: &mut Planner<'_>) -> Result<Self, DeviceError> {
        // The gradient of an input that the call may omit.
        let output = |name: &'static str, planner: &Planner<'_>| {
            let is_given = !planner.shape(&name[1..]).is_empty();
            is_given.then(|| planner.output(name)).transpose()
        };
        Ok(Self {
            x: planner.required("x")?,
            dt: planner.required("dt")?,
            rate: planner.required("A")?,
            b: planner.required("B")?,
            c: planner.required("C")?,
            d: planner.input("D")?,
            z: planner.input("z")?,
            dt_bias: planner.input("dt_bias")?,
            initial_state: planner.input("initial_state")?,
            cu_seqlens: planner.input("cu_seqlens")?,
            output_gradient: planner.required("do")?,
            final_gradient: planner.input("dfinal_state")?,
            dx: planner.output("dx")?,
            ddt: planner.output("ddt")?,
            da: planner.output("dA")?,
            db: planner.output("dB")?,
            dc: planner.output("dC")?,
            dd: output("dD", planner)?,
            dz: output("dz", planner)?,
            ddt_bias: output("ddt_bias", planner)?,
            initial_gradient: output("dinitial_state", planner)?,
            tokens: int(problem.sequences.longest())?,
            heads: int(problem.heads)?,
            groups: int(problem.groups)?,
            width: int(problem.heads * problem.head_dim)?,
            projection: int(problem.groups * problem.state_dim)?,
            d_f32: planner.is_f32("D"),
            d_per_channel: i32::from(planner.shape("D").len() == 2),
            dt_f32: planner.is_f32("dt"),
            rate_f32: planner.is_f32("A"),
            bias_f32: planner.is_f32("dt_bias"),
            softplus: i32::from(problem.dt_softplus),
            dt_min: problem.dt_min as f32,
            dt_max: problem.dt_max.min(f64::from(f32::MAX)) as f32,
        })
    }

    fn step_settings(&self) -> StepSettings<'_> {
        let Self { dt_f32, rate_f32, bias_f32, softplus, dt_min, dt_max, .. } = *self;
        StepSettings { dt_f32, rate_f32, bias_f32, softplus, dt_min, dt_max }
    }
}

/// Intermediate results that both variants have, and how they divide the work.
struct SsdBackwardWorkspace {
    /// Chunks of the longest sequence.
    longest: usize,
    /// Chunks that have memory; packed sequences may leave some unused.
    slots: usize,
    /// Parts of a group's heads, each a block.
    splits: usize,
    /// Sums of D per head.
    d_columns: usize,
    entering: Arc<Buffer>,
    leaving: Arc<Buffer>,
    table: Arc<Buffer>,
    sums: Arc<Buffer>,
    sums_d: Arc<Buffer>,
    /// dB and dC of each split, if there are several.
    partial: Option<Arc<Buffer>>,
}

impl SsdBackwardWorkspace {
    /// For chunks of `tokens` tokens, states of `state_floats` words and tables of steps with `arrays` arrays.
    fn new(
        problem: &SsdProblem,
        planner: &mut Planner<'_>,
        tokens: usize,
        (state_floats, arrays): (usize, usize),
    ) -> Result<Self, DeviceError> {
        let (count, total) = (problem.sequences.count(), problem.sequences.total());
        let longest = problem.sequences.longest().div_ceil(tokens);
        let dense = problem.sequences.batch_and_tokens().is_some();
        let slots = if dense { count * longest } else { total / tokens + count };
        let chunks = problem.sequences.iter().map(|one| one.len().div_ceil(tokens)).sum();
        let splits = splits(problem, chunks, planner.here().multiprocessors as usize);
        let d_columns = if planner.shape("D").len() == 2 { problem.head_dim } else { 1 };
        let rows = slots * problem.heads;
        let partial = 2 * splits * total * problem.groups * problem.state_dim;
        Ok(Self {
            longest,
            slots,
            splits,
            d_columns,
            entering: planner.scratch(rows * state_floats)?,
            leaving: planner.scratch(rows * state_floats)?,
            table: planner.scratch(rows * arrays * tokens)?,
            sums: planner.scratch(rows * 2)?,
            sums_d: planner.scratch(rows * d_columns)?,
            partial: (splits > 1).then(|| planner.scratch(partial)).transpose()?,
        })
    }
}

/// The kernel of this name for a call of the op.
fn kernel_source(
    name: &'static str,
    parts: &'static [SourcePart],
    problem: &SsdProblem,
    planner: &Planner<'_>,
) -> KernelSource {
    KernelSource::new(name, parts, planner.arch()).define("DTYPE", problem.dtype)
}

/// The same with macros for P and N.
fn sized_source(
    name: &'static str,
    parts: &'static [SourcePart],
    problem: &SsdProblem,
    planner: &Planner<'_>,
) -> KernelSource {
    kernel_source(name, parts, problem, planner)
        .define("P", problem.head_dim)
        .define("N", problem.state_dim)
}

/// Sums over chunks for dA, dD and ddt_bias, over splits for dB and dC.
fn plan_reduce(
    problem: &SsdProblem,
    planner: &mut Planner<'_>,
    operands: &SsdBackwardOperands,
    workspace: &SsdBackwardWorkspace,
) -> Result<(), DeviceError> {
    let projection = problem.sequences.total() * problem.groups * problem.state_dim;
    let kernel = planner.kernel(&kernel_source("ssd_gradient_reduce", REDUCE, problem, planner))?;
    let elements = if workspace.splits > 1 { 2 * projection } else { 0 };
    let blocks = problem.heads + elements.div_ceil(THREADS as usize);
    let args = Reduce {
        sums: &workspace.sums,
        sums_d: &workspace.sums_d,
        partial: workspace.partial.as_deref(),
        da: &operands.da,
        ddt_bias: operands.ddt_bias.as_deref(),
        dd: operands.dd.as_deref(),
        db: &operands.db,
        dc: &operands.dc,
        projection: projection as i64,
        heads: operands.heads,
        slots: int(workspace.slots)?,
        d_columns: int(workspace.d_columns)?,
        splits: int(workspace.splits)?,
        rate_f32: operands.rate_f32,
        bias_f32: operands.bias_f32,
        d_f32: operands.d_f32,
    };
    planner.launch_auxiliary(kernel, Launch::new([int(blocks)? as u32, 1, 1], THREADS, 0), args);
    Ok(())
}
