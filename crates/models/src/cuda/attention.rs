use super::Mix;
use super::program::Program;
use super::weights::{CudaProjection, Weights};
use crate::ModelError;
use crate::layers::Attention;
use crate::pages::{BLOCK, Pages};
use device::cuda::Stream;
use kernels::attention::{AttentionCall, Keys, Mask, Values};
use kernels::linear::LinearCall;
use kernels::{DType, OpError, Tensor, decoder};

/// Grouped-query attention over a paged cache.
pub(super) struct CudaAttention {
    of: Attention,
    qkv: CudaProjection,
    out: CudaProjection,
    /// `[blocks, BLOCK, kv_heads, head_dim]`.
    keys: Tensor,
    values: Tensor,
}

impl CudaAttention {
    pub(super) fn new(
        of: &Attention,
        weights: &Weights<'_, '_>,
        pages: &Pages,
    ) -> Result<Self, ModelError> {
        // Zeros: what is read beside a sequence's keys is masked, but a NaN would outlive that.
        let shape = [pages.pooled(), BLOCK, of.kv_heads, of.head_dim];
        Ok(Self {
            qkv: weights.projection(&of.qkv)?,
            out: weights.projection(&of.out)?,
            keys: weights.zeros(&shape, DType::Bf16)?,
            values: weights.zeros(&shape, DType::Bf16)?,
            of: of.clone(),
        })
    }
}

impl Mix for CudaAttention {
    fn plan(&self, program: &mut Program<'_>, norm: &Tensor) -> Result<(), OpError> {
        let Attention { heads, kv_heads, head_dim: dim, .. } = self.of;
        let pass = program.pass;
        let tensor = |heads: usize| program.tensor(&[pass.tokens, heads * dim], DType::Bf16);
        let (q, k, v, o) = (tensor(heads)?, tensor(kv_heads)?, tensor(kv_heads)?, tensor(heads)?);
        let call = LinearCall { norm: program.normed(norm), ..self.qkv.of(&program.x) };
        program.call(&call.into([&q, &k, &v]))?;
        let append = decoder::Append {
            dtype: DType::Bf16,
            q: Some(q.on()?),
            k: k.on()?,
            more: None,
            v: Some((v.on()?, self.values.on()?, kv_heads * dim)),
            k_pool: self.keys.on()?,
            rows: &pass.rows,
            positions: &pass.positions,
            count: pass.tokens,
            heads,
            kv_heads,
            dim,
            theta: self.of.rope_theta,
        };
        program.add(decoder::append(program.device, &append)?)?;

        // Where no sequence had a token before, all keys are at hand, one behind the other.
        let of_keys = pass.shape(&[kv_heads, dim]);
        let at_hand = [k.shaped(&of_keys)?, v.shaped(&of_keys)?];
        let (k, v, keys) = match (pass.fresh, pass.offsets()) {
            (false, _) => (&self.keys, &self.values, pass.cache()),
            (true, None) => (&at_hand[0], &at_hand[1], Keys::Dense { lengths: None }),
            (true, Some(_)) => (&at_hand[0], &at_hand[1], Keys::Packed { offsets: None }),
        };
        program.call(&AttentionCall {
            q: &q.shaped(&pass.shape(&[heads, dim]))?,
            offsets: pass.offsets(),
            k,
            v: Values::Apart(v),
            keys,
            mask: Mask::CAUSAL,
            scale: Some(self.of.scale),
            softcap: None,
            o: Some(&o),
            lse: None,
        })?;
        self.out.plan_residual(self.out.of(&o), program)
    }

    /// The pages decide what is read of the cache.
    fn reset(&self, _stream: &Stream, _place: usize) -> Result<(), OpError> {
        Ok(())
    }
}
