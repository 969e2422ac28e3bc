use super::mlp::Mlp;
use super::{Backend, Executor, Input, Loader, RmsNorm};
use crate::{ModelError, layers};
use ops::OpError;

/// Routed experts, with shared ones.
pub(super) struct Experts<B: Backend> {
    router: B::Projection,
    /// The norm of the router's input, if it is not that of the experts.
    router_norm: Option<RmsNorm>,
    count: usize,
    /// Projection to a narrower latent vector that experts work on, its width, and the projection back.
    latent: Option<(B::Projection, usize, B::Projection)>,
    experts: B::Experts,
    /// Shared experts that are not stored with the routed ones.
    shared: Option<Mlp<B>>,
}

impl<B: Backend> Experts<B> {
    pub(super) fn new(
        of: &layers::Experts,
        shared: Option<&layers::GatedMlp>,
        load: &impl Loader<B>,
    ) -> Result<Self, ModelError> {
        let router = load.projection(&of.router)?;
        let latent = match &of.latent {
            Some([to, back]) => Some((load.projection(to)?, to.outputs(), load.projection(back)?)),
            None => None,
        };
        let (experts, all) = load.experts(of, shared)?;
        let shared = shared.filter(|_| !all).map(|of| Mlp::new(of, load)).transpose()?;
        let router_norm = match of.score {
            layers::RouterScore::ScaledSoftmax { norm, .. } => {
                let root = (of.router.inputs as f64).sqrt();
                Some(load.norm_times(norm, 1, 1.0 / root)?)
            }
            _ => None,
        };
        let count = of.router.outputs();
        Ok(Self { router, router_norm, count, latent, experts, shared })
    }

    /// `x += r (experts(h) + shared(h))` for the normalized input h.
    pub(super) fn run(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), OpError> {
        let h = run.norm(x)?;
        let of_router = match &self.router_norm {
            Some(norm) => Input { norm: Some(norm), ..x },
            None => Input::rows(&h),
        };
        let logits = run.project_wide(&self.router, of_router, &[self.count])?;
        match &self.latent {
            None => run.add_experts(&self.experts, &h, &logits)?,
            Some((to, width, back)) => {
                let [narrow] = run.project(to, Input::rows(&h), [&[*width]])?;
                let made = run.experts(&self.experts, &narrow, &logits)?;
                if self.shared.is_some() {
                    run.adds_more();
                }
                run.add(back, Input::rows(&made))?;
            }
        }
        self.shared.as_ref().map_or(Ok(()), |shared| shared.run(run, Input::rows(&h)))
    }
}
