use super::call::OpCall;
use super::program::Program;
use super::tensor::GpuTensor;
use super::weights::{CudaProjection, Weights};
use crate::ModelError;
use crate::layers::GatedMlp;
use kernels::linear::LinearOp;
use kernels::{DType, OpError};

/// `down(silu(gate x) * up x)`.
pub(super) struct CudaMlp {
    gate_up: CudaProjection,
    down: CudaProjection,
    inner: usize,
}

impl CudaMlp {
    pub(super) fn new(of: &GatedMlp, weights: &Weights<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            gate_up: weights.projection(&of.gate_up)?,
            down: weights.projection(&of.down)?,
            inner: of.down.inputs,
        })
    }

    /// Plans `x += r down(..)` of the normed x.
    pub(super) fn plan(&self, program: &mut Program<'_>, norm: &GpuTensor) -> Result<(), OpError> {
        let x = program.x.clone();
        let call = OpCall::new(&LinearOp).input("x", &x).input("norm", norm);
        let call = call.set("eps", program.eps);
        self.plan_of(call, program)
    }

    /// Plans the same of what a call of `linear` has as its x.
    pub(super) fn plan_of(&self, call: OpCall, program: &mut Program<'_>) -> Result<(), OpError> {
        let gated = program.tensor(&[program.pass.tokens, self.inner], DType::Bf16)?;
        let call = call.set("activation", "swiglu");
        self.gate_up.plan(call, program, &[("o", &gated)])?;
        self.down.plan_residual(OpCall::new(&LinearOp).input("x", &gated), program)
    }
}
