use super::{
    Backend, Convolution, Executor, Input, LayerMixer, Loader, MixerError, RmsNorm, StateId,
};
use crate::{ModelError, layers};
use ops::kda::{KdaCall, KdaOptions};
use ops::rmsnorm::Activation;
use ops::{States, Tensor};

/// A Kimi Delta Attention mixer.
pub(super) struct Kda<B: Backend> {
    heads: usize,
    head_dim: usize,
    project: B::Projection,
    decay: B::Projection,
    gate: B::Projection,
    /// Over queries, keys and values.
    conv: Convolution,
    a_log: Tensor,
    dt_bias: Tensor,
    scan: StateId,
    norm: RmsNorm,
    out: B::Projection,
}

impl<B: Backend> Kda<B> {
    pub(super) fn new(of: &layers::Kda, load: &mut impl Loader<B>) -> Result<Self, ModelError> {
        let layers::Kda { heads, head_dim, taps, .. } = *of;
        Ok(Self {
            heads,
            head_dim,
            project: load.projection(&of.project)?,
            decay: load.projection(&of.decay)?,
            gate: load.projection(&of.gate)?,
            conv: load.convolution(&of.conv_weights, None, [3 * heads * head_dim, taps])?,
            a_log: load.vector(of.a_log)?,
            dt_bias: load.vector(of.dt_bias)?,
            scan: load.states(&[heads, head_dim, head_dim])?,
            norm: load.norm(of.norm, heads)?,
            out: load.projection(&of.out)?,
        })
    }
}

impl<B: Backend> LayerMixer<B> for Kda<B> {
    fn mix(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), MixerError> {
        let (heads, dim) = (self.heads, self.head_dim);
        let by_head = [heads, dim];
        let parts: [&[usize]; _] = [&by_head, &by_head, &by_head, &[dim], &[dim], &[heads]];
        let convolved = (&self.conv, 0..3);
        let [q, k, v, decay, gate, beta] =
            run.project_convolved(&self.project, x, parts, convolved)?;
        // Decays multiply over thousands of tokens, so their logits stay float32.
        let g = run.project_wide(&self.decay, Input::rows(&decay), &by_head)?;
        let [gate] = run.project(&self.gate, Input::rows(&gate), [&by_head])?;
        let scan = KdaCall {
            q: &q,
            k: &k,
            v: &v,
            g: &g,
            beta: &beta,
            a_log: Some(&self.a_log),
            dt_bias: Some(&self.dt_bias),
            offsets: None,
            states: States::default(),
            options: KdaOptions { l2norm: true, ..KdaOptions::default() },
            o: None,
        };
        let o = run.advance(self.scan, &scan, &by_head)?;
        let gate = Some((&gate, Activation::Sigmoid));
        Ok(run.add(&self.out, Input { gate, ..Input::normed(&o, &self.norm) })?)
    }
}
