//! `stream`: a few rows of x, bound by reading the weights. The contract stands in `stream.cu`.

use super::operands::{OUTPUTS, firsts, not_half};
use crate::DType;
use crate::cuda::{CudaVariant, Planner, int};
use crate::linear::LinearProblem;
use device::cuda::{
    Args, BundledArch, ComputeCapability, CudaCapabilities, CudaError, GpuArch, KernelSource,
    Launch,
};

pub(super) const VARIANT: CudaVariant<LinearProblem> =
    CudaVariant { name: "stream", why_not, plan };

const PARTS: &[&str] = &[
    include_str!("../../cuda/ampere.cuh"),
    include_str!("../../cuda/storage.cuh"),
    include_str!("stream.cuh"),
    include_str!("stream.cu"),
];

/// Most rows of x.
const TOKENS: usize = 8;

/// Steps of a ring, best first.
const STAGES: [usize; 2] = [6, SHORTEST];
const SHORTEST: usize = 4;

/// As in `stream.cu` and `stream.cuh`.
const WARPS: usize = 8;
const STEP: usize = 64;
const ROUND: usize = WARPS * STEP;
const SEGMENT: usize = 256;
const STEP_BYTES: usize = 16 * STEP * 2;
const SUMS_BYTES: usize = 2 * WARPS * 20 * 4;

/// Columns of a block at least: fewer are not worth starting it.
const COLUMNS: usize = 4;

fn why_not(problem: &LinearProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    if problem.tokens > TOKENS {
        return Some(format!("is for up to {TOKENS} rows of x, got {}", problem.tokens));
    }
    if !problem.inputs.is_multiple_of(8) {
        return Some(format!("needs K a multiple of 8, got {}", problem.inputs));
    }
    let groups = problem.norm.map_or(1, |norm| norm.groups);
    if groups > 1 && !(problem.inputs / groups).is_multiple_of(SEGMENT) {
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

/// What a block has in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    stages: usize,
    /// Whether x comes through the ring, as it is multiplied.
    streamed: bool,
    /// Otherwise columns of x that lie there at once.
    phase: usize,
    bytes: usize,
}

impl Share {
    /// The longest ring that leaves room for a second block: the next kernel's then fills its ring while this one ends. Next
    /// best is to stand alone with all of x, and last to read x in phases. Several rows of x that need nothing done to them
    /// come through the ring where there is room for that.
    fn of(problem: &LinearProblem, here: &CudaCapabilities) -> Option<Self> {
        let LinearProblem { tokens, inputs, .. } = *problem;
        let as_is = problem.norm.is_none() && problem.x_dtype == problem.dtype;
        let all = inputs.next_multiple_of(ROUND);
        let of = |streamed: bool, stages: usize, phase: usize| {
            let x_step = if streamed { TOKENS * STEP * 2 } else { 0 };
            let x = if streamed { 0 } else { 2 * phase + 64 };
            let squares = if problem.norm.is_some() { inputs.div_ceil(SEGMENT) * 4 } else { 0 };
            let ring = WARPS * stages * (STEP_BYTES + x_step);
            let bytes = ring + tokens * (SUMS_BYTES + x + squares);
            Self { stages, streamed, phase, bytes }
        };
        let streamed = STAGES.map(|stages| of(true, stages, all));
        let streamed = streamed.into_iter().filter(|_| as_is && tokens > 1);
        let whole: Vec<Self> =
            streamed.chain(STAGES.map(|stages| of(false, stages, all))).collect();
        let most = here.shared_bytes as usize;
        // A block takes a KiB more than it asks for.
        let beside = (most + 1024) / 2 - 1024;
        let phases = (1..all / ROUND).rev().map(|rounds| of(false, SHORTEST, rounds * ROUND));
        let alone = whole.iter().copied().chain(phases).find(|share| share.bytes <= most);
        whole.iter().copied().find(|share| share.bytes <= beside).or(alone)
    }
}

/// Blocks of a launch, each with a share of the columns; none where there is nothing to compute.
fn blocks(problem: &LinearProblem, here: &CudaCapabilities) -> usize {
    let most = if problem.tokens == 0 { 0 } else { problem.columns().div_ceil(COLUMNS) };
    most.min(here.multiprocessors as usize)
}

fn source(dtype: DType, stages: usize, arch: GpuArch) -> KernelSource {
    KernelSource::new("linear_stream", PARTS, arch)
        .define("DTYPE", dtype)
        .define("TOKENS", TOKENS)
        .define("STAGES", stages)
}

/// One token, or a few; the longer ring where two of them fit.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    let fits = |stages: &usize| stages * WARPS * STEP_BYTES * 2 <= arch.shared_bytes as usize;
    let stages = STAGES.into_iter().filter(|stages| fits(stages) || *stages == SHORTEST);
    stages.map(|stages| source(DType::Bf16, stages, arch.arch())).collect()
}

