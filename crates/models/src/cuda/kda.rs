use super::Mix;
use super::program::Program;
use super::states::{Part, StatePool};
use super::weights::{CudaProjection, Weights};
use crate::ModelError;
use crate::layers::Kda;
use crate::pages::Pages;
use device::cuda::Stream;
use kernels::conv1d::{self, Conv1dCall, Conv1dOptions};
use kernels::kda::{KdaCall, KdaOptions};
use kernels::linear::{Convolved, LinearCall, Out};
use kernels::rmsnorm::{Activation, RmsNormCall, RmsNormOptions};
use kernels::{DType, OpError, States, Tensor};

/// A Kimi Delta Attention mixer.
pub(super) struct CudaKda {
    heads: usize,
    head_dim: usize,
    project: CudaProjection,
    decay: CudaProjection,
    gate: CudaProjection,
    /// `[3 inner, taps]`.
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm: Tensor,
    out: CudaProjection,
    conv: StatePool,
    scan: StatePool,
}

impl CudaKda {
    pub(super) fn new(
        of: &Kda,
        weights: &Weights<'_, '_>,
        pages: &Pages,
    ) -> Result<Self, ModelError> {
        let (heads, dim, places) = (of.heads, of.head_dim, pages.sequences());
        let channels = 3 * heads * dim;
        let conv_weight = weights.vectors(&of.conv_weights)?.shaped(&[channels, of.taps]);
        Ok(Self {
            heads,
            head_dim: dim,
            project: weights.projection(&of.project)?,
            decay: weights.projection(&of.decay)?,
            gate: weights.projection(&of.gate)?,
            conv_weight: conv_weight.map_err(super::failed)?,
            a_log: weights.vector(of.a_log)?,
            dt_bias: weights.vector(of.dt_bias)?,
            norm: weights.vector(of.norm)?,
            out: weights.projection(&of.out)?,
            conv: StatePool::new(weights, places, &[channels, of.taps - 1])?,
            scan: StatePool::new(weights, places, &[heads, dim, dim])?,
        })
    }

    /// Plans the convolution of `count` channels from `first` on; `x` and `o` over the pass's tokens.
    fn plan_conv(
        &self,
        program: &Program<'_>,
        (first, count): Part,
        states: States<'_>,
        [x, o]: [&Tensor; 2],
    ) -> Result<(), OpError> {
        let activation = conv1d::Activation::Silu;
        program.call(&Conv1dCall {
            x,
            weight: &self.conv_weight.rows(first, count)?,
            bias: None,
            offsets: program.pass.offsets(),
            states,
            positions: None,
            options: Conv1dOptions { activation, ..Conv1dOptions::default() },
            o: Some(o),
        })
    }

