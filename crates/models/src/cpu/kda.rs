use super::Mix;
use super::rows::{column_tensor, columns, norm_sigmoid_gated};
use super::state::Recurrence;
use super::step::Step;
use super::weights::{CpuProjection, Weights};
use crate::ModelError;
use crate::layers::Kda;
use crate::pages::Pages;
use kernels::conv1d::{Activation, Conv1dCall, Conv1dOptions};
use kernels::kda::{KdaCall, KdaOptions};
use kernels::{OpError, Tensor};

/// A Kimi Delta Attention mixer.
pub(super) struct CpuKda {
    heads: usize,
    head_dim: usize,
    eps: f64,
    project: CpuProjection,
    decay: CpuProjection,
    gate: CpuProjection,
    norm: Vec<f32>,
    out: CpuProjection,
    /// `[3 inner, taps]`.
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    conv: Recurrence,
    scan: Recurrence,
}

impl CpuKda {
    pub(super) fn new(
        of: &Kda,
        weights: &Weights<'_>,
        pages: &Pages,
        eps: f64,
    ) -> Result<Self, ModelError> {
        let (heads, dim, inner, places) =
            (of.heads, of.head_dim, of.heads * of.head_dim, pages.sequences());
        let mut taps = Vec::new();
        for weight in of.conv_weights {
            taps.extend(weights.vector(weight)?);
        }
        Ok(Self {
            heads,
            head_dim: dim,
            eps,
            project: weights.projection(&of.project)?,
            decay: weights.projection(&of.decay)?,
            gate: weights.projection(&of.gate)?,
            norm: weights.vector(of.norm)?,
            out: weights.projection(&of.out)?,
            conv_weight: Tensor::new(&[3 * inner, of.taps], taps),
            a_log: Tensor::new(&[heads], weights.vector(of.a_log)?),
            dt_bias: Tensor::new(&[inner], weights.vector(of.dt_bias)?),
            conv: Recurrence::new(places, &[3 * inner, of.taps - 1]),
            scan: Recurrence::new(places, &[heads, dim, dim]),
        })
    }
}

impl Mix for CpuKda {
    fn mix(&mut self, x: &[f32], step: &Step<'_>) -> Result<Vec<f32>, OpError> {
        let (tokens, heads, dim) = (step.tokens(), self.heads, self.head_dim);
        let inner = heads * dim;
        let projected = self.project.apply(step.device, x); // [tokens, q | k | v | f_a | g_a | b]
        let (low, width) = (3 * inner, 3 * inner + 2 * dim + heads);
        let part = |range| columns(&projected, width, range);

        let x = column_tensor(&[tokens, low], &projected, width, 0..low);
        let mixed = self.conv.advance(|pool, outputs| {
            let call = Conv1dCall {
                x: &x,
                weight: &self.conv_weight,
                bias: None,
                offsets: Some(&step.offsets),
                states: step.states(pool),
                positions: None,
                options: Conv1dOptions { activation: Activation::Silu, ..Conv1dOptions::default() },
                o: None,
            };
            step.run(&call, outputs)
        })?; // [tokens, q | k | v]

        let of_heads = [tokens, heads, dim];
        let [q, k, v] =
            [0, 1, 2].map(|at| column_tensor(&of_heads, &mixed, low, at * inner..(at + 1) * inner));
        let g = Tensor::new(&of_heads, self.decay.apply(step.device, &part(low..low + dim)));
        let beta = column_tensor(&[tokens, heads], &projected, width, low + 2 * dim..width);
        let o = self.scan.advance(|pool, outputs| {
            let call = KdaCall {
                q: &q,
                k: &k,
                v: &v,
                g: &g,
                beta: &beta,
                a_log: Some(&self.a_log),
                dt_bias: Some(&self.dt_bias),
                offsets: Some(&step.offsets),
                states: step.states(pool),
                options: KdaOptions { l2norm: true, ..KdaOptions::default() },
                o: None,
            };
            step.run(&call, outputs)
        })?; // [tokens, inner]

        let gate = self.gate.apply(step.device, &part(low + dim..low + 2 * dim));
        Ok(self.out.apply_made(step.device, tokens, |token, to| {
            let row = token * inner..(token + 1) * inner;
            to.copy_from_slice(&o[row.clone()]);
            norm_sigmoid_gated(step.device, to, &gate[row], &self.norm, self.eps);
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
