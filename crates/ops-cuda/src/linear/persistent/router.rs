//! A router: f32 logits of one normalized row. Each block has a few columns and reads their weights itself, since
//! they are too few for the ring.

use crate::persistent::{MAX_LOGITS, Norm, PersistentStage, warps_of_stream};
use crate::{Planner, int};
use device::cuda::DeviceError;
use ops::DType;
use ops::linear::LinearProblem;

/// Whether the projection is a router's.
pub(super) fn is_router(problem: &LinearProblem) -> bool {
    let bf16 = [problem.dtype, problem.w_dtype, problem.x_dtype] == [DType::Bf16; 3];
    let around = problem.norm.is_some()
        || problem.bias
        || problem.residual
        || problem.swiglu
        || problem.squared
        || problem.ordered
        || problem.convolution.is_some();
    let sizes = problem.tokens == 1
        && (1..=MAX_LOGITS).contains(&problem.outputs)
        && problem.widths.len() == 1
        && warps_of_stream(problem.inputs).is_some();
    bf16 && problem.out == DType::F32 && !around && sizes
}

/// Plans the stage of a router.
pub(super) fn plan_stage(
    problem: &LinearProblem,
    planner: &mut Planner<'_>,
) -> Result<PersistentStage, DeviceError> {
    let (x, w) = (planner.required("x")?, planner.required("w")?);
    let norm = Norm {
        x: Some(&x),
        w: Some(&w),
        logits: Some(&*planner.output("o")?),
        inputs: int(problem.inputs)?,
        columns: int(problem.outputs)?,
        scale: problem.scale as f32,
        ..Norm::default()
    };
    Ok(PersistentStage::norm(norm))
}