    /// Plans the projection to q, k, v and what stands beside them, `[decay, gate, strength]`, and the convolutions; gives q, k
    /// and v by head.
    fn plan_convolved(
        &self,
        program: &Program<'_>,
        norm: &Tensor,
        [decay, gate, strength]: [&Tensor; 3],
    ) -> Result<[Tensor; 3], OpError> {
        let (pass, inner) = (program.pass, self.heads * self.head_dim);
        let by_head = pass.shape(&[self.heads, self.head_dim]);
        let parts = [0, inner, 2 * inner];
        let mut qkv = program.tensor(&[pass.tokens, 3 * inner], DType::Bf16)?;
        let project = LinearCall { norm: program.normed(norm), ..self.project.of(&program.x) };
        if pass.one_token {
            // The kernel of the projection convolves, where there is one for so many sequences.
            let convolved = Convolved {
                weight: &self.conv_weight,
                bias: None,
                first: 0,
                silu: true,
                states: self.conv.in_place(pass),
            };
            let convolving = LinearCall { convolved: Some(convolved), ..project };
            let convolving = convolving.into([&qkv, decay, gate, strength]);
            if program.is_possible(&convolving)? {
                program.call(&convolving)?;
            } else {
                program.call(&project.into([&qkv, decay, gate, strength]))?;
                let x = qkv.shaped(&pass.shape(&[3 * inner]))?;
                qkv = program.tensor(&[pass.tokens, 3 * inner], DType::Bf16)?;
                let states = self.conv.in_place(pass);
                self.plan_conv(program, (0, 3 * inner), states, [&x, &qkv])?;
            }
            let [q, k, v] = parts.map(|first| qkv.columns(first, inner, &by_head));
            return Ok([q?, k?, v?]);
        }
        program.call(&project.into([&qkv, decay, gate, strength]))?;
        // The chunk kernels want each of them as a tensor of its own.
        let moving = self.conv.begin_parts(program, &parts.map(|first| (first, inner)))?;
        let plan = |at: usize| {
            let mixed = program.tensor(&[pass.tokens, inner], DType::Bf16)?;
            let x = qkv.columns(parts[at], inner, &pass.shape(&[inner]))?;
            self.plan_conv(program, (parts[at], inner), moving.states(at), [&x, &mixed])?;
            mixed.shaped(&by_head)
        };
        let mixed = [plan(0)?, plan(1)?, plan(2)?];
        self.conv.end(program, &moving)?;
        Ok(mixed)
    }
}

impl Mix for CudaKda {
    fn plan(&self, program: &mut Program<'_>, norm: &Tensor) -> Result<(), OpError> {
        let (pass, heads, dim) = (program.pass, self.heads, self.head_dim);
        let inner = heads * dim;
        let tensor = |width: usize, dtype| program.tensor(&[pass.tokens, width], dtype);
        let strength = tensor(heads, DType::Bf16)?;
        let (of_decay, of_gate) = (tensor(dim, DType::Bf16)?, tensor(dim, DType::Bf16)?);
        // Decays multiply thousands of tokens: their logits keep float32.
        let (decay, gate) = (tensor(inner, DType::F32)?, tensor(inner, DType::Bf16)?);
        let (o, gated) = (tensor(inner, DType::Bf16)?, tensor(inner, DType::Bf16)?);
        let beside = [&of_decay, &of_gate, &strength];
        let [q, k, v] = self.plan_convolved(program, norm, beside)?;
        let call = LinearCall { out: Some(Out::F32), ..self.decay.of(&of_decay) };
        program.call(&call.into([&decay]))?;
        program.call(&self.gate.of(&of_gate).into([&gate]))?;

        let moving = self.scan.begin(program)?;
        program.call(&KdaCall {
            q: &q,
            k: &k,
            v: &v,
            g: &decay.shaped(&pass.shape(&[heads, dim]))?,
            beta: &strength.shaped(&pass.shape(&[heads]))?,
            a_log: Some(&self.a_log),
            dt_bias: Some(&self.dt_bias),
            offsets: pass.offsets(),
            states: moving.states(0),
            options: KdaOptions { l2norm: true, ..KdaOptions::default() },
            o: Some(&o),
        })?;
        self.scan.end(program, &moving)?;

        let by_head = [1, pass.tokens, heads, dim];
        program.call(&RmsNormCall {
            x: &o.shaped(&by_head)?,
            gate: Some(&gate.shaped(&by_head)?),
            weight: Some(&self.norm),
            options: RmsNormOptions {
                activation: Activation::Sigmoid,
                norm_before_gate: true,
                eps: program.eps,
                out: None,
            },
            o: Some(&gated),
        })?;
        self.out.plan_residual(self.out.of(&gated), program)
    }

    fn reset(&self, stream: &Stream, place: usize) -> Result<(), OpError> {
        self.conv.reset(stream, place)?;
        self.scan.reset(stream, place)
    }

    fn fork(&self, stream: &Stream, from: usize, to: usize) -> Result<(), OpError> {
        self.conv.fork(stream, from, to)?;
        self.scan.fork(stream, from, to)
    }
}
