use super::Mix;
use super::call::OpCall;
use super::program::Program;
use super::tensor::GpuTensor;
use super::weights::{CudaProjection, Weights};
use crate::ModelError;
use crate::layers::{LatentAttention, LatentShape};
use crate::pages::{BLOCK, Pages};
use device::cuda::Stream;
use kernels::attention::AttentionOp;
use kernels::linear::LinearOp;
use kernels::rmsnorm::RmsNormOp;
use kernels::{DType, OpError, decoder};

/// Latent attention in its absorbed form: queries go to the width of the cache, whose one head all heads share, and what
/// was summed over it goes back to values.
pub(super) struct CudaLatentAttention {
    shape: LatentShape,
    project: CudaProjection,
    latent_norm: GpuTensor,
    latent_eps: f64,
    /// `W_k^T` of each head `[heads, rank, nope]`.
    key_up: GpuTensor,
    /// `W_v` of each head `[heads, value, rank]`.
    value_up: GpuTensor,
    out: CudaProjection,
    /// `[blocks, BLOCK, 1, rank + shared]`: the first `rank` channels are the values too.
    keys: GpuTensor,
}

impl CudaLatentAttention {
    pub(super) fn new(
        of: &LatentAttention,
        weights: &Weights<'_>,
        pages: &Pages,
    ) -> Result<Self, ModelError> {
        let shape @ LatentShape { heads, rank, nope, value, .. } = of.shape;
        let value_up = weights.matrix(&of.value_up, rank)?.shaped(&[heads, value, rank]);
        Ok(Self {
            shape,
            project: weights.projection(&of.project)?,
            latent_norm: weights.vector(of.latent_norm)?,
            latent_eps: of.latent_eps,
            key_up: weights.transposed(&of.key_up, rank)?.shaped(&[heads, rank, nope]),
            value_up,
            out: weights.projection(&of.out)?,
            keys: weights.zeros(&[pages.blocks(), BLOCK, 1, shape.cached()], DType::Bf16)?,
        })
    }

    /// Plans a product of each head with its own matrix.
    fn plan_heads(
        &self,
        program: &mut Program<'_>,
        [x, w, o]: [&GpuTensor; 3],
        [inputs, outputs, tail]: [usize; 3],
    ) -> Result<(), OpError> {
        let heads = decoder::Heads {
            dtype: DType::Bf16,
            x: &x.buffer,
            w: &w.buffer,
            o: &o.buffer,
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
    fn plan(&self, program: &mut Program<'_>, norm: &GpuTensor) -> Result<(), OpError> {
        let LatentShape { heads, rank, nope, shared, value, .. } = self.shape;
        let (pass, cached) = (program.pass, self.shape.cached());
        let tensor = |width: usize| program.tensor(&[pass.tokens, width], DType::Bf16);
        let queries = heads * (nope + shared);
        let (q, latent, shared_key) = (tensor(queries)?, tensor(rank)?, tensor(shared)?);
        let (normed, absorbed) = (tensor(rank)?, tensor(heads * cached)?);
        let (o, expanded) = (tensor(heads * rank)?, tensor(heads * value)?);
        let call = OpCall::new(&LinearOp)
            .input("x", &program.x)
            .input("norm", norm)
            .set("eps", program.eps)
            .set("split", format!("{queries},{rank},{shared}"));
        let parts = [("o", &q), ("o1", &latent), ("o2", &shared_key)];
        self.project.plan(call, program, &parts)?;
        let rows = [1, pass.tokens, 1, rank];
        OpCall::new(&RmsNormOp)
            .input("x", &latent.shaped(&rows))
            .input("weight", &self.latent_norm)
            .set("eps", self.latent_eps)
            .output("o", &normed)
            .plan(program)?;
        let append = decoder::Append {
            dtype: DType::Bf16,
            q: None,
            k: &normed.buffer,
            more: Some((&shared_key.buffer, shared)),
            v: None,
            k_pool: &self.keys.buffer,
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
        let call = OpCall::new(&AttentionOp)
            .input("q", &absorbed.shaped(&pass.shape(&[heads, cached])))
            .input("k", &self.keys)
            .set("value_width", rank)
            .set("causal", true)
            .set("scale", self.shape.scale())
            .output("o", &o);
        pass.name_cache(pass.name_sequences(call)).plan(program)?;
        self.plan_heads(program, [&o, &self.value_up, &expanded], [rank, value, 0])?;
        self.out.plan_residual(OpCall::new(&LinearOp).input("x", &expanded), program)
    }

    /// The pages decide what is read of the cache.
    fn reset(&self, _stream: &Stream, _place: usize) -> Result<(), OpError> {
        Ok(())
    }
}
