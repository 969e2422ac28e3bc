use super::{Backend, Executor, Input, Loader};
use crate::ModelError;
use crate::layers::GatedMlp;
use kernels::{OpError, Tensor};

/// `down(silu(gate x) * up x)`, where there is a token's gate times `sigmoid(w . x)`.
pub(super) struct Mlp<B: Backend> {
    gate_up: B::Projection,
    down: B::Projection,
    token_gate: Option<Tensor>,
}

impl<B: Backend> Mlp<B> {
    pub(super) fn new(of: &GatedMlp, load: &impl Loader<B>) -> Result<Self, ModelError> {
        Ok(Self {
            gate_up: load.gated(&of.gate_up)?,
            down: load.projection(&of.down)?,
            token_gate: of.token_gate.map(|gate| load.vector(gate)).transpose()?,
        })
    }

    pub(super) fn run(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), OpError> {
        let Some(token_gate) = &self.token_gate else {
            let gated = run.project_gated(&self.gate_up, x)?;
            return run.add(&self.down, Input::rows(&gated));
        };
        let h = match x {
            Input { rows: Some(rows), norm: None, gate: None } => rows.clone(),
            _ => run.norm(x)?,
        };
        let mut gated = run.project_gated(&self.gate_up, Input::rows(&h))?;
        // What is left is linear: its gate may come before it, where rows are shorter.
        run.gate_tokens(&mut gated, &h, token_gate)?;
        run.add(&self.down, Input::rows(&gated))
    }
}
