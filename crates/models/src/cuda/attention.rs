use super::Mix;
use super::call::OpCall;
use super::program::Program;
use super::tensor::GpuTensor;
use super::weights::{CudaProjection, Weights};
use crate::ModelError;
use crate::layers::Attention;
use crate::pages::{BLOCK, Pages};
use device::cuda::Stream;
use kernels::attention::AttentionOp;
use kernels::linear::LinearOp;
use kernels::{DType, OpError, decoder};

/// Grouped-query attention over a paged cache.
pub(super) struct CudaAttention {
    of: Attention,
    qkv: CudaProjection,
    out: CudaProjection,
    /// `[blocks, BLOCK, kv_heads, head_dim]`.
    keys: GpuTensor,
    values: GpuTensor,
}

impl CudaAttention {
    pub(super) fn new(
        of: &Attention,
        weights: &Weights<'_>,
        pages: &Pages,
    ) -> Result<Self, ModelError> {
        // Zeros: what is read beside a sequence's keys is masked, but a NaN would outlive that.
        let shape = [pages.blocks(), BLOCK, of.kv_heads, of.head_dim];
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
    fn plan(&self, program: &mut Program<'_>, norm: &GpuTensor) -> Result<(), OpError> {
        let Attention { heads, kv_heads, head_dim: dim, .. } = self.of;
        let pass = program.pass;
        let tensor = |heads: usize| program.tensor(&[pass.tokens, heads * dim], DType::Bf16);
        let (q, k, v, o) = (tensor(heads)?, tensor(kv_heads)?, tensor(kv_heads)?, tensor(heads)?);
        let split = [heads, kv_heads, kv_heads].map(|heads| (heads * dim).to_string()).join(",");
        let call = OpCall::new(&LinearOp)
            .input("x", &program.x)
            .input("norm", norm)
            .set("eps", program.eps)
            .set("split", split);
        self.qkv.plan(call, program, &[("o", &q), ("o1", &k), ("o2", &v)])?;
        let append = decoder::Append {
            dtype: DType::Bf16,
            q: Some(&q.buffer),
            k: &k.buffer,
            more: None,
            v: Some((&v.buffer, &self.values.buffer, kv_heads * dim)),
            k_pool: &self.keys.buffer,
            rows: &pass.rows,
            positions: &pass.positions,
            count: pass.tokens,
            heads,
            kv_heads,
            dim,
            theta: self.of.rope_theta,
        };
        program.add(decoder::append(program.device, &append)?)?;

        let call = OpCall::new(&AttentionOp)
            .input("q", &q.shaped(&pass.shape(&[heads, dim])))
            .set("causal", true)
            .set("scale", self.of.scale);
        let call = pass.name_sequences(call);
        // Where no sequence had a token before, all keys are at hand, one behind the other.
        let call = if pass.fresh {
            let of_keys = pass.shape(&[kv_heads, dim]);
            call.input("k", &k.shaped(&of_keys)).input("v", &v.shaped(&of_keys))
        } else {
            pass.name_cache(call.input("k", &self.keys).input("v", &self.values))
        };
        call.output("o", &o).plan(program)?;
        self.out.plan_residual(OpCall::new(&LinearOp).input("x", &o), program)
    }

    /// The pages decide what is read of the cache.
    fn reset(&self, _stream: &Stream, _place: usize) -> Result<(), OpError> {
        Ok(())
    }
}
