//! `persistent`: the norm of one row of a residual stream, as a stage of a persistent kernel. The variant alone
//! exists to be verified; models fuse many stages into one launch. The contract is in `persistent/norm.cuh`.

use crate::persistent::{self, Norm, PersistentStage, StagePlanner, plan_alone, warps_of_stream};
use crate::{CudaVariant, Planner, int};
use device::cuda::{CudaCapabilities, DeviceError};
use ops::DType;
use ops::rmsnorm::RmsNormProblem;

pub(super) const VARIANT: CudaVariant<RmsNormProblem> =
    CudaVariant { name: "persistent", why_not, plan };

pub(super) const STAGE_PLANNER: StagePlanner<RmsNormProblem> =
    StagePlanner { why_not, plan: plan_stage, skipped_outputs: &[] };

fn why_not(problem: &RmsNormProblem, here: &CudaCapabilities) -> Option<String> {
    if let Some(reason) = persistent::unfit(here) {
        return Some(reason);
    }
    if problem.rows() != 1 {
        return Some(format!("is for one row of one group, got {}", problem.rows()));
    }
    if problem.gate.is_some() {
        return Some("takes no gate".to_owned());
    }
    if (problem.x_dtype, problem.out) != (DType::F32, DType::Bf16) {
        let (x, o) = (problem.x_dtype, problem.out);
        return Some(format!("makes bf16 of x in f32, got {o} of {x}"));
    }
    if problem.weight != Some(DType::F32) {
        return Some("needs weights in f32".to_owned());
    }
    warps_of_stream(problem.channels)
        .is_none()
        .then(|| format!("takes x of 2048, 1536 or 2304 columns, got {}", problem.channels))
}

fn plan_stage(
    problem: &RmsNormProblem,
    planner: &mut Planner<'_>,
) -> Result<PersistentStage, DeviceError> {
    let (x, weight) = (planner.required("x")?, planner.required("weight")?);
    let norm = Norm {
        x: Some(&x),
        weight: Some(&weight),
        o: Some(&*planner.output("o")?),
        inputs: int(problem.channels)?,
        eps: problem.eps as f32,
        scale: 1.0,
        ..Norm::default()
    };
    Ok(PersistentStage::norm(norm))
}

fn plan(problem: &RmsNormProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    plan_alone(&plan_stage(problem, planner)?, planner)
}

#[cfg(test)]
mod tests;
