use super::Mix;
use super::attention::{PagedAttention, Values};
use super::rows::{columns, put_columns, rms_norm};
use super::step::Step;
use super::weights::{CpuProjection, Weights};
use crate::ModelError;
use crate::layers::{LatentAttention, LatentShape};
use crate::pages::Pages;
use kernels::OpError;
use kernels::cpu::linear::Linear;

/// Latent attention in its absorbed form: instead of expanding every cached token to keys and values of all heads, a
/// head's query is taken through the keys' matrix once, `q (W_k c) = (W_k^T q) c`, and attends to latent vectors;
/// values are expanded after the sum, `sum p W_v c = W_v sum p c`.
pub(super) struct CpuLatentAttention {
    shape: LatentShape,
    project: CpuProjection,
    latent_norm: Vec<f32>,
    latent_eps: f64,
    /// `W_k^T` of each head: nope -> rank.
    key_up: Vec<Linear>,
    /// `W_v` of each head: rank -> value.
    value_up: Vec<Linear>,
    out: CpuProjection,
    cached: PagedAttention,
}

impl CpuLatentAttention {
    pub(super) fn new(
        of: &LatentAttention,
        weights: &Weights<'_>,
        pages: &Pages,
    ) -> Result<Self, ModelError> {
        let shape = of.shape;
        let vectors = ([1, shape.cached()], Values::InKeys(shape.rank));
        let key_up = of.key_up.iter().map(|rows| weights.linear(&[*rows], shape.rank, true));
        let value_up = of.value_up.iter().map(|rows| weights.linear(&[*rows], shape.rank, false));
        Ok(Self {
            shape,
            project: weights.projection(&of.project)?,
            latent_norm: weights.vector(of.latent_norm)?,
            latent_eps: of.latent_eps,
            key_up: key_up.collect::<Result<_, _>>()?,
            value_up: value_up.collect::<Result<_, _>>()?,
            out: weights.projection(&of.out)?,
            cached: PagedAttention::new(pages, weights.storage(), vectors, shape.scale()),
        })
    }
}

impl Mix for CpuLatentAttention {
    fn mix(&mut self, x: &[f32], step: &Step<'_>) -> Result<Vec<f32>, OpError> {
        let LatentShape { heads, rank, nope, shared, value, .. } = self.shape;
        let (tokens, cached) = (step.tokens(), self.shape.cached());
        let projected = self.project.apply(step.device, x); // [tokens, heads (nope | shared) | rank | shared]
        let queries = heads * (nope + shared);
        let width = queries + cached;
        let part = |range| columns(&projected, width, range);

        let latent = rms_norm(&part(queries..queries + rank), &self.latent_norm, self.latent_eps);
        let mut keys = vec![0f32; tokens * cached];
        put_columns(&mut keys, cached, 0, &latent, rank);
        put_columns(&mut keys, cached, rank, &part(queries + rank..width), shared);
        self.cached.append(step, &keys, None)?;

        let mut q = vec![0f32; tokens * heads * cached];
        for (head, key_up) in self.key_up.iter().enumerate() {
            let first = head * (nope + shared);
            let own = key_up.apply(step.device, &part(first..first + nope));
            put_columns(&mut q, heads * cached, head * cached, &own, rank);
            let own = part(first + nope..first + nope + shared);
            put_columns(&mut q, heads * cached, head * cached + rank, &own, shared);
        }
        let o = self.cached.attend(step, q, [heads, cached])?; // [tokens, heads, rank]

        let mut values = vec![0f32; tokens * heads * value];
        for (head, value_up) in self.value_up.iter().enumerate() {
            let own = columns(&o, heads * rank, head * rank..(head + 1) * rank);
            let own = value_up.apply(step.device, &own);
            put_columns(&mut values, heads * value, head * value, &own, value);
        }
        Ok(self.out.apply(step.device, &values))
    }

    /// The pages decide what is read of the cache.
    fn reset(&mut self, _sequence: usize) {}
}
