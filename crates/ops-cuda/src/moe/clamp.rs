//! The launch that applies biases, limits and the activation after the gate and up projections. The contract is in
//! `clamp.cu`.

use super::operands::{self, AMPERE, NARROW, STORAGE, overlapping};
use super::route::List;
use crate::{Planner, arguments, int, source};
use device::cuda::{Args, Buffer, DeviceError, GpuArch, KernelSource, Launch, SourcePart};
use ops::DType;
use ops::moe::{Clamp, MoeProblem, QuantizedExperts};

const PARTS: &[SourcePart] = &[AMPERE, STORAGE, NARROW, source!("order.cuh"), source!("clamp.cu")];

/// Threads of a block, and elements per thread.
const THREADS: usize = 256;
const ELEMENTS: usize = 8;

/// `ordered`: the weights of the down projection if `hopper_narrow.cu` computes it, whose channel permutation the kernel then
/// writes; `None` for channels in order.
pub(super) fn source(
    dtype: DType,
    ordered: Option<QuantizedExperts>,
    arch: &GpuArch,
) -> KernelSource {
    let source = KernelSource::new("moe_clamp", PARTS, arch.clone())
        .define("DTYPE", dtype)
        .define("ORDERED", u8::from(ordered.is_some()));
    operands::of_weights(source, ordered)
}

arguments! {
    Clamped: moe_clamp {
        both: Pointer, bias: Pointer, tiles: Pointer, pairs: Pointer, chosen: Pointer, made: Pointer, inner: i32,
        first_held: i32, limit: f32, alpha: f32,
    }
}

/// Adds the launch from gate and up values `[pairs as listed, 2I]` to activations `[pairs as listed, I]`.
pub(super) fn plan(
    (problem, clamp): (&MoeProblem, Clamp),
    planner: &mut Planner<'_>,
    list: &List,
    ordered: Option<QuantizedExperts>,
    [both, made]: [&Buffer; 2],
) -> Result<(), DeviceError> {
    let kernel = planner.kernel(&source(problem.dtype, ordered, &planner.arch()))?;
    let args = Args::from(Clamped {
        both,
        bias: &*planner.required("gate_up_bias")?,
        tiles: &list.tiles,
        pairs: &list.pairs,
        chosen: &*planner.output("chosen")?,
        made,
        inner: int(problem.intermediate)?,
        first_held: int(problem.first)?,
        limit: clamp.limit as f32,
        alpha: clamp.alpha as f32,
    });
    let blocks = (problem.pairs() * problem.intermediate).div_ceil(THREADS * ELEMENTS) as u32;
    let launch = overlapping(planner, Launch::new([blocks, 1, 1], THREADS as u32, 0));
    planner.launch(kernel, launch, args);
    Ok(())
}
