use super::{
    Backend, Convolution, Executor, Input, LayerMixer, Loader, MixerError, RmsNorm, StateId,
};
use crate::ModelError;
use crate::layers::{self, GatedDeltaShape};
use ops::gated_delta::{GatedDeltaCall, GatedDeltaOptions};
use ops::rmsnorm::Activation;
use ops::{States, Tensor};

/// A Gated DeltaNet mixer.
pub(super) struct GatedDelta<B: Backend> {
    shape: GatedDeltaShape,
    project: B::Projection,
    /// Over queries, keys and values.
    conv: Convolution,
    a_log: Tensor,
    dt_bias: Tensor,
    scan: StateId,
    negative_eigenvalues: bool,
    norm: RmsNorm,
    out: B::Projection,
}

impl<B: Backend> GatedDelta<B> {
    pub(super) fn new(
        of: &layers::GatedDelta,
        load: &mut impl Loader<B>,
    ) -> Result<Self, ModelError> {
        let shape @ GatedDeltaShape { value_heads, key_dim, value_dim, taps, .. } = of.shape;
        Ok(Self {
            shape,
            project: load.projection(&of.project)?,
            conv: load.convolution(&of.conv_weights, None, [shape.channels(), taps])?,
            a_log: load.vector(of.a_log)?,
            dt_bias: load.vector(of.dt_bias)?,
            scan: load.states(&[value_heads, key_dim, value_dim])?,
            negative_eigenvalues: of.negative_eigenvalues,
            norm: load.plain_norm_with(of.norm, value_heads, of.norm_eps)?,
            out: load.projection(&of.out)?,
        })
    }
}

impl<B: Backend> LayerMixer<B> for GatedDelta<B> {
    fn mix(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), MixerError> {
        let GatedDeltaShape { key_heads, value_heads, key_dim, value_dim, .. } = self.shape;
        let (keys, values, by_head) =
            ([key_heads, key_dim], [value_heads, value_dim], [value_heads]);
        let parts: [&[usize]; _] = [&keys, &keys, &values, &values, &by_head, &by_head];
        let convolved = (&self.conv, 0..3);
        let [q, k, v, gate, beta, g] = run.project_convolved(&self.project, x, parts, convolved)?;
        let scan = GatedDeltaCall {
            q: &q,
            k: &k,
            v: &v,
            g: &g,
            beta: &beta,
            a_log: Some(&self.a_log),
            dt_bias: Some(&self.dt_bias),
            offsets: None,
            states: States::default(),
            options: GatedDeltaOptions {
                l2norm: true,
                allow_neg_eigval: self.negative_eigenvalues.then_some(true),
                ..GatedDeltaOptions::default()
            },
            o: None,
        };
        let o = run.advance(self.scan, &scan, &values)?;
        let gate = Some((&gate, Activation::Silu));
        Ok(run.add(&self.out, Input { gate, ..Input::normed(&o, &self.norm) })?)
    }
}
