//! The gradient of kda and of the gated delta rule on NVIDIA GPUs from compute capability 8.0 on: operands of the chunks, the scans over
//! chunks in both directions, everything within chunks, and sums in a fixed order. The contracts are in `gradient_*.cu`.

use super::operands::too_many;
use crate::{CudaTable, CudaVariant, Planner, arguments, int, source};
use device::cuda::{
    Buffer, ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch,
    SourcePart,
};
use ops::kda::{Beta, Gate, KdaProblem};
use ops::{DType, GradientProblem};
use std::sync::Arc;

type Problem = GradientProblem<KdaProblem>;

/// The variants, preferred first.
static VARIANTS: &[CudaVariant<Problem>] = &[
    CudaVariant {
        name: "chunk",
        why_not: |problem, here| why_not_mma(&problem.forward, here),
        plan: |problem, planner| plan(&problem.forward, planner, Form::Mma),
    },
    CudaVariant {
        name: "float32",
        why_not: |problem, here| why_not_float32(&problem.forward, here),
        plan: |problem, planner| plan(&problem.forward, planner, Form::Float32),
    },
];

/// The table of the gradient of an op. Its kernels depend on the type of gates and states; none is bundled, they are compiled when first used.
pub(crate) const fn table() -> CudaTable<Problem> {
    CudaTable::new(VARIANTS, Vec::new)
}

const AMPERE: SourcePart = source!("../include/ampere.cuh");
const STORAGE: SourcePart = source!("../include/storage.cuh");
const STATE: SourcePart = source!("../ssd/state.cuh");
const TF32: SourcePart = source!("tf32.cuh");
const CHUNKS: SourcePart = source!("gradient_any.cuh");
const SCANS: SourcePart = source!("gradient_scan_any.cuh");

const PREPARE: &[SourcePart] = &[STORAGE, TF32, CHUNKS, source!("gradient_prepare_any.cu")];
const FORWARD: &[SourcePart] = &[STORAGE, STATE, CHUNKS, SCANS, source!("gradient_forward_any.cu")];
const REVERSE: &[SourcePart] = &[STORAGE, STATE, CHUNKS, SCANS, source!("gradient_reverse_any.cu")];
const INTRA_ANY: &[SourcePart] = &[STORAGE, CHUNKS, source!("gradient_intra_any.cu")];
const SCAN: &[SourcePart] = &[AMPERE, STORAGE, STATE, TF32, CHUNKS, source!("gradient_scan.cu")];
const INTRA: &[SourcePart] = &[AMPERE, STORAGE, CHUNKS, source!("gradient_intra.cu")];
const REDUCE: &[SourcePart] = &[STORAGE, CHUNKS, source!("gradient_reduce_any.cu")];

/// How products are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// By mma.sync, for K and V of 128 in bf16 and f16.
    Mma,
    /// In float32, for any K and V.
    Float32,
}

/// Tokens of a chunk, `Q` of `gradient_any.cuh`.
const TOKENS: usize = 16;
/// K and V of the form `Mma`.
const MMA_DIM: usize = 128;
/// Value heads that calls with A_log need. With 2 heads an H200 gave a gradient of such a call with a relative error of 1.2e-2, with 6 to 16
/// heads 3.2e-3 to 4.1e-3. Which gradient it was is not known; that of A_log, a sum of terms of both signs for each head, is likely.
const LEAST_GATED_HEADS: usize = 8;
/// Value columns of a block of a scan: `PART` of `gradient_scan.cu` and of `gradient_scan_any.cuh`.
const MMA_COLUMNS: usize = 64;
const COLUMNS: usize = 32;
/// Maximum grid size in y and z.
const LARGEST_GRID: usize = 65_535;

/// K or V with rows of whole vectors.
fn whole(size: usize) -> usize {
    size.next_multiple_of(4)
}

/// Floats of a chunk's package, `PACKAGE` of `gradient_any.cuh`.
fn package_floats(problem: &KdaProblem) -> usize {
    let k = whole(problem.key_dim);
    3 * TOKENS * k + k + 3 * TOKENS * TOKENS + TOKENS
}

