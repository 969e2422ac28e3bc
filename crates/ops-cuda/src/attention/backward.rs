//! The gradient of attention on NVIDIA GPUs from compute capability 8.0 on. Weights are recomputed from lse; no sum depends on the order in
//! which blocks run, so the same input gives the same bits.

mod float32;
mod hopper;
mod mma;

use super::operands::Operands;
use crate::{CudaTable, CudaVariant, Planner, arguments, int, source};
use device::cuda::{Buffer, DeviceError, KernelSource, Launch, SourcePart};
use ops::GradientProblem;
use ops::attention::AttentionProblem;
use std::sync::Arc;

/// The variants, preferred first.
static VARIANTS: &[CudaVariant<GradientProblem<AttentionProblem>>] =
    &[hopper::VARIANT, mma::VARIANT, float32::VARIANT];

/// The gradient's variants and bundled kernels.
pub(crate) static CUDA: CudaTable<GradientProblem<AttentionProblem>> =
    CudaTable::new(VARIANTS, bundled);

/// No kernel of the gradient is bundled: each is compiled when it is first used.
fn bundled() -> Vec<KernelSource> {
    Vec::new()
}

/// A kernel that prepares the rows, with macros DTYPE and DV.
struct Preparation {
    name: &'static str,
    parts: &'static [SourcePart],
}

/// For 16-bit types and multiples of 8 channels.
const PREPARE: Preparation = Preparation {
    name: "attention_backward_prepare",
    parts: &[
        source!("../include/storage.cuh"),
        source!("backward/rows.cuh"),
        source!("backward/prepare.cu"),
    ],
};

/// Query rows of a block of the preparation, to which the rows of each sequence are padded.
const PADDED_ROWS: usize = 128;

arguments! {
    Prepare: attention_backward_prepare | attention_backward_float32_rows {
        o: Pointer, grad_o: Pointer, lse: Pointer, grad_lse: Nullable, cu_q: Nullable, row_lse: Pointer, row_delta: Pointer,
        counters: Nullable, counter_count: i32, batch: i32, tq: i32, heads: i32,
    }
}

/// The operands of one call.
struct GradientOperands {
    /// o and lse are inputs.
    forward: Operands,
    grad_o: Arc<Buffer>,
    grad_q: Arc<Buffer>,
    grad_k: Arc<Buffer>,
    /// The gradient of the keys if the values are stored in them.
    grad_v: Arc<Buffer>,
    /// f32 `[2, H, padded]`: the log-sum-exp in base 2, then do.o - dlse, of each row.
    statistics: Arc<Buffer>,
    row_lse: Buffer,
    row_delta: Buffer,
}

impl GradientOperands {
    /// Uploads the inputs, and adds the launch that prepares the rows. It also sets `counters` of the given number to 0.
    fn new(
        problem: &AttentionProblem,
        planner: &mut Planner<'_>,
        prepare: &Preparation,
        counters: Option<(&Buffer, usize)>,
    ) -> Result<Self, DeviceError> {
        let results = [planner.required("o")?, planner.required("lse")?];
        let forward = Operands::of(problem, planner, results)?;
        let statistic = problem.heads * padded(problem);
        let statistics = planner.scratch(2 * statistic)?;
        let part = |index: usize| statistics.part(4 * index * statistic, 4 * statistic);
        let (row_lse, row_delta) = (part(0)?, part(1)?);
        let grad_k = planner.output("dk")?;
        let operands = Self {
            grad_o: planner.required("do")?,
            grad_q: planner.output("dq")?,
            grad_v: if problem.values_in_keys {
                Arc::clone(&grad_k)
            } else {
                planner.output("dv")?
            },
            grad_k,
            forward,
            statistics,
            row_lse,
            row_delta,
        };
        let grad_lse = planner.input("dlse")?;
        let source = KernelSource::new(prepare.name, prepare.parts, planner.arch())
            .define("DTYPE", problem.dtype)
            .define("DV", problem.value_dim);
        let kernel = planner.kernel(&source)?;
        let args = Prepare {
            o: &operands.forward.o,
            grad_o: &operands.grad_o,
            lse: &operands.forward.lse,
            grad_lse: grad_lse.as_deref(),
            cu_q: operands.forward.cu_queries.as_deref(),
            row_lse: &operands.row_lse,
            row_delta: &operands.row_delta,
            counters: counters.map(|(buffer, _)| buffer),
            counter_count: int(counters.map_or(0, |(_, count)| count))?,
            batch: operands.forward.batch,
            tq: operands.forward.queries,
            heads: operands.forward.heads,
        };
        let blocks = problem.queries.longest().div_ceil(PADDED_ROWS) as u32;
        let grid = [blocks, operands.forward.heads as u32, operands.forward.batch as u32];
        planner.launch_auxiliary(kernel, Launch::new(grid, 256, 0), args);
        Ok(operands)
    }
}

/// Rows of all sequences, each padded to a multiple of [`PADDED_ROWS`]: `padded_start(B)` of `rows.cuh`; some without a sequence too.
fn padded(problem: &AttentionProblem) -> usize {
    let rows = problem.queries.total() + problem.queries.count() * PADDED_ROWS;
    (rows / PADDED_ROWS * PADDED_ROWS).max(PADDED_ROWS)
}
