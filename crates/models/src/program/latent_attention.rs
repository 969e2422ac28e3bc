use super::{
    Append, Attend, Backend, CacheId, Executor, Input, LayerMixer, Loader, MixerError, RmsNorm,
    Values,
};
use crate::ModelError;
use crate::layers::{self, LatentShape};
use ops::linear::Norm;

/// Latent attention (MLA) in its absorbed form: instead of expanding every cached token to keys and values of all
/// heads, each head's query is multiplied by the key matrix once, `q (W_k c) = (W_k^T q) c`, and attends to latent
/// vectors; values are expanded after the sum, `sum p W_v c = W_v sum p c`.
pub(super) struct LatentAttention<B: Backend> {
    shape: LatentShape,
    project: B::Projection,
    latent_norm: RmsNorm,
    /// `W_k^T` of each head: nope -> rank.
    key_up: B::Heads,
    /// `W_v` of each head: rank -> value.
    value_up: B::Heads,
    /// One head shared by all: the first `rank` channels are also the values.
    cache: CacheId,
    out: B::Projection,
}

impl<B: Backend> LatentAttention<B> {
    pub(super) fn new(
        of: &layers::LatentAttention,
        load: &mut impl Loader<B>,
    ) -> Result<Self, ModelError> {
        let shape = of.shape;
        let norm = Norm { groups: 1, eps: of.latent_eps };
        Ok(Self {
            shape,
            project: load.projection(&of.project)?,
            latent_norm: RmsNorm { weight: load.vector(of.latent_norm)?, norm, ranks: 1 },
            key_up: load.heads(&of.key_up, shape.rank, true)?,
            value_up: load.heads(&of.value_up, shape.rank, false)?,
            cache: load.cache([1, shape.cached()], Values::InKeys(shape.rank))?,
            out: load.projection(&of.out)?,
        })
    }
}

impl<B: Backend> LayerMixer<B> for LatentAttention<B> {
    fn mix(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), MixerError> {
        let LatentShape { heads, rank, nope, shared, .. } = self.shape;
        let parts: [&[usize]; _] = [&[heads, nope + shared], &[1, rank], &[shared]];
        let [q, latent, shared_key] = run.project(&self.project, x, parts)?;
        let mut keys = run.norm(Input::normed(&latent, &self.latent_norm))?;
        let more = Some(&shared_key);
        run.append(self.cache, Append { keys: &mut keys, more, values: None, rotated: None })?;
        let queries = run.multiply_heads(&self.key_up, &q, shared)?;
        let (scale, window, sinks) = (self.shape.scale(), None, None);
        let call = Attend { queries: &queries, new: None, scale, window, sinks };
        let sums = run.attend(self.cache, call)?;
        let values = run.multiply_heads(&self.value_up, &sums, 0)?;
        Ok(run.add(&self.out, Input::rows(&values))?)
    }
}
