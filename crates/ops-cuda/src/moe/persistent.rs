//! `persistent`: one token's experts, as two stages of a persistent kernel. The variant alone exists to be verified;
//! models fuse many stages into one launch. The contract is in `persistent/experts.cuh`.

use super::operands::{Weighing, weighing};
use super::route;
use crate::persistent::{
    self, Down, Experts, PersistentStage, StagePlanner, Up, Weights, plan_alone, warps_of_stream,
};
use crate::{CudaVariant, Planner, int};
use device::cuda::{CudaCapabilities, DeviceError};
use ops::DType;
use ops::moe::MoeProblem;

pub(super) const VARIANT: CudaVariant<MoeProblem> =
    CudaVariant { name: "persistent", why_not, plan };

pub(super) const STAGE_PLANNER: StagePlanner<MoeProblem> =
    StagePlanner { why_not, plan: plan_stage, skipped_outputs: &["chosen", "weights"] };

/// Pairs of a tile of the list that the router launch writes; no kernel reads that list.
const TILE: usize = 8;

/// The kernel for these experts.
fn weights(problem: &MoeProblem) -> Option<Weights> {
    let experts = Experts {
        of: problem.experts,
        always: problem.always,
        chosen: problem.of_token(),
        inner: problem.intermediate,
        hidden: problem.hidden,
    };
    let working = warps_of_stream(problem.hidden)?;
    let narrow = problem.quantized.filter(|narrow| narrow.dtype == DType::E4m3)?;
    let by_rows = narrow.scales_per_row == [1; 2] && !narrow.offset;
    let by_rows = by_rows.then_some(Weights::by_rows(narrow.dtype))?;
    Some(Weights { working, experts: Some(experts), ..by_rows })
}

fn why_not(problem: &MoeProblem, here: &CudaCapabilities) -> Option<String> {
    if let Some(reason) = persistent::unfit(here) {
        return Some(reason);
    }
    if problem.tokens != 1 {
        return Some(format!("is for one token, got {}", problem.tokens));
    }
    if problem.clamp.is_some() || !problem.gated {
        return Some("needs experts with gates, without biases and limits".to_owned());
    }
    if problem.held != problem.experts + problem.always {
        return Some("needs the weights of all experts".to_owned());
    }
    if !problem.residual {
        return Some("adds to a residual".to_owned());
    }
    if warps_of_stream(problem.hidden).is_none() {
        let hidden = problem.hidden;
        return Some(format!("takes x of 2048, 1536 or 2304 columns, got {hidden}"));
    }
    let Some(weights) = weights(problem) else {
        return Some("needs weights in e4m3 by rows".to_owned());
    };
    let experts = weights.experts.unwrap_or_default();
    experts.unfit(weights, here).or_else(|| weights.unfit(here))
}

fn plan_stage(
    problem: &MoeProblem,
    planner: &mut Planner<'_>,
) -> Result<PersistentStage, DeviceError> {
    let no_kernel = || DeviceError::Refused { what: "no kernel takes such experts".to_owned() };
    let weights = weights(problem).ok_or_else(no_kernel)?;
    let (x, logits) = (planner.required("x")?, planner.required("logits")?);
    let correction = planner.input("correction")?;
    let (w_up, up_scale) = (planner.required("w_gate_up")?, planner.required("gate_up_scale")?);
    let (w_down, down_scale) = (planner.required("w_down")?, planner.required("down_scale")?);
    let residual = planner.required("residual")?;
    let Weighing { sigmoid, renormalise, sum_eps, weight_scale, .. } = weighing(problem)?;
    let up = Up {
        x: Some(&x),
        w: Some(&w_up),
        w_scale: Some(&up_scale),
        logits: Some(&logits),
        correction: correction.as_deref(),
        inputs: int(problem.hidden)?,
        sigmoid,
        renormalise,
        sum_eps,
        weight_scale,
        ..Up::default()
    };
    let down = Down {
        w: Some(&w_down),
        w_scale: Some(&down_scale),
        residual: Some(&residual),
        o: Some(&*planner.output("o")?),
        columns: int(problem.hidden)?,
        scale: problem.scale as f32,
        ..Down::default()
    };
    Ok(PersistentStage::experts(weights, (up, down)))
}

/// A second launch writes `chosen` and `weights`: the fused stages do not store them.
fn plan(problem: &MoeProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    plan_alone(&plan_stage(problem, planner)?, planner)?;
    route::plan_few(problem, planner, TILE).map(drop)
}

#[cfg(test)]
mod tests;
