use super::Mix;
use super::call::OpCall;
use super::program::Program;
use super::states::States;
use super::tensor::GpuTensor;
use super::weights::{CudaProjection, Weights};
use crate::ModelError;
use crate::layers::{Mamba2, Mamba2Shape};
use crate::pages::Pages;
use device::cuda::Stream;
use kernels::conv1d::Conv1dOp;
use kernels::linear::LinearOp;
use kernels::ssd::SsdOp;
use kernels::{DType, OpError};

/// A Mamba-2 mixer.
pub(super) struct CudaMamba2 {
    shape: Mamba2Shape,
    in_proj: CudaProjection,
    out_proj: CudaProjection,
    norm: GpuTensor,
    /// `[channels, taps]`.
    conv_weight: GpuTensor,
    conv_bias: Option<GpuTensor>,
    /// `-exp(A_log)`.
    rate: GpuTensor,
    d: GpuTensor,
    dt_bias: GpuTensor,
    conv: States,
    scan: States,
}

impl CudaMamba2 {
    pub(super) fn new(
        of: &Mamba2,
        weights: &Weights<'_>,
        pages: &Pages,
    ) -> Result<Self, ModelError> {
        let shape @ Mamba2Shape { heads, head_dim, state, taps, .. } = of.shape;
        let (channels, places) = (shape.channels(), pages.sequences());
        Ok(Self {
            shape,
            in_proj: weights.projection(&of.in_proj)?,
            out_proj: weights.projection(&of.out_proj)?,
            norm: weights.vector(of.norm)?,
            conv_weight: weights.vector(of.conv_weight)?.shaped(&[channels, taps]),
            conv_bias: of.conv_bias.map(|bias| weights.vector(bias)).transpose()?,
            rate: weights.mapped(of.a_log, |a_log| -a_log.exp())?,
            d: weights.vector(of.d)?,
            dt_bias: weights.vector(of.dt_bias)?,
            conv: States::new(weights, places, &[channels, taps - 1])?,
            scan: States::new(weights, places, &[heads, head_dim, state])?,
        })
    }

    /// Tensors for the gate, the convolution's channels and the time steps.
    fn parts(&self, program: &Program<'_>) -> Result<[GpuTensor; 3], OpError> {
        let tensor = |width: usize| program.tensor(&[program.pass.tokens, width], DType::Bf16);
        let Mamba2Shape { heads, .. } = self.shape;
        Ok([tensor(self.shape.inner())?, tensor(self.shape.channels())?, tensor(heads)?])
    }

    /// A call that projects the residual stream, normalised, to the three of them.
    fn project(
        &self,
        program: &Program<'_>,
        norm: &GpuTensor,
        [z, convolved, dt]: [&GpuTensor; 3],
    ) -> OpCall {
        let widths = [self.shape.inner(), self.shape.channels(), self.shape.heads];
        let call = OpCall::new(&LinearOp)
            .input("x", &program.x)
            .input("norm", norm)
            .set("eps", program.eps)
            .set("split", widths.map(|width| width.to_string()).join(","));
        self.in_proj.call(call, &[("o", z), ("o1", convolved), ("o2", dt)])
    }

    /// Plans the convolution of `count` channels from `first` on; `x` and `o` `[tokens, count]`.
    fn plan_conv(
        &self,
        program: &mut Program<'_>,
        (first, count): (usize, usize),
        [x, o]: [&GpuTensor; 2],
    ) -> Result<(), OpError> {
        let bias = self.conv_bias.as_ref().map(|bias| bias.rows(first, count)).transpose()?;
        let call = OpCall::new(&Conv1dOp)
            .input("x", x)
            .input("weight", &self.conv_weight.rows(first, count)?)
            .maybe("bias", bias.as_ref())
            .set("activation", "silu")
            .output("o", o);
        self.conv.plan(call, program, (first, count))
    }

    /// Plans the scan; `[x, B, C, dt, z]` over the pass's tokens.
    fn plan_scan(
        &self,
        program: &mut Program<'_>,
        [x, b, c, dt, z]: [&GpuTensor; 5],
        o: &GpuTensor,
    ) -> Result<(), OpError> {
        let [dt_min, dt_max] = self.shape.dt_limits;
        let call = OpCall::new(&SsdOp)
            .input("x", x)
            .input("dt", dt)
            .input("A", &self.rate)
            .input("B", b)
            .input("C", c)
            .input("D", &self.d)
            .input("z", z)
            .input("dt_bias", &self.dt_bias)
            .set("dt_min", dt_min)
            .output("o", o);
        let call = if dt_max.is_finite() { call.set("dt_max", dt_max) } else { call };
        self.scan.plan(call, program, (0, self.shape.heads))
    }

