//! `persistent`: one row of x by weights in e4m3, as a phase of a kernel whose blocks stay. By itself it is there to be verified; models
//! put many of them into one launch. The contract stands in `persistent/cuda/linear.cuh`.

use super::operands::{OUTPUTS, firsts};
use crate::DType;
use crate::cuda::{CudaVariant, Planner, arguments, int, slots};
use crate::linear::{LinearProblem, Scales};
use crate::persistent::{
    Form, Linear, Phase, PhaseOf, SEGMENT, SEGMENTS, STAGE_ROWS, SUM_STAGES, TAPS, WARP_COLUMNS,
    Weights, launch, unfit,
};
use device::cuda::{Buffer, CudaCapabilities, CudaError};
use std::sync::Arc;

pub(super) const VARIANT: CudaVariant<LinearProblem> =
    CudaVariant { name: "persistent", why_not, plan };

pub(in crate::linear) const PHASE: PhaseOf<LinearProblem> = PhaseOf { why_not, plan: phase };

/// Segments of a row of w: as few as take it.
fn segments(inputs: usize) -> Option<usize> {
    let segments = SEGMENTS.into_iter().find(|segments| inputs <= segments * SEGMENT)?;
    inputs.is_multiple_of(segments * WARP_COLUMNS).then_some(segments)
}

fn why_not(problem: &LinearProblem, here: &CudaCapabilities) -> Option<String> {
    if let Some(reason) = unfit(here) {
        return Some(reason);
    }
    if problem.w_dtype != DType::E4m3 || problem.scales != Some(Scales::Rows) {
        let found = problem.w_dtype;
        return Some(format!("needs weights in e4m3 with a factor for each row, got {found}"));
    }
    if problem.tokens != 1 {
        return Some(format!("is for one row of x, got {}", problem.tokens));
    }
    if problem.squared {
        return Some("squares no columns".to_owned());
    }
    if let Some(norm) = problem.norm.filter(|norm| norm.groups > 1) {
        return Some(format!("normalises x as a whole, not in {} groups", norm.groups));
    }
    if problem.norm.is_some() && !problem.norm_f32 {
        return Some("needs a norm in f32".to_owned());
    }
    if let Some(of) = problem.convolution.as_ref().filter(|of| of.width != TAPS) {
        return Some(format!("convolves by {TAPS} taps, got {}", of.width));
    }
    let Some(segments) = segments(problem.inputs) else {
        let most = SEGMENTS[SEGMENTS.len() - 1] * SEGMENT;
        let found = problem.inputs;
        return Some(format!(
            "needs K up to {most}, a multiple of {WARP_COLUMNS} in each of its segments, got {found}"
        ));
    };
    let of_block = problem.columns().div_ceil(here.multiprocessors.max(1) as usize);
    let stages = of_block.div_ceil(STAGE_ROWS / segments) << usize::from(problem.swiglu);
    (stages > SUM_STAGES).then(|| {
        format!(
            "has room for the sums of {SUM_STAGES} stages of a block's columns, not of {stages}"
        )
    })
}

arguments! {
    LinearPersistent: linear_persistent { of: (Linear) }
}

/// The operands of one call.
struct Operands {
    x: Arc<Buffer>,
    w: Arc<Buffer>,
    w_scale: Arc<Buffer>,
    norm: Option<Arc<Buffer>>,
    bias: Option<Arc<Buffer>>,
    residual: Option<Arc<Buffer>>,
    outputs: Vec<Arc<Buffer>>,
    conv_weight: Option<Arc<Buffer>>,
    conv_bias: Option<Arc<Buffer>>,
    initial_state: Option<Arc<Buffer>>,
    final_state: Option<Arc<Buffer>>,
    state_indices: Option<Arc<Buffer>>,
    bias_f32: i32,
    conv_weight_f32: i32,
    conv_bias_f32: i32,
}

impl Operands {
    fn new(problem: &LinearProblem, planner: &mut Planner<'_>) -> Result<Self, CudaError> {
        let outputs = OUTPUTS.iter().zip(&problem.widths);
        let after = problem.convolution.as_ref().map(|_| planner.output("final_state"));
        Ok(Self {
            outputs: outputs.map(|(name, _)| planner.output(name)).collect::<Result<_, _>>()?,
            x: planner.required("x")?,
            w: planner.required("w")?,
            w_scale: planner.required("w_scale")?,
            norm: planner.input("norm")?,
            bias: planner.input("bias")?,
            residual: planner.input("residual")?,
            conv_weight: planner.input("conv_weight")?,
            conv_bias: planner.input("conv_bias")?,
            initial_state: planner.input("initial_state")?,
            final_state: after.transpose()?,
            state_indices: planner.input("state_indices")?,
            bias_f32: planner.is_f32("bias"),
            conv_weight_f32: planner.is_f32("conv_weight"),
            conv_bias_f32: planner.is_f32("conv_bias"),
        })
    }

    fn record(&self, problem: &LinearProblem) -> Result<Linear<'_>, CudaError> {
        let [o0, o1, o2, o3, o4, o5] = std::array::from_fn(|at| self.output(at));
        let [start1, start2, start3, start4, start5] = firsts(problem)?;
        let convolution = problem.convolution.as_ref();
        Ok(Linear {
            x: &self.x,
            w: &self.w,
            w_scale: &self.w_scale,
            norm: self.norm.as_deref(),
            bias: self.bias.as_deref(),
            residual: self.residual.as_deref(),
            o0,
            o1,
            o2,
            o3,
            o4,
            o5,
            conv_weight: self.conv_weight.as_deref(),
            conv_bias: self.conv_bias.as_deref(),
            initial_state: self.initial_state.as_deref(),
            final_state: self.final_state.as_deref(),
            state_indices: self.state_indices.as_deref(),
            start1,
            start2,
            start3,
            start4,
            start5,
            inputs: int(problem.inputs)?,
            columns: int(problem.columns())?,
            x_f32: (problem.x_dtype == DType::F32).into(),
            swiglu: problem.swiglu.into(),
            bias_f32: self.bias_f32,
            out_f32: (problem.out == DType::F32).into(),
            scale: problem.scale as f32,
            eps: problem.norm.map_or(0.0, |norm| norm.eps) as f32,
            conv_weight_f32: self.conv_weight_f32,
            conv_bias_f32: self.conv_bias_f32,
            conv_silu: convolution.is_some_and(|of| of.silu).into(),
            conv_first: int(convolution.map_or(0, |of| of.first))?,
            conv_channels: int(convolution.map_or(0, |of| of.channels))?,
        })
    }

    fn output(&self, at: usize) -> Option<&Buffer> {
        self.outputs.get(at).map(Arc::as_ref)
    }
}

const FORM: Form = Form { weights: Some(Weights::E4m3) };

fn phase(problem: &LinearProblem, planner: &mut Planner<'_>) -> Result<Phase, CudaError> {
    let operands = Operands::new(problem, planner)?;
    Ok(Phase::linear(FORM, operands.record(problem)?))
}

fn plan(problem: &LinearProblem, planner: &mut Planner<'_>) -> Result<(), CudaError> {
    let operands = Operands::new(problem, planner)?;
    let kernel = planner.kernel(&FORM.linear_source(planner.arch()))?;
    let args = LinearPersistent { of: operands.record(problem)? };
    planner.launch(kernel, launch(planner.here()), args);
    let Some(of) = &problem.convolution else { return Ok(()) };
    slots::hand_on(planner, &of.slots, problem.tokens, of.channels * (of.width - 1))
}

#[cfg(test)]
mod tests;
