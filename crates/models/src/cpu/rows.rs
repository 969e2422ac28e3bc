//! Row-wise arithmetic on activations, rows of float32 without padding.

use crate::program::RmsNorm;
use device::Device;
use kernels::cpu::gate::{Gate, gate};
use kernels::rmsnorm::Activation;
use rayon::prelude::*;

/// Independent sums that the compiler turns into vectors.
const LANES: usize = 16;

/// Values that are worth a thread's turn.
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

/// `x / sqrt(mean(x^2) + eps) * weight`, in place and rounded once; the weight is as wide as the row.
fn normalise(row: &mut [f32], weight: &[f32], eps: f64) {
    let factor = 1.0 / (sum_of_squares(row) / row.len() as f64 + eps).sqrt();
    let scaled = |x: f32, weight: f32| (f64::from(x) * factor * f64::from(weight)) as f32;
    row.iter_mut().zip(weight).for_each(|(x, weight)| *x = scaled(*x, *weight));
}

/// Rows as a call takes them: each is normalised and gated where it is used.
pub(super) struct Rows<'a> {
    pub(super) device: &'a Device,
    pub(super) values: &'a [f32],
    pub(super) width: usize,
    pub(super) norm: Option<&'a RmsNorm>,
    pub(super) gate: Option<(&'a [f32], Activation)>,
    pub(super) factor: f32,
}

impl Rows<'_> {
    /// Makes one row; one that ranks have parts of is not divided by its size yet.
    pub(super) fn make(&self, row: usize, to: &mut [f32]) {
        let range = row * self.width..(row + 1) * self.width;
        to.copy_from_slice(&self.values[range.clone()]);
        if let Some(RmsNorm { weight, norm, ranks }) = self.norm {
            let (weight, group) = (weight.view().unwrap_or_default(), to.len() / norm.groups);
            if *ranks > 1 {
                // The rest of the norm is a factor of what is made of the row.
                to.iter_mut().zip(weight).for_each(|(x, weight)| *x *= weight);
                return;
            }
            // One that is as wide as a group serves each of them.
            for (part, weight) in to.chunks_exact_mut(group).zip(weight.chunks(group).cycle()) {
                normalise(part, weight, norm.eps);
            }
        }
        if let Some((logits, activation)) = self.gate {
            let act = match activation {
                Activation::Silu => Gate::Silu,
                Activation::Sigmoid => Gate::Sigmoid,
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
