use super::{Backend, Executor, Input, Loader};
use crate::ModelError;
use crate::layers::GatedMlp;
use ops::{OpError, Tensor};

/// `down(silu(gate x) * up x)`, also with GELU, or `down(max(0, up x)^2)` without a gate; with a token gate times `sigmoid(w . x)`.
pub(super) struct Mlp<B: Backend> {
    gated: bool,
    gelu: bool,
    gate_up: B::Projection,
    down: B::Projection,
    token_gate: Option<Tensor>,
    /// Multiplier of the output.
    factor: f64,
}

impl<B: Backend> Mlp<B> {
    pub(super) fn new(of: &GatedMlp, load: &impl Loader<B>) -> Result<Self, ModelError> {
        Ok(Self {
            gated: of.gated,
            gelu: of.gelu,
            gate_up: match of.gated && !of.gelu {
                true => load.gated(&of.gate_up)?,
                false => load.projection(&of.gate_up)?,
            },
            down: load.projection(&of.down)?,
            token_gate: of.token_gate.map(|gate| load.vector(gate)).transpose()?,
            // The input has the gate's multiplier, also for the up projection.
            factor: of.multipliers[1] / of.multipliers[0],
        })
    }

    pub(super) fn run(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), OpError> {
        let Some(token_gate) = &self.token_gate else {
            let inner = self.inner(run, x)?;
            return run.add(&self.down, Input::rows(&inner).times(self.factor));
        };
        let h = match x {
            Input { rows: Some(rows), norm: None, gate: None, factor: 1.0 } => rows.clone(),
            _ => run.norm(x)?,
        };
        let mut inner = self.inner(run, Input::rows(&h))?;
        // The rest is linear, so the token gate is applied before the down projection, where rows are shorter.
        run.gate_tokens(&mut inner, &h, token_gate)?;
        run.add(&self.down, Input::rows(&inner).times(self.factor))
    }

    /// The input of the down projection.
    fn inner(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<Tensor, OpError> {
        match self.gated {
            true if self.gelu => run.project_gelu_gated(&self.gate_up, x),
            true => run.project_gated(&self.gate_up, x),
            false => run.project_squared(&self.gate_up, x),
        }
    }
}
