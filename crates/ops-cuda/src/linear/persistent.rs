//! `persistent`: one row of x by e4m3 or integer weights, or by a router's bf16 weights, as a stage of a persistent
//! kernel. The variant alone exists to be verified; models fuse many stages into one launch. The contract is in
//! `persistent/README.md`.

mod router;

use super::operands::{OUTPUTS, factor_bits, firsts};
use crate::persistent::{
    Linear, PersistentChain, PersistentStage, StagePlanner, TAPS, Weights, no_room, plan_alone,
    unfit, x_of,
};
use crate::{CudaVariant, Planner, int, slots};
use device::cuda::{Buffer, CudaCapabilities, DeviceError};
use ops::DType;
use ops::linear::{LinearProblem, Scales};
use std::sync::Arc;

pub(super) const VARIANT: CudaVariant<LinearProblem> =
    CudaVariant { name: "persistent", why_not, plan };

pub(super) const STAGE_PLANNER: StagePlanner<LinearProblem> =
    StagePlanner { why_not, plan: plan_stage, leaves_out: &[] };

/// The kernels for such weights and such an x.
fn weights(problem: &LinearProblem) -> Option<Weights> {
    let dtype = problem.w_dtype;
    let blocks = match (problem.scales?, dtype, problem.w_group) {
        (Scales::Rows, ..) => 0,
        (Scales::Groups, DType::I8, 32) => 32,
        (Scales::Groups, DType::U4, group @ (32 | 128)) => group,
        _ => return None,
    };
    let whole = !problem.offsets || dtype == DType::U4 && blocks == 32;
    let by_rows = Weights::by_rows(dtype);
    let working = x_form(problem).map_or(by_rows.working, |(_, working)| working);
    let factor = if blocks > 0 { problem.scale_dtype } else { by_rows.factor };
    let offset = problem.offsets;
    whole.then_some(Weights { working, dtype, blocks, factor, offset, experts: None })
}

fn why_not(problem: &LinearProblem, here: &CudaCapabilities) -> Option<String> {
    if let Some(reason) = unfit(here) {
        return Some(reason);
    }
    if router::is_router(problem) {
        return None;
    }
    let Some(weights) = weights(problem).filter(|_| !problem.zeros) else {
        let what = "needs weights in e4m3 by rows, or integers by rows or by groups of 32, or 128 of 4 bits, without zero points, or a router's";
        return Some(what.to_owned());
    };
    if problem.tokens != 1 {
        return Some(format!("is for one row of x, got {}", problem.tokens));
    }
    for (there, what) in [
        (problem.squared, "squares no columns"),
        (problem.bias, "adds no bias"),
        (problem.ordered, "multiplies columns of x as they come, not in an order"),
    ] {
        if there {
            return Some(what.to_owned());
        }
    }
    if let Some(norm) = problem.norm.filter(|norm| norm.groups > 1) {
        return Some(format!("normalises x as a whole, not in {} groups", norm.groups));
    }
    if problem.norm.is_some() && !problem.norm_f32 {
        return Some("needs a norm in f32".to_owned());
    }
    if let Some(of) = problem.convolution.as_ref().filter(|of| of.width != TAPS || !of.f32) {
        return Some(format!("convolves by {TAPS} taps in f32, got {}", of.width));
    }
    let (x, inputs) = (problem.x_dtype, problem.inputs);
    let Some((form, _)) = x_form(problem) else {
        return Some(format!(
            "takes x of 2048 columns in f32 or 4096 in bf16 after a norm, of 8192 or 2048 in bf16 without one, or three quarters of these, got {inputs} in {x}"
        ));
    };
    if !weights.has_form(form) {
        return Some(format!("takes no x of {inputs} columns in {x} by such weights"));
    }
    if let Some(odd) = problem.widths.iter().find(|width| !width.is_multiple_of(2)) {
        return Some(format!("hands columns on by two, got an output of {odd}"));
    }
    let sizes = [problem.inputs, problem.columns()];
    no_room(weights, sizes, problem.swiglu, here).or_else(|| weights.unfit(here))
}

/// The form of x, and warps that multiply it.
fn x_form(problem: &LinearProblem) -> Option<(usize, usize)> {
    x_of(problem.x_dtype == DType::F32, problem.inputs, problem.norm.is_some())
}

