use super::Mix;
use super::program::Program;
use super::weights::{CudaProjection, Weights};
use crate::ModelError;
use crate::layers::{LatentAttention, LatentShape};
use crate::pages::{BLOCK, Pages};
use device::cuda::Stream;
use kernels::attention::{AttentionCall, Mask, Values};
use kernels::linear::LinearCall;
use kernels::rmsnorm::{RmsNormCall, RmsNormOptions};
use kernels::{DType, OpError, Tensor, decoder};

/// Latent attention in its absorbed form: queries go to the width of the cache, whose one head all heads share, and what
/// was summed over it goes back to values.
pub(super) struct CudaLatentAttention {
    shape: LatentShape,
    project: CudaProjection,
    latent_norm: Tensor,
    latent_eps: f64,
    /// `W_k^T` of each head `[heads, rank, nope]`.
    key_up: Tensor,
    /// `W_v` of each head `[heads, value, rank]`.
    value_up: Tensor,
    out: CudaProjection,
    /// `[blocks, BLOCK, 1, rank + shared]`: the first `rank` channels are the values too.
    keys: Tensor,
}

impl CudaLatentAttention {
    pub(super) fn new(
        of: &LatentAttention,
        weights: &Weights<'_, '_>,
        pages: &Pages,
    ) -> Result<Self, ModelError> {
        let shape @ LatentShape { heads, rank, nope, value, .. } = of.shape;
        let value_up = weights.matrix(&of.value_up, rank)?;
        let value_up = value_up.shaped(&[heads, value, rank]).map_err(super::failed)?;
        let key_up = weights.transposed(&of.key_up, rank)?;
        Ok(Self {
            shape,
            project: weights.projection(&of.project)?,
            latent_norm: weights.vector(of.latent_norm)?,
            latent_eps: of.latent_eps,
            key_up: key_up.shaped(&[heads, rank, nope]).map_err(super::failed)?,
            value_up,
            out: weights.projection(&of.out)?,
            keys: weights.zeros(&[pages.pooled(), BLOCK, 1, shape.cached()], DType::Bf16)?,
        })
    }

    /// Plans a product of each head with its own matrix.
    fn plan_heads(
        &self,
        program: &mut Program<'_>,
        [x, w, o]: [&Tensor; 3],
        [inputs, outputs, tail]: [usize; 3],
    ) -> Result<(), OpError> {
        let heads = decoder::Heads {
            dtype: DType::Bf16,
            x: x.on()?,
            w: w.on()?,
            o: o.on()?,
            count: program.pass.tokens,
            heads: self.shape.heads,
            inputs,
            outputs,
            tail,
        };
        program.add(decoder::heads(program.device, &heads)?)
    }
}

impl Mix for CudaLatentAttention {
    fn plan(&self, program: &mut Program<'_>, norm: &Tensor) -> Result<(), OpError> {
        let LatentShape { heads, rank, nope, shared, value, .. } = self.shape;
        let (pass, cached) = (program.pass, self.shape.cached());
        let tensor = |width: usize| program.tensor(&[pass.tokens, width], DType::Bf16);
        let queries = heads * (nope + shared);
        let (q, latent, shared_key) = (tensor(queries)?, tensor(rank)?, tensor(shared)?);
        let (normed, absorbed) = (tensor(rank)?, tensor(heads * cached)?);
        let (o, expanded) = (tensor(heads * rank)?, tensor(heads * value)?);
        let call = LinearCall { norm: program.normed(norm), ..self.project.of(&program.x) };
        program.call(&call.into([&q, &latent, &shared_key]))?;
        program.call(&RmsNormCall {
            x: &latent.shaped(&[1, pass.tokens, 1, rank])?,
            gate: None,
            weight: Some(&self.latent_norm),
            options: RmsNormOptions { eps: self.latent_eps, ..RmsNormOptions::default() },
            o: Some(&normed),
        })?;
        let append = decoder::Append {
            dtype: DType::Bf16,
            q: None,
            k: normed.on()?,
            more: Some((shared_key.on()?, shared)),
            v: None,
            k_pool: self.keys.on()?,
            rows: &pass.rows,
            positions: &pass.positions,
            count: pass.tokens,
            heads,
            kv_heads: 1,
            dim: rank,
            theta: None,
        };
        program.add(decoder::append(program.device, &append)?)?;
        self.plan_heads(program, [&q, &self.key_up, &absorbed], [nope, rank, shared])?;
        program.call(&AttentionCall {
            q: &absorbed.shaped(&pass.shape(&[heads, cached]))?,
            offsets: pass.offsets(),
            k: &self.keys,
            v: Values::InKeys(rank),
            keys: pass.cache(),
            mask: Mask::CAUSAL,
            scale: Some(self.shape.scale()),
            softcap: None,
            o: Some(&o),
            lse: None,
        })?;
        self.plan_heads(program, [&o, &self.value_up, &expanded], [rank, value, 0])?;
        self.out.plan_residual(self.out.of(&expanded), program)
    }

    /// The pages decide what is read of the cache.
    fn reset(&self, _stream: &Stream, _place: usize) -> Result<(), OpError> {
        Ok(())
    }
}