/// Shared memory in bytes of the kernels of a form, as their files declare it: prepare, then the scans, then intra.
fn shared(problem: &KdaProblem, form: Form) -> Vec<u32> {
    let (k, v, q) = (whole(problem.key_dim), whole(problem.value_dim), TOKENS);
    let prepare = 4 * q * k + 3 * q * q + q;
    let floats = match form {
        Form::Mma => {
            let stage = 3 * q * (k + 8) + k + 3 * q * (q + 4) + q + q * (MMA_COLUMNS + 8) / 2;
            let tiles = (2 * v + 3 * q) * 2 * k / 4;
            vec![prepare, 3 * stage, tiles + 4 * q * k + 2 * q * q + k + q + 8]
        }
        Form::Float32 => vec![
            prepare,
            2 * q * k + k + q * q + q + COLUMNS * k + 2 * q * COLUMNS,
            package_floats(problem) + COLUMNS * k + 3 * q * COLUMNS,
            8 * q * k + 3 * q * v + 2 * q * q + 64,
        ],
    };
    floats.into_iter().map(|floats| 4 * floats as u32).collect()
}

fn why_not_mma(problem: &KdaProblem, here: &CudaCapabilities) -> Option<String> {
    if !matches!(problem.dtype, DType::Bf16 | DType::F16) {
        return Some(format!("needs bf16 or f16 tensors, got {}", problem.dtype));
    }
    let (k, v) = (problem.key_dim, problem.value_dim);
    if (k, v) != (MMA_DIM, MMA_DIM) {
        return Some(format!("needs K and V of {MMA_DIM}, got K {k} and V {v}"));
    }
    let heads = problem.value_heads;
    if problem.gate != Gate::LogDecay && heads < LEAST_GATED_HEADS {
        return Some(format!(
            "needs {LEAST_GATED_HEADS} value heads if there is A_log, got {heads}"
        ));
    }
    why_not(problem, here, Form::Mma)
}

fn why_not_float32(problem: &KdaProblem, here: &CudaCapabilities) -> Option<String> {
    if problem.value_dim == 0 {
        return Some("needs V above 0".to_owned());
    }
    why_not(problem, here, Form::Float32)
}

fn why_not(problem: &KdaProblem, here: &CudaCapabilities, form: Form) -> Option<String> {
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    let (needed, most) = (shared(problem, form).into_iter().max(), here.shared_bytes);
    if needed > Some(most) {
        let (k, v, needed) = (problem.key_dim, problem.value_dim, needed.unwrap_or(0));
        return Some(format!("K {k} and V {v} need {needed} bytes of shared memory, not {most}"));
    }
    let (longest, limit) = (problem.sequences.longest(), LARGEST_GRID * TOKENS);
    if longest > limit {
        return Some(format!("needs sequences of up to {limit} tokens, got {longest}"));
    }
    too_many(problem)
}

arguments! {
    /// Scale, norm, gates and write strengths, and which of their tensors are f32.
    Options {
        q_row: i32, k_row: i32, l2norm: i32, scale: f32, gate: i32, lower_bound: f32, factor: f32, g_f32: i32, beta_f32: i32,
        rate_f32: i32, bias_f32: i32,
    }
}
arguments! {
    Prepare: kda_gradient_prepare_any {
        q: Pointer, k: Pointer, g: Pointer, beta: Pointer, a_log: Nullable, dt_bias: Nullable, cu_seqlens: Nullable, package: Pointer,
        tokens: i32, heads: i32, value_heads: i32, options: (Options),
    }
}
arguments! {
    ForwardScan: kda_gradient_forward_any {
        v: Pointer, initial_state: Nullable, cu_seqlens: Nullable, package: Pointer, entering: Pointer, r: Pointer, tokens: i32,
        value_heads: i32, v_row: i32,
    }
}
arguments! {
    ReverseScan: kda_gradient_reverse_any {
        output_gradient: Pointer, final_gradient: Nullable, cu_seqlens: Nullable, package: Pointer, leaving: Pointer, y: Pointer,
        dv: Pointer, initial_gradient: Nullable, tokens: i32, value_heads: i32,
    }
}
arguments! {
    BothScans: kda_gradient_scan {
        v: Pointer, output_gradient: Pointer, initial_state: Nullable, final_gradient: Nullable, cu_seqlens: Nullable, package: Pointer,
        entering: Pointer, leaving: Pointer, r: Pointer, y: Pointer, dv: Pointer, initial_gradient: Nullable, tokens: i32,
        value_heads: i32, v_row: i32,
    }
}
arguments! {
    Intra: kda_gradient_intra | kda_gradient_intra_any {
        q: Pointer, k: Pointer, g: Pointer, beta: Pointer, a_log: Nullable, dt_bias: Nullable, output_gradient: Pointer,
        cu_seqlens: Nullable, entering: Pointer, leaving: Pointer, r: Pointer, y: Pointer, dq: Pointer, dk: Pointer, dg: Pointer,
        dbeta: Pointer, sums: Pointer, tokens: i32, heads: i32, value_heads: i32, slots: i32, options: (Options),
    }
}
arguments! {
    Reduce: kda_gradient_reduce_any {
        dq_part: Pointer, dk_part: Pointer, q: Pointer, k: Pointer, dq: Pointer, dk: Pointer, sums: Pointer, da_log: Nullable,
        ddt_bias: Nullable, total: i64, heads: i32, value_heads: i32, slots: i32, q_row: i32, k_row: i32, l2norm: i32, rate_f32: i32,
        bias_f32: i32,
    }
}

