use super::{
    Append, Attend, Backend, CacheId, Executor, Input, LayerMixer, Loader, MixerError, RmsNorm,
    Rotation, Values,
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
    /// Norm of the queries' latent vector and the projection to queries.
    query_up: Option<(RmsNorm, B::Projection)>,
    rotation: Option<Rotation>,
    scale: f64,
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
        let latent_norm = |load: &_, id| {
            let weight = Loader::<B>::vector(load, id)?;
            Ok::<_, ModelError>(RmsNorm { weight, norm, ranks: 1 })
        };
        let query_up = match &of.query_up {
            Some((norm, up)) => Some((latent_norm(load, *norm)?, load.projection(up)?)),
            None => None,
        };
        Ok(Self {
            shape,
            query_up,
            rotation: of.rope.as_ref().map(|rope| load.rotation(rope)).transpose()?,
            scale: of.scale,
            project: load.projection(&of.project)?,
            latent_norm: latent_norm(load, of.latent_norm)?,
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
        let queries: &[usize] = &[heads, nope + shared];
        let q_rank = self.query_up.as_ref().map(|(norm, _)| [norm.weight.len()]);
        let first = q_rank.as_ref().map_or(queries, |rank| rank);
        let parts: [&[usize]; _] = [first, &[1, rank], &[1, shared]];
        let [mut q, latent, mut shared_key] = run.project(&self.project, x, parts)?;
        if let Some((norm, up)) = &self.query_up {
            [q] = run.project(up, Input::normed(&q, norm), [queries])?;
        }
        if let Some(rotation) = &self.rotation {
            run.rotate(&mut q, nope, rotation)?;
            run.rotate(&mut shared_key, 0, rotation)?;
        }
        let mut keys = run.norm(Input::normed(&latent, &self.latent_norm))?;
        let more = Some(&shared_key);
        run.append(self.cache, Append { keys: &mut keys, more, values: None, rotated: None })?;
        let queries = run.multiply_heads(&self.key_up, &q, shared)?;
        let (scale, window, softcap, sinks) = (self.scale, None, None, None);
        let call = Attend { queries: &queries, new: None, scale, window, softcap, sinks };
        let sums = run.attend(self.cache, call)?;
        let values = run.multiply_heads(&self.value_up, &sums, 0)?;
        Ok(run.add(&self.out, Input::rows(&values))?)
    }
}
