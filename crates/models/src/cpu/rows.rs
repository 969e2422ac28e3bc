//! Row-wise arithmetic on activations, rows of float32 without padding.

use device::{Device, HostBuffer};
use kernels::cpu::gate::{Gate, gate};
use kernels::{Element, Tensor};
use rayon::prelude::*;

/// Independent sums that the compiler turns into vectors.
const LANES: usize = 16;

/// Values that are worth a thread's turn.
const PIECE: usize = 1 << 14;

fn sum_of_squares(row: &[f32]) -> f64 {
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

/// RMSNorm of every row.
pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f64) -> Vec<f32> {
    let mut normed = x.to_vec();
    normed.par_chunks_mut(weight.len()).for_each(|row| normalise(row, weight, eps));
    normed
}

/// A row becomes `x * silu(gate)`, then RMSNorm of each of its `groups` parts, then the weight, as wide as the row.
pub(super) fn silu_gated_norm(
    device: &Device,
    row: &mut [f32],
    logits: &[f32],
    weight: &[f32],
    groups: usize,
    eps: f64,
) {
    let group = weight.len() / groups;
    gate(device, Gate::Silu, row, logits);
    for (part, weight) in row.chunks_mut(group).zip(weight.chunks(group)) {
        normalise(part, weight, eps);
    }
}

/// RMSNorm of each part of a row that is as wide as the weight, times `sigmoid(gate)`.
pub(super) fn norm_sigmoid_gated(
    device: &Device,
    row: &mut [f32],
    logits: &[f32],
    weight: &[f32],
    eps: f64,
) {
    row.chunks_exact_mut(weight.len()).for_each(|part| normalise(part, weight, eps));
    gate(device, Gate::Sigmoid, row, logits);
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

/// The same columns of every row, side by side.
pub(super) fn columns(x: &[f32], width: usize, range: std::ops::Range<usize>) -> Vec<f32> {
    let mut side_by_side = Vec::with_capacity(x.len() / width * range.len());
    x.chunks_exact(width).for_each(|row| side_by_side.extend_from_slice(&row[range.clone()]));
    side_by_side
}

/// The same as a tensor of this shape.
pub(super) fn column_tensor(
    shape: &[usize],
    x: &[f32],
    width: usize,
    range: std::ops::Range<usize>,
) -> Tensor {
    let rows = x.chunks_exact(width).map(|row| &row[range.clone()]);
    f32::tensor(shape, HostBuffer::concatenated(x.len() / width * range.len(), rows))
}

/// Writes rows side by side into columns of wider rows.
pub(super) fn put_columns(
    into: &mut [f32],
    width: usize,
    first: usize,
    from: &[f32],
    count: usize,
) {
    for (into, from) in into.chunks_exact_mut(width).zip(from.chunks_exact(count)) {
        into[first..first + count].copy_from_slice(from);
    }
}

/// `1 / (1 + e^-x)`.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
