//! The op in float64, by its definition.

use super::{Convolution, LinearProblem};
use crate::{DType, Inputs, Problem, Tensor, TensorMap};
use rayon::prelude::*;

/// Every output in float64.
pub(super) fn reference(problem: &LinearProblem, inputs: Inputs<'_>) -> TensorMap {
    let (tokens, depth, columns) = (problem.tokens, problem.inputs, problem.columns());
    let mut x = normalised(problem, inputs); // [T, K]
    if let Some(order) = inputs.get("x_order").and_then(|order| order.view::<i32>()) {
        let row = |row: &[f64]| order.iter().map(|k| row[*k as usize]).collect::<Vec<_>>();
        x = x.chunks(depth).flat_map(row).collect();
    }
    let mut w = inputs.tensor("w").to_f64(); // [N, K]
    if let Some(scale) = inputs.get("w_scale") {
        let (groups, scale) = (scale.shape()[0], scale.to_f64()); // [G, N]
        let [zero, offset] =
            ["w_zero", "w_offset"].map(|name| inputs.get(name).map(Tensor::to_f64)); // [G, N]
        let u4 = inputs.tensor("w").dtype() == DType::U4;
        let default_zero = if u4 && offset.is_none() { 8.0 } else { 0.0 };
        for (n, row) in w.chunks_mut(depth).enumerate() {
            for (k, w) in row.iter_mut().enumerate() {
                let group = if groups == 1 { 0 } else { k / problem.w_group };
                let at = group * problem.outputs + n;
                *w = scale[at] * (*w - zero.as_ref().map_or(default_zero, |zero| zero[at]))
                    - offset.as_ref().map_or(0.0, |offset| offset[at]);
            }
        }
    }
    let bias = inputs.get("bias").map(Tensor::to_f64); // [N]
    let residual = inputs.get("residual").map(Tensor::to_f64); // [T, M]

    // Element (token, n) of x W^T + bias.
    let product = |token: usize, n: usize| -> f64 {
        let (x, w) = (&x[token * depth..][..depth], &w[n * depth..][..depth]);
        let sum: f64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
        sum + bias.as_ref().map_or(0.0, |bias| bias[n])
    };
    // Columns are independent and computed in parallel. [M, T]
    let column = |m: usize| -> Vec<f64> {
        let element = |token: usize| {
            let value = if problem.swiglu {
                let (gate, up) = (product(token, m), product(token, columns + m));
                gate / (1.0 + (-gate).exp()) * up
            } else if problem.squared {
                product(token, m).max(0.0).powi(2)
            } else {
                product(token, m)
            };
            residual.as_ref().map_or(0.0, |residual| residual[token * columns + m])
                + problem.scale * value
        };
        (0..tokens).map(element).collect()
    };
    let mut all: Vec<Vec<f64>> = (0..columns).into_par_iter().map(column).collect();

    let mut first = 0;
    let mut outputs = TensorMap::new();
    if let Some(convolution) = &problem.convolution {
        let state = convolve(convolution, inputs, &mut all[convolution.first..]);
        let shape = convolution.final_state().shape;
        outputs.insert("final_state".to_owned(), Tensor::new(&shape, state));
    }
    for (spec, width) in problem.outputs().into_iter().zip(problem.widths.iter().copied()) {
        let row = |token: usize| all[first..first + width].iter().map(move |column| column[token]);
        let values: Vec<f64> = (0..tokens).flat_map(row).collect();
        outputs.insert(spec.name.to_owned(), Tensor::new(&spec.shape, values));
        first += width;
    }
    outputs
}

/// Convolves the first C of `columns` `[M, T]`, one token per sequence; returns the new states `[slots, C, W - 1]`.
fn convolve(of: &Convolution, inputs: Inputs<'_>, columns: &mut [Vec<f64>]) -> Vec<f64> {
    let weight = inputs.tensor("conv_weight").to_f64(); // [C, W]
    let bias = inputs.get("conv_bias").map(Tensor::to_f64); // [C]
    let before = inputs.tensor("initial_state").to_f64(); // [slots, C, W - 1]
    let mut after = before.clone();
    let history = of.width - 1;
    for (channel, column) in columns.iter_mut().take(of.channels).enumerate() {
        for (token, value) in column.iter_mut().enumerate() {
            let Some(slot) = of.slots.of(token) else {
                *value = 0.0;
                continue;
            };
            let row = (slot * of.channels + channel) * history;
            let at = |tap: usize| if tap < history { before[row + tap] } else { *value };
            let mut sum = bias.as_ref().map_or(0.0, |bias| bias[channel]);
            for tap in 0..of.width {
                sum += weight[channel * of.width + tap] * at(tap);
            }
            for tap in 0..history {
                after[row + tap] = at(tap + 1);
            }
            *value = if of.silu { sum / (1.0 + (-sum).exp()) } else { sum };
        }
    }
    after
}

/// RMSNorm of x by groups, or x without a norm.
fn normalised(problem: &LinearProblem, inputs: Inputs<'_>) -> Vec<f64> {
    let mut x = inputs.tensor("x").to_f64(); // [T, K]
    let (Some(norm), Some(weight)) = (problem.norm, inputs.get("norm")) else { return x };
    let weight = weight.to_f64(); // [K]
    let size = problem.inputs / norm.groups;
    for row in x.chunks_mut(problem.inputs) {
        for (group, weight) in row.chunks_mut(size).zip(weight.chunks(size)) {
            let squares: f64 = group.iter().map(|x| x * x).sum();
            let root = (squares / size as f64 + norm.eps).sqrt();
            group.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x / root * weight);
        }
    }
    x
}
