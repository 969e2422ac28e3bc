use super::{Backend, Executor, Input, Loader};
use crate::ModelError;
use crate::layers::GatedMlp;
use kernels::OpError;

/// `down(silu(gate x) * up x)`.
pub(super) struct Mlp<B: Backend> {
    gate_up: B::Projection,
    down: B::Projection,
}

impl<B: Backend> Mlp<B> {
    pub(super) fn new(of: &GatedMlp, load: &impl Loader<B>) -> Result<Self, ModelError> {
        Ok(Self { gate_up: load.gated(&of.gate_up)?, down: load.projection(&of.down)? })
    }

    pub(super) fn run(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), OpError> {
        let gated = run.project_gated(&self.gate_up, x)?;
        run.add(&self.down, Input::rows(&gated))
    }
}
