use super::mlp::Mlp;
use super::{Backend, Executor, Input, Loader, RmsNorm};
use crate::ModelError;
use crate::layers;
use kernels::OpError;

/// Routed experts.
pub(super) struct Experts<B: Backend> {
    router: B::Projection,
    count: usize,
    /// To a narrower vector that the experts work on, how wide that is, and back.
    latent: Option<(B::Projection, usize, B::Projection)>,
    experts: B::Experts,
}

impl<B: Backend> Experts<B> {
    pub(super) fn new(of: &layers::Experts, load: &impl Loader<B>) -> Result<Self, ModelError> {
        let router = load.projection(&of.router)?;
        let latent = match &of.latent {
            Some([to, back]) => Some((load.projection(to)?, to.outputs(), load.projection(back)?)),
            None => None,
        };
        Ok(Self { router, count: of.router.outputs(), latent, experts: load.experts(of)? })
    }

    /// `h = rms(x); x += r (experts(h) + mlp(h))`.
    pub(super) fn run(
        &self,
        run: &mut B::Run<'_>,
        norm: &RmsNorm,
        mlp: Option<&Mlp<B>>,
    ) -> Result<(), OpError> {
        let h = run.norm(Input::stream(norm))?;
        let logits = run.project_wide(&self.router, Input::rows(&h), &[self.count])?;
        match &self.latent {
            None => run.add_experts(&self.experts, &h, &logits)?,
            Some((to, width, back)) => {
                let [narrow] = run.project(to, Input::rows(&h), [&[*width]])?;
                let made = run.experts(&self.experts, &narrow, &logits)?;
                run.add(back, Input::rows(&made))?;
            }
        }
        mlp.map_or(Ok(()), |mlp| mlp.run(run, Input::rows(&h)))
    }
}
