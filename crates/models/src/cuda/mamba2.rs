use super::Mix;
use super::program::Program;
use super::states::{Part, StatePool};
use super::weights::{CudaProjection, Weights};
use crate::ModelError;
use crate::layers::{Mamba2, Mamba2Shape};
use crate::pages::Pages;
use device::cuda::Stream;
use kernels::conv1d::{Activation, Conv1dCall, Conv1dOptions};
use kernels::linear::{Convolved, LinearCall, Norm, Normed};
use kernels::ssd::{SsdCall, SsdOptions};
use kernels::{DType, OpError, States, Tensor};

/// A Mamba-2 mixer.
pub(super) struct CudaMamba2 {
    shape: Mamba2Shape,
    in_proj: CudaProjection,
    out_proj: CudaProjection,
    norm: Tensor,
    /// `[channels, taps]`.
    conv_weight: Tensor,
    conv_bias: Option<Tensor>,
    /// `-exp(A_log)`.
    rate: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    conv: StatePool,
    scan: StatePool,
}

impl CudaMamba2 {
    pub(super) fn new(
        of: &Mamba2,
        weights: &Weights<'_, '_>,
        pages: &Pages,
    ) -> Result<Self, ModelError> {
        let shape @ Mamba2Shape { heads, head_dim, state, taps, .. } = of.shape;
        let (channels, places) = (shape.channels(), pages.sequences());
        let conv_weight = weights.vector(of.conv_weight)?.shaped(&[channels, taps]);
        Ok(Self {
            shape,
            in_proj: weights.projection(&of.in_proj)?,
            out_proj: weights.projection(&of.out_proj)?,
            norm: weights.vector(of.norm)?,
            conv_weight: conv_weight.map_err(super::failed)?,
            conv_bias: of.conv_bias.map(|bias| weights.vector(bias)).transpose()?,
            rate: weights.mapped(of.a_log, |a_log| -a_log.exp())?,
            d: weights.vector(of.d)?,
            dt_bias: weights.vector(of.dt_bias)?,
            conv: StatePool::new(weights, places, &[channels, taps - 1])?,
            scan: StatePool::new(weights, places, &[heads, head_dim, state])?,
        })
    }

    /// Tensors for the gate, the convolution's channels and the time steps.
    fn parts(&self, program: &Program<'_>) -> Result<[Tensor; 3], OpError> {
        let tensor = |width: usize| program.tensor(&[program.pass.tokens, width], DType::Bf16);
        let Mamba2Shape { heads, .. } = self.shape;
        Ok([tensor(self.shape.inner())?, tensor(self.shape.channels())?, tensor(heads)?])
    }

