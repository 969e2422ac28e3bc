//! Row-wise arithmetic on activations: rows of float32 without padding.

use crate::program::RmsNorm;
use device::Device;
use ops::rmsnorm::Activation;
use ops_cpu::gate::{GateActivation, gate};
use rayon::prelude::*;

/// Independent partial sums, which the compiler vectorizes.
const LANES: usize = 16;

/// Minimum number of values per thread.
const PIECE: usize = 1 << 14;

pub(super) fn sum_of_squares(row: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let mut sums = [0f64; LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for values in whole {
        for (sum, x) in sums.iter_mut().zip(values) {
            *sum += square(*x);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|x| square(*x)).sum::<f64>()
}

/// `x / sqrt(mean(x^2) + eps) * weight`, in place, rounded once. The weight has the row's width.
fn normalise(row: &mut [f32], weight: &[f32], eps: f64) {
    let factor = 1.0 / (sum_of_squares(row) / row.len() as f64 + eps).sqrt();
    let scaled = |x: f32, weight: f32| (f64::from(x) * factor * f64::from(weight)) as f32;
    row.iter_mut().zip(weight).for_each(|(x, weight)| *x = scaled(*x, *weight));
}

/// Input rows of a call; they are normalized and gated on the fly.
pub(super) struct Rows<'a> {
    pub(super) device: &'a Device,
    pub(super) values: &'a [f32],
    pub(super) width: usize,
    pub(super) norm: Option<&'a RmsNorm>,
    pub(super) gate: Option<(&'a [f32], Activation)>,
    pub(super) factor: f32,
}

impl Rows<'_> {
    /// Computes one row. A norm over ranks' parts is not divided by its root mean square yet.
    pub(super) fn make(&self, row: usize, to: &mut [f32]) {
        let range = row * self.width..(row + 1) * self.width;
        to.copy_from_slice(&self.values[range.clone()]);
        if let Some(RmsNorm { weight, norm, ranks }) = self.norm {
            let (weight, group) = (weight.view().unwrap_or_default(), to.len() / norm.groups);
            if *ranks > 1 {
                // The root mean square is applied later, to the result.
                to.iter_mut().zip(weight).for_each(|(x, weight)| *x *= weight);
                return;
            }
            // A weight of a group's width is used for every group.
            for (part, weight) in to.chunks_exact_mut(group).zip(weight.chunks(group).cycle()) {
                normalise(part, weight, norm.eps);
            }
        }
        if let Some((logits, activation)) = self.gate {
            let act = match activation {
                Activation::Silu => GateActivation::Silu,
                Activation::Sigmoid => GateActivation::Sigmoid,
            };
            gate(self.device, act, to, &logits[range]);
        }
        if self.factor != 1.0 {
            scale(to, self.factor);
        }
    }
}

/// `x += factor * y`.
pub(super) fn add_scaled(x: &mut [f32], y: &[f32], factor: f32) {
    let add =
        |(x, y): (&mut [f32], &[f32])| x.iter_mut().zip(y).for_each(|(x, y)| *x += factor * y);
    x.par_chunks_mut(PIECE).zip(y.par_chunks(PIECE)).for_each(add);
}

/// `x *= factor`.
pub(super) fn scale(x: &mut [f32], factor: f32) {
    x.iter_mut().for_each(|x| *x *= factor);
}

/// `1 / (1 + e^-x)`.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `x Phi(x)` with the tanh approximation: `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
pub(super) fn gelu(x: f32) -> f32 {
    const ROOT: f32 = 0.797_884_6;
    0.5 * x * (1.0 + (ROOT * (x + 0.044_715 * x * x * x)).tanh())
}
