use super::Mix;
use super::call::OpCall;
use super::program::Program;
use super::states::States;
use super::tensor::GpuTensor;
use super::weights::{CudaProjection, Weights};
use crate::ModelError;
use crate::layers::Kda;
use crate::pages::Pages;
use device::cuda::Stream;
use kernels::conv1d::Conv1dOp;
use kernels::kda::KdaOp;
use kernels::linear::LinearOp;
use kernels::rmsnorm::RmsNormOp;
use kernels::{DType, OpError};

/// A Kimi Delta Attention mixer.
pub(super) struct CudaKda {
    heads: usize,
    head_dim: usize,
    project: CudaProjection,
    decay: CudaProjection,
    gate: CudaProjection,
    /// `[3 inner, taps]`.
    conv_weight: GpuTensor,
    a_log: GpuTensor,
    dt_bias: GpuTensor,
    norm: GpuTensor,
    out: CudaProjection,
    conv: States,
    scan: States,
}

impl CudaKda {
    pub(super) fn new(of: &Kda, weights: &Weights<'_>, pages: &Pages) -> Result<Self, ModelError> {
        let (heads, dim, places) = (of.heads, of.head_dim, pages.sequences());
        let channels = 3 * heads * dim;
        Ok(Self {
            heads,
            head_dim: dim,
            project: weights.projection(&of.project)?,
            decay: weights.projection(&of.decay)?,
            gate: weights.projection(&of.gate)?,
            conv_weight: weights.vectors(&of.conv_weights)?.shaped(&[channels, of.taps]),
            a_log: weights.vector(of.a_log)?,
            dt_bias: weights.vector(of.dt_bias)?,
            norm: weights.vector(of.norm)?,
            out: weights.projection(&of.out)?,
            conv: States::new(weights, places, &[channels, of.taps - 1])?,
            scan: States::new(weights, places, &[heads, dim, dim])?,
        })
    }

    /// Plans the convolution of `count` channels from `first` on; `x` and `o` over the pass's tokens.
    fn plan_conv(
        &self,
        program: &mut Program<'_>,
        part @ (first, count): (usize, usize),
        [x, o]: [&GpuTensor; 2],
    ) -> Result<(), OpError> {
        let call = OpCall::new(&Conv1dOp)
            .input("x", x)
            .input("weight", &self.conv_weight.rows(first, count)?)
            .set("activation", "silu")
            .output("o", o);
        self.conv.plan(call, program, part)
    }

    /// Plans the projection to q, k, v and what `project` gives beside them, and the convolutions; gives q, k and v by head.
    fn plan_convolved(
        &self,
        program: &mut Program<'_>,
        project: impl Fn(&Program<'_>, &GpuTensor) -> OpCall,
    ) -> Result<[GpuTensor; 3], OpError> {
        let (pass, inner) = (program.pass, self.heads * self.head_dim);
        let by_head = pass.shape(&[self.heads, self.head_dim]);
        let parts = [0, inner, 2 * inner];
        let mut qkv = program.tensor(&[pass.tokens, 3 * inner], DType::Bf16)?;
        if pass.one_token {
            // The kernel of the projection convolves, where there is one for so many sequences.
            let convolving = self
                .conv
                .advance(project(program, &qkv), pass)
                .input("conv_weight", &self.conv_weight)
                .set("conv_activation", "silu");
            if convolving.is_possible(program)? {
                convolving.plan(program)?;
            } else {
                project(program, &qkv).plan(program)?;
                let x = qkv.shaped(&pass.shape(&[3 * inner]));
                qkv = program.tensor(&[pass.tokens, 3 * inner], DType::Bf16)?;
                self.plan_conv(program, (0, 3 * inner), [&x, &qkv])?;
            }
            let [q, k, v] = parts.map(|first| qkv.columns(first, inner, &by_head));
            return Ok([q?, k?, v?]);
        }
        project(program, &qkv).plan(program)?;
        // The chunk kernels want each of them as a tensor of its own.
        let mut plan = |first: usize| {
            let mixed = program.tensor(&[pass.tokens, inner], DType::Bf16)?;
            let x = qkv.columns(first, inner, &pass.shape(&[inner]))?;
            self.plan_conv(program, (first, inner), [&x, &mixed])?;
            Ok(mixed.shaped(&by_head))
        };
        Ok([plan(parts[0])?, plan(parts[1])?, plan(parts[2])?])
    }
}

impl Mix for CudaKda {
    fn plan(&self, program: &mut Program<'_>, norm: &GpuTensor) -> Result<(), OpError> {
        let (pass, heads, dim) = (program.pass, self.heads, self.head_dim);
        let inner = heads * dim;
        let tensor = |width: usize, dtype| program.tensor(&[pass.tokens, width], dtype);
        let strength = tensor(heads, DType::Bf16)?;
        let (of_decay, of_gate) = (tensor(dim, DType::Bf16)?, tensor(dim, DType::Bf16)?);
        // Decays multiply thousands of tokens: their logits keep float32.
        let (decay, gate) = (tensor(inner, DType::F32)?, tensor(inner, DType::Bf16)?);
        let (o, gated) = (tensor(inner, DType::Bf16)?, tensor(inner, DType::Bf16)?);
        let [q, k, v] = self.plan_convolved(program, |program, qkv| {
            let call = OpCall::new(&LinearOp)
                .input("x", &program.x)
                .input("norm", norm)
                .set("eps", program.eps)
                .set("split", format!("{},{dim},{dim},{heads}", 3 * inner));
            let parts = [("o", qkv), ("o1", &of_decay), ("o2", &of_gate), ("o3", &strength)];
            self.project.call(call, &parts)
        })?;
        let call = OpCall::new(&LinearOp).input("x", &of_decay).set("out", "f32");
        self.decay.plan(call, program, &[("o", &decay)])?;
        let call = OpCall::new(&LinearOp).input("x", &of_gate);
        self.gate.plan(call, program, &[("o", &gate)])?;

        let call = OpCall::new(&KdaOp)
            .input("q", &q)
            .input("k", &k)
            .input("v", &v)
            .input("g", &decay.shaped(&pass.shape(&[heads, dim])))
            .input("beta", &strength.shaped(&pass.shape(&[heads])))
            .input("A_log", &self.a_log)
            .input("dt_bias", &self.dt_bias)
            .set("l2norm", true)
            .output("o", &o);
        self.scan.plan(call, program, (0, heads))?;

        let by_head = [1, pass.tokens, heads, dim];
        OpCall::new(&RmsNormOp)
            .input("x", &o.shaped(&by_head))
            .input("gate", &gate.shaped(&by_head))
            .input("weight", &self.norm)
            .set("activation", "sigmoid")
            .set("norm_before_gate", true)
            .set("eps", program.eps)
            .output("o", &gated)
            .plan(program)?;
        self.out.plan_residual(OpCall::new(&LinearOp).input("x", &gated), program)
    }

    fn reset(&self, stream: &Stream, place: usize) -> Result<(), OpError> {
        self.conv.reset(stream, place)?;
        self.scan.reset(stream, place)
    }
}
