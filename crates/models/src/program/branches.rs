use super::experts::Experts;
use super::mlp::Mlp;
use super::{Backend, Executor, Input, Loader, RmsNorm};
use crate::params::ParamId;
use crate::{ModelError, layers};
use ops::OpError;

/// A dense part and experts that both read the residual stream, with separate norms.
pub(super) struct Branches<B: Backend> {
    mlp: Mlp<B>,
    experts: Experts<B>,
    after_mlp: RmsNorm,
    before_experts: RmsNorm,
    after_experts: RmsNorm,
}

impl<B: Backend> Branches<B> {
    pub(super) fn new(
        (mlp, experts): (&layers::GatedMlp, &layers::Experts),
        [after_mlp, before_experts, after_experts]: [ParamId; 3],
        load: &impl Loader<B>,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            mlp: Mlp::new(mlp, load)?,
            experts: Experts::new(experts, None, load)?,
            after_mlp: load.norm(after_mlp, 1)?,
            before_experts: load.norm(before_experts, 1)?,
            after_experts: load.norm(after_experts, 1)?,
        })
    }

    /// Adds both to a residual stream of zeros; the input has the norm of the dense part.
    pub(super) fn run(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), OpError> {
        let zeros = run.begin_branch()?;
        self.mlp.run(run, x)?;
        run.end_branch(zeros, &self.after_mlp)?;
        let dense = run.begin_branch()?;
        self.experts.run(run, Input { norm: Some(&self.before_experts), ..x })?;
        run.end_branch(dense, &self.after_experts)
    }
}