    /// One token a sequence. The kernel of the projection convolves, where there is one for so many sequences.
    fn plan_step(
        &self,
        program: &mut Program<'_>,
        norm: &GpuTensor,
        o: &GpuTensor,
    ) -> Result<(), OpError> {
        let Mamba2Shape { heads, head_dim, groups, state, .. } = self.shape;
        let (pass, inner, channels) = (program.pass, self.shape.inner(), self.shape.channels());
        let [z, mut mixed, dt] = self.parts(program)?;
        let convolving = self
            .conv
            .advance(self.project(program, norm, [&z, &mixed, &dt]), pass)
            .input("conv_weight", &self.conv_weight)
            .maybe("conv_bias", self.conv_bias.as_ref())
            .set("conv_first", inner)
            .set("conv_activation", "silu");
        if convolving.is_possible(program)? {
            convolving.plan(program)?;
        } else {
            self.project(program, norm, [&z, &mixed, &dt]).plan(program)?;
            let x = mixed.shaped(&pass.shape(&[channels]));
            mixed = program.tensor(&[pass.tokens, channels], DType::Bf16)?;
            self.plan_conv(program, (0, channels), [&x, &mixed])?;
        }
        let (by_head, by_group) = (pass.shape(&[heads, head_dim]), pass.shape(&[groups, state]));
        let grouped = groups * state;
        let scanned = [
            mixed.columns(0, inner, &by_head)?,
            mixed.columns(inner, grouped, &by_group)?,
            mixed.columns(inner + grouped, grouped, &by_group)?,
            dt.shaped(&pass.shape(&[heads])),
            z.shaped(&by_head),
        ];
        self.plan_scan(program, scanned.each_ref(), o)
    }

    /// Many tokens: each part is a tensor of its own, as the chunk kernels want them.
    fn plan_chunk(
        &self,
        program: &mut Program<'_>,
        norm: &GpuTensor,
        o: &GpuTensor,
    ) -> Result<(), OpError> {
        let Mamba2Shape { heads, head_dim, groups, state, .. } = self.shape;
        let (pass, inner) = (program.pass, self.shape.inner());
        let tensor = |width: usize| program.tensor(&[pass.tokens, width], DType::Bf16);
        let [z, convolved, dt] = self.parts(program)?;
        let grouped = groups * state;
        let parts = [(0, inner), (inner, grouped), (inner + grouped, grouped)];
        let mixed = [tensor(inner)?, tensor(grouped)?, tensor(grouped)?];
        self.project(program, norm, [&z, &convolved, &dt]).plan(program)?;
        for (part, mixed) in parts.into_iter().zip(&mixed) {
            let x = convolved.columns(part.0, part.1, &pass.shape(&[part.1]))?;
            self.plan_conv(program, part, [&x, mixed])?;
        }
        let [x, b, c] = mixed;
        let (by_head, by_group) = (pass.shape(&[heads, head_dim]), pass.shape(&[groups, state]));
        let scanned = [
            x.shaped(&by_head),
            b.shaped(&by_group),
            c.shaped(&by_group),
            dt.shaped(&pass.shape(&[heads])),
            z.shaped(&by_head),
        ];
        self.plan_scan(program, scanned.each_ref(), o)
    }
}

impl Mix for CudaMamba2 {
    fn plan(&self, program: &mut Program<'_>, norm: &GpuTensor) -> Result<(), OpError> {
        let o = program.tensor(&[program.pass.tokens, self.shape.inner()], DType::Bf16)?;
        if program.pass.one_token {
            self.plan_step(program, norm, &o)?;
        } else {
            self.plan_chunk(program, norm, &o)?;
        }
        // The scan has applied the gate already; what is left of the gated norm is the norm.
        let call = OpCall::new(&LinearOp)
            .input("x", &o)
            .input("norm", &self.norm)
            .set("norm_groups", self.shape.groups)
            .set("eps", program.eps);
        self.out_proj.plan_residual(call, program)
    }

    fn reset(&self, stream: &Stream, place: usize) -> Result<(), OpError> {
        self.conv.reset(stream, place)?;
        self.scan.reset(stream, place)
    }
}