fn plan(problem: &LinearProblem, planner: &mut Planner<'_>) -> Result<(), CudaError> {
    let no_room = || CudaError::Refused { what: "no room in shared memory".to_owned() };
    let share = Share::of(problem, planner.here()).ok_or_else(no_room)?;
    let kernel = planner.kernel(&source(problem.dtype, share.stages, planner.arch()))?;
    let groups = problem.norm.map_or(1, |norm| norm.groups);
    let whole = share.phase >= problem.inputs;
    // Rounding x before it is divided by the root is as exact in bf16, but f16 could overflow.
    let deferred = problem.norm.is_some() && groups == 1 && whole && problem.dtype == DType::Bf16;
    let args = args(problem, planner)?
        .i32(int(share.phase)?)
        .i32(int(groups)?)
        .i32(deferred.into())
        .i32(share.streamed.into());
    let grid = [blocks(problem, planner.here()) as u32, 1, 1];
    let mut launch = Launch::new(grid, 32 * WARPS as u32, share.bytes as u32);
    // Its weights come while the kernel ahead ends; it waits for that one itself before it reads x.
    launch.overlaps = planner.here().compute >= ComputeCapability::new(9, 0);
    planner.launch(kernel, launch, args);
    Ok(())
}

/// The arguments up to those of `plan`.
fn args(problem: &LinearProblem, planner: &mut Planner<'_>) -> Result<Args, CudaError> {
    let mut args = Args::new()
        .buffer(&*planner.required("x")?)
        .buffer(&*planner.required("w")?)
        .maybe(planner.input("norm")?.as_deref())
        .maybe(planner.input("bias")?.as_deref())
        .maybe(planner.input("residual")?.as_deref());
    for (output, name) in OUTPUTS.into_iter().enumerate() {
        let given = (output < problem.widths.len()).then(|| planner.output(name)).transpose()?;
        args = args.maybe(given.as_deref());
    }
    Ok(firsts(problem)?
        .into_iter()
        .fold(args, Args::i32)
        .i32(int(problem.tokens)?)
        .i32(int(problem.inputs)?)
        .i32(int(problem.columns())?)
        .i32(planner.is_f32("x"))
        .i32(planner.is_f32("norm"))
        .i32(planner.is_f32("bias"))
        .i32((problem.out == DType::F32).into())
        .i32(problem.swiglu.into())
        .f32(problem.scale as f32)
        .f32(problem.norm.map_or(0.0, |norm| norm.eps) as f32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Inputs, Settings, Tensor, TensorMap};

    /// A call with x as it is stored, or in f32 and normalised as Granite's are.
    fn call([tokens, inputs, outputs]: [usize; 3], normed: bool) -> LinearProblem {
        let tensor =
            |name: &str, shape: &[usize], dtype| (name.to_owned(), Tensor::elsewhere(shape, dtype));
        let x = if normed { DType::F32 } else { DType::Bf16 };
        let mut tensors = TensorMap::from([
            tensor("x", &[tokens, inputs], x),
            tensor("w", &[outputs, inputs], DType::Bf16),
        ]);
        if normed {
            tensors.extend([tensor("norm", &[inputs], DType::F32)]);
        }
        LinearProblem::parse(Inputs::new("linear", &tensors), &Settings::new()).unwrap()
    }

    fn gpu(arch: &BundledArch) -> CudaCapabilities {
        CudaCapabilities {
            name: arch.arch().to_string(),
            compute: arch.compute,
            multiprocessors: 132,
            shared_bytes: arch.shared_bytes,
            l2_bytes: 50 << 20,
            memory_bytes: 80 << 30,
            driver: (12, 9),
        }
    }

    #[test]
    fn a_step_of_granite_leaves_room_for_the_next_kernel_on_hopper() {
        let hopper = BundledArch::ALL.iter().find(|arch| arch.compute.major == 9).unwrap();
        for tokens in 1..=TOKENS {
            for (inputs, normed) in [(2048, true), (4096, false), (8192, false)] {
                let share = Share::of(&call([tokens, inputs, 2048], normed), &gpu(hopper)).unwrap();
                assert!(2 * (share.bytes + 1024) <= 228 << 10, "{tokens} of {inputs}: {share:?}");
                assert_eq!(share.streamed, tokens > 1 && !normed, "{tokens} of {inputs}");
            }
        }
    }

    #[test]
    fn every_gpu_has_room_for_a_few_tokens_of_any_width() {
        for arch in BundledArch::ALL {
            for tokens in 0..=TOKENS {
                for inputs in [8, 512, 2048, 2304, 8192, 18_432] {
                    for normed in [false, true] {
                        let refusal = why_not(&call([tokens, inputs, 64], normed), &gpu(arch));
                        assert_eq!(refusal, None, "{} {tokens} of {inputs}", arch.arch());
                    }
                }
            }
        }
    }
}
