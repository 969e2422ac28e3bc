//! The gradient in float64, token by token from the last to the first, straight from the recurrence.

use super::SsdProblem;
use super::problem::SPEC as FORWARD;
use super::reference::{skip_weights, step};
use crate::spec::tensor;
use crate::{Inputs, OpSpec, Tensor, TensorMap};

/// The gradient's table. Pools of states, which are for inference, are not supported.
pub(super) const SPEC: OpSpec = OpSpec {
    name: "ssd_backward",
    summary: "gradients of ssd",
    inputs: &[
        FORWARD.inputs[0],
        FORWARD.inputs[1],
        FORWARD.inputs[2],
        FORWARD.inputs[3],
        FORWARD.inputs[4],
        FORWARD.inputs[5],
        FORWARD.inputs[6],
        FORWARD.inputs[7],
        FORWARD.inputs[8],
        FORWARD.inputs[9],
        tensor("do", "like x", true, "gradient of o, in its type"),
        tensor("dfinal_state", "like final_state", false, "gradient of final_state, in its type"),
    ],
    outputs: &[
        tensor("dx", "like x", true, "gradient of x, in its type"),
        tensor("ddt", "like dt", true, "gradient of dt, in its type"),
        tensor("dA", "[H]", true, "gradient of A, in its type"),
        tensor("dB", "like B", true, "gradient of B, in its type"),
        tensor("dC", "like C", true, "gradient of C, in its type"),
        tensor("dD", "like D", false, "gradient of D, in its type"),
        tensor("dz", "like z", false, "gradient of z, in its type"),
        tensor("ddt_bias", "[H]", false, "gradient of dt_bias, in its type"),
        tensor("dinitial_state", "like initial_state", false, "gradient of it, in its type"),
    ],
    settings: FORWARD.settings,
};

/// Every gradient in float64.
///
/// With g the gradient of the state h after a token and s its step size: g += dy (outer) C, dC = h^T dy, dB = s g^T x, dx = s g B + D dy; the
/// gradient of the exponent s A is r = exp(s A) <g, h before>, so dA = s r and ds = x.(g B) + A r; then g <- exp(s A) g.
pub(super) fn gradient(problem: &SsdProblem, inputs: Inputs<'_>) -> TensorMap {
    let read = |name: &str| inputs.get(name).map(Tensor::to_f64);
    let required = |name: &str| inputs.tensor(name).to_f64();
    let (heads, groups) = (problem.heads, problem.groups);
    let (head_dim, state_dim) = (problem.head_dim, problem.state_dim);
    let x = required("x"); // [total, H, P]
    let dt = required("dt"); // [total, H]
    let rate = required("A"); // [H]
    let b = required("B"); // [total, G, N]
    let c = required("C"); // [total, G, N]
    let bias = read("dt_bias").unwrap_or_else(|| vec![0.0; heads]); // [H]
    let z = read("z"); // [total, H, P]
    let d = skip_weights(problem, inputs); // [H, P]
    let d_o = required("do"); // [total, H, P]
    let state_len = head_dim * state_dim;
    let states = problem.sequences.count() * heads * state_len;
    let initial = read("initial_state").unwrap_or_else(|| vec![0.0; states]); // [Nseq, H, P, N]
    // The gradient of the state: from that of the final state to that of the initial one. [Nseq, H, P, N]
    let mut dstate = read("dfinal_state").unwrap_or_else(|| vec![0.0; states]);
    let mut dx = vec![0.0; x.len()]; // [total, H, P]
    let mut ddt = vec![0.0; dt.len()]; // [total, H]
    let mut drate = vec![0.0; heads]; // [H]
    let mut db = vec![0.0; b.len()]; // [total, G, N]
    let mut dc = vec![0.0; c.len()]; // [total, G, N]
    let mut dd = vec![0.0; d.len()]; // [H, P]
    let mut dz = vec![0.0; x.len()]; // [total, H, P]
    let mut dbias = vec![0.0; heads]; // [H]

    for (sequence, tokens) in problem.sequences.iter().enumerate() {
        for head in 0..heads {
            let group = head / (heads / groups);
            let at_state = (sequence * heads + head) * state_len;
            let raw = |token: usize| dt[token * heads + head] + bias[head];
            let projection = |token: usize| (token * groups + group) * state_dim;
            // The state before each token and after the last one, [P, N] each.
            let mut history = vec![initial[at_state..][..state_len].to_vec()];
            for token in tokens.clone() {
                let (step, mut h) = (step(problem, raw(token)), history[history.len() - 1].clone());
                for (at, h) in h.iter_mut().enumerate() {
                    let (p, n) = (at / state_dim, at % state_dim);
                    let x = x[(token * heads + head) * head_dim + p];
                    *h = (step * rate[head]).exp() * *h + step * x * b[projection(token) + n];
                }
                history.push(h);
            }
            let g = &mut dstate[at_state..][..state_len]; // [P, N]
            for (index, token) in tokens.clone().enumerate().rev() {
                let (before, after) = (&history[index], &history[index + 1]);
                let (step, slope) = (step(problem, raw(token)), slope(problem, raw(token)));
                let decay = (step * rate[head]).exp();
                let (mut dstep, mut dexponent) = (0.0, 0.0);
                for p in 0..head_dim {
                    let at = (token * heads + head) * head_dim + p;
                    let skip = d[head * head_dim + p];
                    let y = skip * x[at]
                        + (0..state_dim)
                            .map(|n| after[p * state_dim + n] * c[projection(token) + n])
                            .sum::<f64>();
                    let dy = match &z {
                        Some(z) => {
                            let [sigmoid, complement] =
                                [-z[at], z[at]].map(|z| 1.0 / (1.0 + z.exp()));
                            dz[at] = d_o[at] * y * sigmoid * (1.0 + z[at] * complement);
                            d_o[at] * z[at] * sigmoid
                        }
                        None => d_o[at],
                    };
                    let mut gb = 0.0;
                    for n in 0..state_dim {
                        let (at_n, g) = (projection(token) + n, &mut g[p * state_dim + n]);
                        *g += dy * c[at_n];
                        gb += *g * b[at_n];
                        dc[at_n] += after[p * state_dim + n] * dy;
                        db[at_n] += step * x[at] * *g;
                        dexponent += decay * *g * before[p * state_dim + n];
                        *g *= decay;
                    }
                    dx[at] = step * gb + skip * dy;
                    dd[head * head_dim + p] += dy * x[at];
                    dstep += x[at] * gb;
                }
                drate[head] += step * dexponent;
                ddt[token * heads + head] = (dstep + rate[head] * dexponent) * slope;
                dbias[head] += ddt[token * heads + head];
            }
        }
    }

    // One weight for all channels of a head.
    if inputs.get("D").is_some_and(|d| d.shape().len() == 1) {
        dd = dd.chunks(head_dim.max(1)).map(|head| head.iter().sum()).collect();
        dd.resize(heads, 0.0);
    }
    let like =
        |of: &str, values| Some((format!("d{of}"), Tensor::new(inputs.get(of)?.shape(), values)));
    let all = [
        like("x", dx),
        like("dt", ddt),
        like("A", drate),
        like("B", db),
        like("C", dc),
        like("D", dd),
        like("z", dz),
        like("dt_bias", dbias),
        like("initial_state", dstate),
    ];
    all.into_iter().flatten().collect()
}

