use super::Mix;
use super::rows::{column_tensor, silu_gated_norm};
use super::state::Recurrence;
use super::step::Step;
use super::weights::{CpuProjection, Weights};
use crate::ModelError;
use crate::layers::{Mamba2, Mamba2Shape};
use crate::pages::Pages;
use kernels::conv1d::Conv1dOp;
use kernels::ssd::SsdOp;
use kernels::{OpError, Settings, Tensor};

/// A Mamba-2 mixer.
pub(super) struct CpuMamba2 {
    shape: Mamba2Shape,
    eps: f64,
    in_proj: CpuProjection,
    out_proj: CpuProjection,
    norm: Vec<f32>,
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
        let taps_of = Tensor::new(&[channels, taps], weights.vector(of.conv_weight)?);
        let mut conv = vec![("weight", taps_of)];
        if let Some(bias) = of.conv_bias {
            conv.push(("bias", Tensor::new(&[channels], weights.vector(bias)?)));
        }
        let rates = weights.vector(of.a_log)?.into_iter().map(|a_log| -a_log.exp());
        let scan = [
            ("A", Tensor::new(&[heads], rates.collect::<Vec<f32>>())),
            ("D", Tensor::new(&[heads], weights.vector(of.d)?)),
            ("dt_bias", Tensor::new(&[heads], weights.vector(of.dt_bias)?)),
        ];
        let silu = Settings::new().with("activation", "silu");
        let [dt_min, dt_max] = shape.dt_limits;
        let mut limits = Settings::new().with("dt_min", dt_min);
        if dt_max.is_finite() {
            limits.set("dt_max", dt_max);
        }
        Ok(Self {
            shape,
            eps,
            in_proj: weights.projection(&of.in_proj)?,
            out_proj: weights.projection(&of.out_proj)?,
            norm: weights.vector(of.norm)?,
            conv: Recurrence::new(conv, silu, places, &[channels, taps - 1]),
            scan: Recurrence::new(scan, limits, places, &[heads, head_dim, state]),
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

        let mixed = part(&[tokens, channels], inner..inner + channels);
        let mixed = self.conv.run(&Conv1dOp, step, [("x", mixed)])?; // [tokens, x | B | C]

        let part_of = |shape: &[usize], range| column_tensor(shape, &mixed, channels, range);
        let grouped = groups * state;
        let scanned = [
            ("x", part_of(&[tokens, heads, head_dim], 0..inner)),
            ("B", part_of(&[tokens, groups, state], inner..inner + grouped)),
            ("C", part_of(&[tokens, groups, state], inner + grouped..channels)),
            ("dt", part(&[tokens, heads], inner + channels..width)),
        ];
        let y = self.scan.run(&SsdOp, step, scanned)?; // [tokens, inner]

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
}
