use super::Mix;
use super::rows::{column_tensor, silu_gated_norm};
use super::state::Recurrence;
use super::step::Step;
use super::weights::{CpuProjection, Weights};
use crate::ModelError;
use crate::layers::{Mamba2, Mamba2Shape};
use crate::pages::Pages;
use kernels::conv1d::{Activation, Conv1dCall, Conv1dOptions};
use kernels::ssd::{SsdCall, SsdOptions};
use kernels::{OpError, Tensor};

/// A Mamba-2 mixer.
pub(super) struct CpuMamba2 {
    shape: Mamba2Shape,
    eps: f64,
    in_proj: CpuProjection,
    out_proj: CpuProjection,
    norm: Vec<f32>,
    /// `[channels, taps]`.
    conv_weight: Tensor,
    conv_bias: Option<Tensor>,
    /// `-exp(A_log)`.
    rate: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    conv: Recurrence,
    scan: Recurrence,
}

impl CpuMamba2 {
    pub(super) fn new(
        of: &Mamba2,
        weights: &Weights<'_>,
        pages: &Pages,
        eps: f64,
    ) -> Result<Self, ModelError> {
        let shape @ Mamba2Shape { heads, head_dim, state, taps, .. } = of.shape;
        let (channels, places) = (shape.channels(), pages.sequences());
        let vector = |id| Ok::<_, ModelError>(Tensor::new(&[heads], weights.vector(id)?));
        let rates = weights.vector(of.a_log)?.into_iter().map(|a_log| -a_log.exp());
        let bias = of.conv_bias.map(|bias| weights.vector(bias)).transpose()?;
        Ok(Self {
            shape,
            eps,
            in_proj: weights.projection(&of.in_proj)?,
            out_proj: weights.projection(&of.out_proj)?,
            norm: weights.vector(of.norm)?,
            conv_weight: Tensor::new(&[channels, taps], weights.vector(of.conv_weight)?),
            conv_bias: bias.map(|bias| Tensor::new(&[channels], bias)),
            rate: Tensor::new(&[heads], rates.collect::<Vec<f32>>()),
            d: vector(of.d)?,
            dt_bias: vector(of.dt_bias)?,
            conv: Recurrence::new(places, &[channels, taps - 1]),
            scan: Recurrence::new(places, &[heads, head_dim, state]),
        })
    }
}

impl Mix for CpuMamba2 {
    fn mix(&mut self, x: &[f32], step: &Step<'_>) -> Result<Vec<f32>, OpError> {
        let Mamba2Shape { heads, head_dim, groups, state, .. } = self.shape;
        let (tokens, inner, channels) = (step.tokens(), self.shape.inner(), self.shape.channels());
        let projected = self.in_proj.apply(step.device, x); // [tokens, gate | x, B, C | dt]
        let width = inner + channels + heads;
        let part = |shape: &[usize], range| column_tensor(shape, &projected, width, range);

        let x = part(&[tokens, channels], inner..inner + channels);
        let mixed = self.conv.advance(|pool, outputs| {
            let call = Conv1dCall {
                x: &x,
                weight: &self.conv_weight,
                bias: self.conv_bias.as_ref(),
                offsets: Some(&step.offsets),
                states: step.states(pool),
                positions: None,
                options: Conv1dOptions { activation: Activation::Silu, ..Conv1dOptions::default() },
                o: None,
            };
            step.run(&call, outputs)
        })?; // [tokens, x | B | C]

        let part_of = |shape: &[usize], range| column_tensor(shape, &mixed, channels, range);
        let grouped = groups * state;
        let [dt_min, dt_max] = self.shape.dt_limits;
        let x = part_of(&[tokens, heads, head_dim], 0..inner);
        let b = part_of(&[tokens, groups, state], inner..inner + grouped);
        let c = part_of(&[tokens, groups, state], inner + grouped..channels);
        let dt = part(&[tokens, heads], inner + channels..width);
        let y = self.scan.advance(|pool, outputs| {
            let call = SsdCall {
                x: &x,
                dt: &dt,
                a: &self.rate,
                b: &b,
                c: &c,
                d: Some(&self.d),
                z: None,
                dt_bias: Some(&self.dt_bias),
                offsets: Some(&step.offsets),
                states: step.states(pool),
                options: SsdOptions { dt_min, dt_max, ..SsdOptions::default() },
                o: None,
            };
            step.run(&call, outputs)
        })?; // [tokens, inner]

        Ok(self.out_proj.apply_made(step.device, tokens, |token, to| {
            to.copy_from_slice(&y[token * inner..][..inner]);
            let gate = &projected[token * width..][..inner];
            silu_gated_norm(step.device, to, gate, &self.norm, groups, self.eps);
        }))
    }

    fn reset(&mut self, sequence: usize) {
        self.conv.reset(sequence);
        self.scan.reset(sequence);
    }

    fn fork(&mut self, from: usize, to: usize) {
        self.conv.fork(from, to);
        self.scan.fork(from, to);
    }
}