/// A kernel's source, with the macros that all have.
fn source_of(
    name: &'static str,
    parts: &'static [SourcePart],
    problem: &KdaProblem,
    arch: GpuArch,
) -> KernelSource {
    KernelSource::new(name, parts, arch)
        .define("DTYPE", problem.dtype)
        .define("K", problem.key_dim)
        .define("V", problem.value_dim)
        .define("GATES", problem.gate_dim())
}

/// The kernels of a form in order: prepare, the scans, intra, reduce.
fn sources(problem: &KdaProblem, form: Form, arch: &GpuArch) -> Vec<KernelSource> {
    let of = |name, parts| source_of(name, parts, problem, arch.clone());
    let state = u8::from(problem.state_dtype == DType::Bf16);
    let prepare = of("kda_gradient_prepare_any", PREPARE);
    let reduce = of("kda_gradient_reduce_any", REDUCE);
    match form {
        Form::Mma => vec![
            prepare.define("TF32", 1),
            of("kda_gradient_scan", SCAN).define("STATE_BF16", state),
            of("kda_gradient_intra", INTRA),
            reduce,
        ],
        Form::Float32 => vec![
            prepare,
            of("kda_gradient_forward_any", FORWARD).define("STATE_BF16", state),
            of("kda_gradient_reverse_any", REVERSE).define("STATE_BF16", state),
            of("kda_gradient_intra_any", INTRA_ANY),
            reduce,
        ],
    }
}

/// Memory between the launches.
struct Workspace {
    package: Arc<Buffer>,
    /// States that enter and gradients of states that leave each chunk.
    entering: Arc<Buffer>,
    leaving: Arc<Buffer>,
    /// Rows of V of each token: `r` and `y` of `gradient_any.cuh`.
    r: Arc<Buffer>,
    y: Arc<Buffer>,
    /// Gradients of q and k of each value head.
    dq: Arc<Buffer>,
    dk: Arc<Buffer>,
    /// Sums of the gradients of A_log and dt_bias of each chunk.
    sums: Arc<Buffer>,
}

impl Workspace {
    fn new(
        problem: &KdaProblem,
        form: Form,
        slots: usize,
        planner: &mut Planner<'_>,
    ) -> Result<Self, DeviceError> {
        let (heads, total) = (problem.value_heads, problem.sequences.total());
        let (k, v) = (whole(problem.key_dim), whole(problem.value_dim));
        // The form `Mma` has states and rows of V in the storage type.
        let bytes = if form == Form::Mma { problem.dtype.bytes() } else { DType::F32.bytes() };
        let stored = |elements: usize| (elements * bytes).div_ceil(DType::F32.bytes()).max(1);
        let states = stored(slots * heads * problem.key_dim * v);
        let (of_values, of_keys) = (stored(total * heads * v), (total * heads * k).max(1));
        Ok(Self {
            package: planner.scratch((slots * heads * package_floats(problem)).max(1))?,
            entering: planner.scratch(states)?,
            leaving: planner.scratch(states)?,
            r: planner.scratch(of_values)?,
            y: planner.scratch(of_values)?,
            dq: planner.scratch(of_keys)?,
            dk: planner.scratch(of_keys)?,
            sums: planner.scratch((slots * heads * (1 + problem.gate_dim())).max(1))?,
        })
    }
}

