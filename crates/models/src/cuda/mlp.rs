use super::program::Program;
use super::weights::{CudaProjection, Weights};
use crate::ModelError;
use crate::layers::GatedMlp;
use kernels::linear::{LinearCall, Normed};
use kernels::{DType, OpError, Tensor};

/// `down(silu(gate x) * up x)`.
pub(super) struct CudaMlp {
    gate_up: CudaProjection,
    down: CudaProjection,
    inner: usize,
}

impl CudaMlp {
    pub(super) fn new(of: &GatedMlp, weights: &Weights<'_, '_>) -> Result<Self, ModelError> {
        Ok(Self {
            gate_up: weights.projection(&of.gate_up)?,
            down: weights.projection(&of.down)?,
            inner: of.down.inputs,
        })
    }

    /// Plans `x += r down(..)` of the normed x.
    pub(super) fn plan(&self, program: &Program<'_>, norm: &Tensor) -> Result<(), OpError> {
        self.plan_of(program, &program.x, program.normed(norm))
    }

    /// Plans the same of these rows, normalised or as they are.
    pub(super) fn plan_of(
        &self,
        program: &Program<'_>,
        x: &Tensor,
        norm: Option<Normed<'_>>,
    ) -> Result<(), OpError> {
        let gated = program.tensor(&[program.pass.tokens, self.inner], DType::Bf16)?;
        let call = LinearCall { norm, swiglu: true, ..self.gate_up.of(x) };
        program.call(&call.into([&gated]))?;
        self.down.plan_residual(self.down.of(&gated), program)
    }
}