/// The operands of one call.
struct Operands {
    x: Arc<Buffer>,
    w: Arc<Buffer>,
    w_scale: Arc<Buffer>,
    w_offset: Option<Arc<Buffer>>,
    norm: Option<Arc<Buffer>>,
    residual: Option<Arc<Buffer>>,
    outputs: Vec<Arc<Buffer>>,
    conv_weight: Option<Arc<Buffer>>,
    conv_bias: Option<Arc<Buffer>>,
    initial_state: Option<Arc<Buffer>>,
    final_state: Option<Arc<Buffer>>,
    state_indices: Option<Arc<Buffer>>,
    factor_bits: i32,
}

impl Operands {
    fn new(problem: &LinearProblem, planner: &mut Planner<'_>) -> Result<Self, DeviceError> {
        let outputs = OUTPUTS.iter().zip(&problem.widths);
        let after = problem.convolution.as_ref().map(|_| planner.output("final_state"));
        let factor_bits = factor_bits(planner);
        if weights(problem).is_some_and(|of| of.blocks > 0) {
            // Scales of a group are copied in pieces of 16 bytes.
            ["w_scale", "w_offset"].into_iter().for_each(|name| planner.widest(name, 16));
        }
        Ok(Self {
            outputs: outputs.map(|(name, _)| planner.output(name)).collect::<Result<_, _>>()?,
            x: planner.required("x")?,
            w: planner.required("w")?,
            w_scale: planner.required("w_scale")?,
            w_offset: planner.input("w_offset")?,
            norm: planner.input("norm")?,
            residual: planner.input("residual")?,
            conv_weight: planner.input("conv_weight")?,
            conv_bias: planner.input("conv_bias")?,
            initial_state: planner.input("initial_state")?,
            final_state: after.transpose()?,
            state_indices: planner.input("state_indices")?,
            factor_bits,
        })
    }

    fn record(&self, problem: &LinearProblem) -> Result<Linear<'_>, DeviceError> {
        let [o0, o1, o2, o3, o4, o5] = std::array::from_fn(|at| self.output(at));
        let [start1, start2, start3, start4, start5] = firsts(problem)?;
        let convolution = problem.convolution.as_ref();
        Ok(Linear {
            x: Some(&self.x),
            w: Some(&self.w),
            w_scale: Some(&self.w_scale),
            w_offset: self.w_offset.as_deref(),
            norm: self.norm.as_deref(),
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
            x_packets: None,
            packets: None,
            form: int(x_form(problem).unwrap_or_default().0)?,
            inputs: int(problem.inputs)?,
            start1,
            start2,
            start3,
            start4,
            start5,
            columns: int(problem.columns())?,
            swiglu: problem.swiglu.into(),
            out_f32: (problem.out == DType::F32).into(),
            // Consumers in later launches read the output from memory.
            stored: 1,
            factor_bits: self.factor_bits,
            scale: problem.scale as f32,
            eps: problem.norm.map_or(0.0, |norm| norm.eps) as f32,
            conv_silu: convolution.is_some_and(|of| of.silu).into(),
            conv_first: int(convolution.map_or(0, |of| of.first))?,
            conv_channels: int(convolution.map_or(0, |of| of.channels))?,
        })
    }

    fn output(&self, at: usize) -> Option<&Buffer> {
        self.outputs.get(at).map(Arc::as_ref)
    }
}

fn no_kernel() -> DeviceError {
    DeviceError::Refused { what: "no kernel multiplies such weights".to_owned() }
}

fn plan_stage(
    problem: &LinearProblem,
    planner: &mut Planner<'_>,
) -> Result<PersistentStage, DeviceError> {
    if router::is_router(problem) {
        return router::plan_stage(problem, planner);
    }
    let operands = Operands::new(problem, planner)?;
    Ok(PersistentStage::linear(weights(problem).ok_or_else(no_kernel)?, operands.record(problem)?))
}

fn plan(problem: &LinearProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    if router::is_router(problem) {
        return plan_alone(&router::plan_stage(problem, planner)?, planner);
    }
    let weights = weights(problem).ok_or_else(no_kernel)?;
    let operands = Operands::new(problem, planner)?;
    let kernel = planner.kernel(&weights.source(planner.arch()))?;
    let of = operands.record(problem)?;
    let args = PersistentChain { phases: None, count: 1, launches: None, of };
    planner.launch(kernel, weights.launch(planner.here()), args);
    let Some(of) = &problem.convolution else { return Ok(()) };
    slots::hand_on(planner, &of.slots, problem.tokens, of.channels * (of.width - 1))
}

#[cfg(test)]
mod tests;