    /// A call that projects the residual stream, normalised, to the three of them.
    fn project<'a>(
        &'a self,
        program: &'a Program<'_>,
        norm: &'a Tensor,
        parts: [&'a Tensor; 3],
    ) -> LinearCall<'a> {
        LinearCall { norm: program.normed(norm), ..self.in_proj.of(&program.x) }.into(parts)
    }

    /// Plans the convolution of a part's channels, `count` from `first` on; `x` and `o` `[tokens, count]`.
    fn plan_conv(
        &self,
        program: &Program<'_>,
        (first, count): Part,
        states: States<'_>,
        [x, o]: [&Tensor; 2],
    ) -> Result<(), OpError> {
        let bias = self.conv_bias.as_ref().map(|bias| bias.rows(first, count)).transpose()?;
        program.call(&Conv1dCall {
            x,
            weight: &self.conv_weight.rows(first, count)?,
            bias: bias.as_ref(),
            offsets: program.pass.offsets(),
            states,
            positions: None,
            options: Conv1dOptions { activation: Activation::Silu, ..Conv1dOptions::default() },
            o: Some(o),
        })
    }

    /// Plans the scan; `[x, B, C, dt, z]` over the pass's tokens.
    fn plan_scan(
        &self,
        program: &Program<'_>,
        [x, b, c, dt, z]: [&Tensor; 5],
        o: &Tensor,
    ) -> Result<(), OpError> {
        let [dt_min, dt_max] = self.shape.dt_limits;
        let moving = self.scan.begin(program)?;
        program.call(&SsdCall {
            x,
            dt,
            a: &self.rate,
            b,
            c,
            d: Some(&self.d),
            z: Some(z),
            dt_bias: Some(&self.dt_bias),
            offsets: program.pass.offsets(),
            states: moving.states(0),
            options: SsdOptions { dt_min, dt_max, ..SsdOptions::default() },
            o: Some(o),
        })?;
        self.scan.end(program, &moving)
    }

    /// One token a sequence. The kernel of the projection convolves, where there is one for so many sequences.
    fn plan_step(&self, program: &Program<'_>, norm: &Tensor, o: &Tensor) -> Result<(), OpError> {
        let Mamba2Shape { heads, head_dim, groups, state, .. } = self.shape;
        let (pass, inner, channels) = (program.pass, self.shape.inner(), self.shape.channels());
        let [z, mut mixed, dt] = self.parts(program)?;
        let convolved = Convolved {
            weight: &self.conv_weight,
            bias: self.conv_bias.as_ref(),
            first: inner,
            silu: true,
            states: self.conv.in_place(pass),
        };
        let project = self.project(program, norm, [&z, &mixed, &dt]);
        let convolving = LinearCall { convolved: Some(convolved), ..project };
        if program.is_possible(&convolving)? {
            program.call(&convolving)?;
        } else {
            program.call(&project)?;
            let x = mixed.shaped(&pass.shape(&[channels]))?;
            mixed = program.tensor(&[pass.tokens, channels], DType::Bf16)?;
            self.plan_conv(program, (0, channels), self.conv.in_place(pass), [&x, &mixed])?;
        }
        let (by_head, by_group) = (pass.shape(&[heads, head_dim]), pass.shape(&[groups, state]));
        let grouped = groups * state;
        let scanned = [
            mixed.columns(0, inner, &by_head)?,
            mixed.columns(inner, grouped, &by_group)?,
            mixed.columns(inner + grouped, grouped, &by_group)?,
            dt.shaped(&pass.shape(&[heads]))?,
            z.shaped(&by_head)?,
        ];
        self.plan_scan(program, scanned.each_ref(), o)
    }

    /// Many tokens: each part is a tensor of its own, as the chunk kernels want them.
    fn plan_chunk(&self, program: &Program<'_>, norm: &Tensor, o: &Tensor) -> Result<(), OpError> {
        let Mamba2Shape { heads, head_dim, groups, state, .. } = self.shape;
        let (pass, inner) = (program.pass, self.shape.inner());
        let tensor = |width: usize| program.tensor(&[pass.tokens, width], DType::Bf16);
        let [z, convolved, dt] = self.parts(program)?;
        let grouped = groups * state;
        let parts = [(0, inner), (inner, grouped), (inner + grouped, grouped)];
        let mixed = [tensor(inner)?, tensor(grouped)?, tensor(grouped)?];
        program.call(&self.project(program, norm, [&z, &convolved, &dt]))?;
        let moving = self.conv.begin_parts(program, &parts)?;
        for (at, (part, mixed)) in parts.into_iter().zip(&mixed).enumerate() {
            let x = convolved.columns(part.0, part.1, &pass.shape(&[part.1]))?;
            self.plan_conv(program, part, moving.states(at), [&x, mixed])?;
        }
        self.conv.end(program, &moving)?;
        let [x, b, c] = mixed;
        let (by_head, by_group) = (pass.shape(&[heads, head_dim]), pass.shape(&[groups, state]));
        let scanned = [
            x.shaped(&by_head)?,
            b.shaped(&by_group)?,
            c.shaped(&by_group)?,
            dt.shaped(&pass.shape(&[heads]))?,
            z.shaped(&by_head)?,
        ];
        self.plan_scan(program, scanned.each_ref(), o)
    }
}

impl Mix for CudaMamba2 {
    fn plan(&self, program: &mut Program<'_>, norm: &Tensor) -> Result<(), OpError> {
        let o = program.tensor(&[program.pass.tokens, self.shape.inner()], DType::Bf16)?;
        if program.pass.one_token {
            self.plan_step(program, norm, &o)?;
        } else {
            self.plan_chunk(program, norm, &o)?;
        }
        // The scan has applied the gate already; what is left of the gated norm is the norm.
        let norm = Norm { groups: self.shape.groups, eps: program.eps };
        let norm = Some(Normed { weight: &self.norm, norm });
        self.out_proj.plan_residual(LinearCall { norm, ..self.out_proj.of(&o) }, program)
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
