//! The gradient in float64, straight from its formulas.

use super::problem::SPEC as FORWARD;
use super::{Activation, RmsNormProblem};
use crate::spec::tensor;
use crate::{Inputs, OpSpec, Tensor, TensorMap};

/// The gradient's table.
pub(super) const SPEC: OpSpec = OpSpec {
    name: "rmsnorm_backward",
    summary: "gradients of rmsnorm",
    inputs: &[
        FORWARD.inputs[0],
        FORWARD.inputs[1],
        FORWARD.inputs[2],
        tensor("do", "[B, T, G, D]", true, "gradient of o, in its type"),
    ],
    outputs: &[
        tensor("dx", "[B, T, G, D]", true, "gradient of x, in its type"),
        tensor("dgate", "[B, T, G, D]", false, "gradient of gate, in its type"),
        tensor("dweight", "like weight", false, "gradient of weight, in its type"),
    ],
    settings: FORWARD.settings,
};

/// `dx`, `dgate` and `dweight` in float64.
///
/// The normalised row is n = z r with r = 1 / sqrt(mean z^2 + eps), where z is x, or x times the activated gate if the gate comes first.
pub(super) fn gradient(problem: &RmsNormProblem, inputs: Inputs<'_>) -> TensorMap {
    let (groups, channels) = (problem.groups, problem.channels);
    let x = inputs.tensor("x").to_f64(); // [B, T, G, D]
    let gate = inputs.get("gate").map(Tensor::to_f64); // [B, T, G, D]
    let weight = inputs.get("weight").map(Tensor::to_f64); // [D] or [G, D]
    let d_o = inputs.tensor("do").to_f64(); // [B, T, G, D]
    let after = problem.norm_before_gate;
    let mut dx = vec![0.0; x.len()]; // [B, T, G, D]
    let mut dgate = vec![0.0; x.len()]; // [B, T, G, D]
    let mut dweight = vec![0.0; weight.as_ref().map_or(0, Vec::len)]; // like weight

    for row in 0..problem.rows() {
        let first = if problem.weight_per_group { row % groups * channels } else { 0 };
        // The activated gate of a channel and its derivative.
        let factor = |channel: usize| match (&gate, problem.gate) {
            (Some(gate), kind) => activation(kind, gate[row * channels + channel]),
            (None, _) => (1.0, 0.0),
        };
        let w = |channel: usize| weight.as_ref().map_or(1.0, |weight| weight[first + channel]);
        let z = |channel: usize| {
            x[row * channels + channel] * if after { 1.0 } else { factor(channel).0 }
        };
        // The gradient of the normalised row times the weight.
        let da = |channel: usize| {
            d_o[row * channels + channel] * if after { factor(channel).0 } else { 1.0 }
        };
        let mean = |of: &dyn Fn(usize) -> f64| (0..channels).map(of).sum::<f64>() / channels as f64;
        let r = 1.0 / (mean(&|channel| z(channel).powi(2)) + problem.eps).sqrt();
        let projection = mean(&|channel| z(channel) * r * w(channel) * da(channel));
        for channel in 0..channels {
            let (at, (act, slope)) = (row * channels + channel, factor(channel));
            let n = z(channel) * r;
            let dz = r * (w(channel) * da(channel) - n * projection);
            dx[at] = if after { dz } else { dz * act };
            dgate[at] = slope * if after { d_o[at] * n * w(channel) } else { dz * x[at] };
            if let Some(dweight) = dweight.get_mut(first + channel) {
                *dweight += da(channel) * n;
            }
        }
    }

    let like = |name: &str, of: &str, values| {
        Some((name.to_owned(), Tensor::new(inputs.get(of)?.shape(), values)))
    };
    let all =
        [like("dx", "x", dx), like("dgate", "gate", dgate), like("dweight", "weight", dweight)];
    all.into_iter().flatten().collect()
}

/// The activation of a gate, and its derivative.
fn activation(kind: Option<Activation>, g: f64) -> (f64, f64) {
    let [sigmoid, complement] = [-g, g].map(|g| 1.0 / (1.0 + g.exp()));
    match kind {
        Some(Activation::Sigmoid) => (sigmoid, sigmoid * complement),
        _ => (g * sigmoid, sigmoid * (1.0 + g * complement)),
    }
}

#[cfg(test)]
mod tests {
    use crate::Settings;
    use crate::gradient::differences::{check, uniform};
    use crate::rmsnorm::RmsNormOp;

    fn norm(shape: [usize; 4], weight: &[usize], gate: Option<(bool, &str, f32)>) {
        let mut inputs = vec![("x", uniform("x", &shape, 2.0))];
        if !weight.is_empty() {
            inputs.push(("weight", uniform("weight", weight, 2.0)));
        }
        let mut settings = Settings::new().with("eps", 1e-3);
        if let Some((after, activation, range)) = gate {
            inputs.push(("gate", uniform("gate", &shape, range)));
            settings = settings.with("norm_before_gate", after).with("activation", activation);
        }
        check::<RmsNormOp>(&format!("{shape:?} {weight:?} {gate:?}"), &inputs, &settings);
    }

    #[test]
    fn gradient_equals_finite_differences() {
        for shape in [[2, 3, 3, 7], [1, 1, 1, 1], [1, 1, 2, 33], [0, 3, 2, 5], [2, 0, 1, 5]] {
            for weight in [&[][..], &shape[3..], &shape[2..]] {
                norm(shape, weight, None);
                for after in [false, true] {
                    for activation in ["silu", "sigmoid"] {
                        norm(shape, weight, Some((after, activation, 3.0)));
                    }
                }
            }
        }
    }

    #[test]
    fn gradient_through_saturated_gates_equals_finite_differences() {
        for (after, activation) in [(false, "silu"), (true, "silu"), (true, "sigmoid")] {
            norm([1, 4, 2, 9], &[9], Some((after, activation, 60.0)));
        }
    }
}