/// The derivative of a step size by its raw value: 0 outside of the limits.
fn slope(problem: &SsdProblem, raw: f64) -> f64 {
    let (value, slope) = match problem.dt_softplus {
        true if raw <= 20.0 => (raw.exp().ln_1p(), 1.0 / (1.0 + (-raw).exp())),
        _ => (raw, 1.0),
    };
    if (problem.dt_min..=problem.dt_max).contains(&value) { slope } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use crate::Settings;
    use crate::gradient::differences::{check, integers, uniform};
    use crate::ssd::SsdOp;
    use crate::{DType, Tensor};

    const HEADS: usize = 4;

    /// Sequences of these lengths, packed or dense, with G groups, heads of P channels and states of N.
    fn ssd(lengths: &[usize], dense: bool, [g, p, n]: [usize; 3], all: bool, settings: &Settings) {
        let total: usize = lengths.iter().sum();
        let lead = if dense { vec![lengths.len(), lengths[0]] } else { vec![total] };
        let shape = |rest: &[usize]| [&lead[..], rest].concat();
        let rates: Vec<f32> = (0..HEADS).map(|head| -0.2 - 0.5 * head as f32).collect();
        let mut inputs = vec![
            ("x", uniform("x", &shape(&[HEADS, p]), 1.0)),
            ("dt", uniform("dt", &shape(&[HEADS]), 1.0)),
            ("A", Tensor::new(&[HEADS], rates)),
            ("B", uniform("B", &shape(&[g, n]), 1.0)),
            ("C", uniform("C", &shape(&[g, n]), 1.0)),
        ];
        if all {
            inputs.push(("D", uniform("D", &[HEADS], 1.0)));
            inputs.push(("z", uniform("z", &shape(&[HEADS, p]), 3.0)));
            inputs.push(("dt_bias", uniform("dt_bias", &[HEADS], 0.5)));
            inputs.push(("initial_state", uniform("h", &[lengths.len(), HEADS, p, n], 1.0)));
        }
        if !dense {
            let mut offsets = vec![0];
            for length in lengths {
                offsets.push(offsets[offsets.len() - 1] + *length as i32);
            }
            inputs.push(("cu_seqlens", integers(&offsets)));
        }
        check::<SsdOp>(&format!("{lengths:?} {g} {p} {n} {all} {settings:?}"), &inputs, settings);
    }

    #[test]
    fn gradient_equals_finite_differences() {
        let plain = Settings::new();
        // The limits lie between step sizes, none of which is within a difference of one.
        let limited = Settings::new().with("dt_min", 0.4001).with("dt_max", 1.1003);
        for settings in [plain.clone(), limited] {
            for all in [false, true] {
                ssd(&[5, 5], true, [2, 3, 5], all, &settings);
                ssd(&[1], true, [1, 1, 1], all, &settings);
                ssd(&[3, 0, 1, 6], false, [4, 2, 3], all, &settings);
                ssd(&[0, 0], true, [1, 2, 3], all, &settings);
            }
        }
        let raw = plain.with("dt_softplus", false).with("dt_min", 0.1002);
        ssd(&[7], true, [2, 2, 4], true, &raw);
    }

    #[test]
    fn skip_weights_of_each_channel_have_gradients_of_their_own() {
        let inputs = [
            ("x", uniform("x", &[1, 6, 2, 3], 1.0)),
            ("dt", uniform("dt", &[1, 6, 2], 1.0)),
            ("A", Tensor::new(&[2], vec![-1.0f32, 0.0])),
            ("B", uniform("B", &[1, 6, 1, 2], 1.0)),
            ("C", uniform("C", &[1, 6, 1, 2], 1.0)),
            ("D", uniform("D", &[2, 3], 1.0).cast(DType::F32)),
        ];
        check::<SsdOp>("D by channel", &inputs, &Settings::new());
    }
}
