use super::{Backend, Convolution, Executor, Input, Loader, Mix, RmsNorm, StateId};
use crate::ModelError;
use crate::layers::{self, Mamba2Shape};
use kernels::ssd::{SsdCall, SsdOptions};
use kernels::{OpError, States, Tensor};

/// A Mamba-2 mixer.
pub(super) struct Mamba2<B: Backend> {
    shape: Mamba2Shape,
    in_proj: B::Projection,
    conv: Convolution,
    /// `-exp(A_log)`.
    rate: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    scan: StateId,
    norm: RmsNorm,
    out_proj: B::Projection,
}

impl<B: Backend> Mamba2<B> {
    pub(super) fn new(of: &layers::Mamba2, load: &mut impl Loader<B>) -> Result<Self, ModelError> {
        let shape @ Mamba2Shape { heads, head_dim, groups, state, taps, .. } = of.shape;
        Ok(Self {
            shape,
            in_proj: load.projection(&of.in_proj)?,
            conv: load.convolution(&[of.conv_weight], of.conv_bias, [shape.channels(), taps])?,
            rate: load.mapped(of.a_log, |a_log| -a_log.exp())?,
            d: load.vector(of.d)?,
            dt_bias: load.vector(of.dt_bias)?,
            scan: load.states(&[heads, head_dim, state])?,
            norm: RmsNorm { ranks: of.norm_ranks, ..load.norm(of.norm, groups)? },
            out_proj: load.projection(&of.out_proj)?,
        })
    }
}

impl<B: Backend> Mix<B> for Mamba2<B> {
    fn mix(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), OpError> {
        let Mamba2Shape { heads, head_dim, groups, state, dt_limits, .. } = self.shape;
        let (by_head, by_group) = ([heads, head_dim], [groups, state]);
        let parts: [&[usize]; _] = [&by_head, &by_head, &by_group, &by_group, &[heads]];
        let convolved = (&self.conv, 1..4);
        let [z, x, b, c, dt] = run.project_convolved(&self.in_proj, x, parts, convolved)?;
        let [dt_min, dt_max] = dt_limits;
        let scan = SsdCall {
            x: &x,
            dt: &dt,
            a: &self.rate,
            b: &b,
            c: &c,
            d: Some(&self.d),
            z: Some(&z),
            dt_bias: Some(&self.dt_bias),
            offsets: None,
            states: States::default(),
            options: SsdOptions { dt_min, dt_max, ..SsdOptions::default() },
            o: None,
        };
        let y = run.advance(self.scan, &scan, &by_head)?;
        // The scan has applied the gate already; what is left of the gated norm is the norm.
        run.add(&self.out_proj, Input::normed(&y, &self.norm))
    }
}