fn plan(problem: &KdaProblem, planner: &mut Planner<'_>, form: Form) -> Result<(), DeviceError> {
    let (heads, value_heads) = (problem.heads, problem.value_heads);
    let (count, total) = (problem.sequences.count(), problem.sequences.total());
    let longest = problem.sequences.longest();
    let dense = problem.sequences.batch_and_tokens().is_some();
    // A packed call without tokens has blocks too: they clear the sums of its slots.
    let chunks = longest.div_ceil(TOKENS).max(usize::from(!dense));
    let slots = if dense { count * chunks } else { total / TOKENS + count };
    let workspace = Workspace::new(problem, form, slots, planner)?;

    let (q, k, v) = (planner.required("q")?, planner.required("k")?, planner.required("v")?);
    let (g, beta, d_o) =
        (planner.required("g")?, planner.required("beta")?, planner.required("do")?);
    let (a_log, dt_bias) = (planner.input("A_log")?, planner.input("dt_bias")?);
    let initial_state = planner.input("initial_state")?;
    let final_gradient = planner.input("dfinal_state")?;
    let cu_seqlens = planner.input("cu_seqlens")?;
    let [dq, dk, dv, dg, dbeta] =
        ["dq", "dk", "dv", "dg", "dbeta"].map(|name| planner.output(name));
    let (dq, dk, dv, dg, dbeta) = (dq?, dk?, dv?, dg?, dbeta?);
    let of = |input: &Option<Arc<Buffer>>, name| {
        input.as_ref().map(|_| planner.output(name)).transpose()
    };
    let (da_log, ddt_bias) = (of(&a_log, "dA_log")?, of(&dt_bias, "ddt_bias")?);
    let initial_gradient = of(&initial_state, "dinitial_state")?;

    let (gate, lower_bound) = match problem.gate {
        Gate::LogDecay => (0, 0.0),
        Gate::Plain => (1, 0.0),
        Gate::Safe { lower_bound } => (2, lower_bound),
    };
    let factor = match problem.beta {
        Beta::AsGiven => 1.0,
        Beta::Sigmoid { factor } => factor,
    };
    let key_row = int(heads * problem.key_dim)?;
    let (rate_f32, bias_f32) = (planner.is_f32("A_log"), planner.is_f32("dt_bias"));
    let l2norm = i32::from(problem.l2norm);
    let options = || Options {
        q_row: key_row,
        k_row: key_row,
        l2norm,
        scale: problem.scale as f32,
        gate,
        lower_bound: lower_bound as f32,
        factor: factor as f32,
        g_f32: planner.is_f32("g"),
        beta_f32: planner.is_f32("beta"),
        rate_f32,
        bias_f32,
    };
    let (tokens, v_row) = (int(longest)?, int(value_heads * problem.value_dim)?);
    let prepare = Prepare {
        q: &q,
        k: &k,
        g: &g,
        beta: &beta,
        a_log: a_log.as_deref(),
        dt_bias: dt_bias.as_deref(),
        cu_seqlens: cu_seqlens.as_deref(),
        package: &workspace.package,
        tokens,
        heads: int(heads)?,
        value_heads: int(value_heads)?,
        options: options(),
    };
    let intra = Intra {
        q: &q,
        k: &k,
        g: &g,
        beta: &beta,
        a_log: a_log.as_deref(),
        dt_bias: dt_bias.as_deref(),
        output_gradient: &d_o,
        cu_seqlens: cu_seqlens.as_deref(),
        entering: &workspace.entering,
        leaving: &workspace.leaving,
        r: &workspace.r,
        y: &workspace.y,
        dq: &workspace.dq,
        dk: &workspace.dk,
        dg: &dg,
        dbeta: &dbeta,
        sums: &workspace.sums,
        tokens,
        heads: int(heads)?,
        value_heads: int(value_heads)?,
        slots: int(slots)?,
        options: options(),
    };
    let reduce = Reduce {
        dq_part: &workspace.dq,
        dk_part: &workspace.dk,
        q: &q,
        k: &k,
        dq: &dq,
        dk: &dk,
        sums: &workspace.sums,
        da_log: da_log.as_deref(),
        ddt_bias: ddt_bias.as_deref(),
        total: total as i64,
        heads: int(heads)?,
        value_heads: int(value_heads)?,
        slots: int(slots)?,
        q_row: key_row,
        k_row: key_row,
        l2norm,
        rate_f32,
        bias_f32,
    };

    let shared = shared(problem, form);
    let mut kernels = Vec::new();
    for source in sources(problem, form, &planner.arch()) {
        kernels.push(planner.kernel(&source)?);
    }
    let mut kernels = kernels.into_iter();
    let mut next = || {
        kernels
            .next()
            .ok_or_else(|| DeviceError::Refused { what: "a kernel is missing".to_owned() })
    };
    let (heads_u32, sequences) = (value_heads as u32, count as u32);
    let of_chunks = [heads_u32, chunks as u32, sequences];
    planner.launch_auxiliary(next()?, Launch::new(of_chunks, 256, shared[0]), prepare);
    match form {
        Form::Mma => {
            let args = BothScans {
                v: &v,
                output_gradient: &d_o,
                initial_state: initial_state.as_deref(),
                final_gradient: final_gradient.as_deref(),
                cu_seqlens: cu_seqlens.as_deref(),
                package: &workspace.package,
                entering: &workspace.entering,
                leaving: &workspace.leaving,
                r: &workspace.r,
                y: &workspace.y,
                dv: &dv,
                initial_gradient: initial_gradient.as_deref(),
                tokens,
                value_heads: int(value_heads)?,
                v_row,
            };
            let grid = [heads_u32 * (MMA_DIM / MMA_COLUMNS) as u32, 2, sequences];
            planner.launch_auxiliary(next()?, Launch::new(grid, 128, shared[1]), args);
        }
        Form::Float32 => {
            let grid = [heads_u32, problem.value_dim.div_ceil(COLUMNS) as u32, sequences];
            let args = ForwardScan {
                v: &v,
                initial_state: initial_state.as_deref(),
                cu_seqlens: cu_seqlens.as_deref(),
                package: &workspace.package,
                entering: &workspace.entering,
                r: &workspace.r,
                tokens,
                value_heads: int(value_heads)?,
                v_row,
            };
            planner.launch_auxiliary(next()?, Launch::new(grid, 256, shared[1]), args);
            let args = ReverseScan {
                output_gradient: &d_o,
                final_gradient: final_gradient.as_deref(),
                cu_seqlens: cu_seqlens.as_deref(),
                package: &workspace.package,
                leaving: &workspace.leaving,
                y: &workspace.y,
                dv: &dv,
                initial_gradient: initial_gradient.as_deref(),
                tokens,
                value_heads: int(value_heads)?,
            };
            planner.launch_auxiliary(next()?, Launch::new(grid, 256, shared[2]), args);
        }
    }
    let of_intra = shared.last().copied().unwrap_or(0);
    planner.launch(next()?, Launch::new(of_chunks, 256, of_intra), intra);
    let heads_of_gates = if problem.gate == Gate::LogDecay { 0 } else { value_heads };
    let blocks = int((2 * total * heads).div_ceil(8) + heads_of_gates)?;
    planner.launch_auxiliary(next()?, Launch::new([blocks as u32, 1, 1], 256, 0), reduce);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_equals_that_of_the_kernels() {
        let problem = |key_dim, value_dim| {
            let inputs = [
                ("q", vec![1, 1, 1, key_dim]),
                ("k", vec![1, 1, 1, key_dim]),
                ("v", vec![1, 1, 1, value_dim]),
                ("g", vec![1, 1, 1, key_dim]),
                ("beta", vec![1, 1, 1]),
                ("do", vec![1, 1, 1, value_dim]),
            ];
            let tensor =
                |shape: &Vec<usize>| ops::Tensor::new(shape, vec![0f32; shape.iter().product()]);
            let inputs: ops::TensorMap =
                inputs.iter().map(|(name, shape)| ((*name).to_owned(), tensor(shape))).collect();
            let spec = <ops::Gradient<ops::kda::KdaOp> as ops::Family>::SPEC;
            let inputs = ops::Inputs::of_map(spec, &inputs);
            <ops::kda::KdaOp as ops::Family>::parse(inputs, &ops::kda::KdaOptions::default())
        };
        let square = problem(128, 128).unwrap();
        assert_eq!(shared(&square, Form::Mma), [35_904, 98_496, 113_248]);
        assert_eq!(shared(&square, Form::Float32), [35_904, 38_464, 50_752, 92_416]);
        assert_eq!(package_floats(&square), 7056);
        let odd = problem(7, 37).unwrap();
        assert_eq!(shared(&odd, Form::Float32), [5184, 7264, 11_872, 14_080]);
    }
}
