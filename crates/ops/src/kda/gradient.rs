//! The gradient in float64, token by token from the last to the first, straight from the recurrence. `gated_delta` shares it.

use super::problem::SPEC as FORWARD;
use super::problem::shared::{
    A_LOG, BETA, CU_SEQLENS, DFINAL_STATE, DO, GRADIENTS, INITIAL_STATE, K, Q, V,
};
use super::reference::{log_decay, normalise, sigmoid, write_strength};
use super::{Beta, Gate, KdaProblem};
use crate::{Inputs, OpSpec, Tensor, TensorMap};
use rayon::prelude::*;

/// The gradient's table. Pools of states, which are for inference, are not supported.
pub(super) const SPEC: OpSpec = OpSpec {
    name: "kda_backward",
    summary: "gradients of kda",
    inputs: &[
        Q,
        K,
        V,
        FORWARD.inputs[3],
        BETA,
        A_LOG,
        FORWARD.inputs[6],
        INITIAL_STATE,
        CU_SEQLENS,
        DO,
        DFINAL_STATE,
    ],
    outputs: GRADIENTS,
    settings: FORWARD.settings,
};

/// Value channels whose gradients exist at once: each has a state for every token.
const CHANNELS: usize = 16;

/// Every gradient in float64. The README has the formulas.
pub(crate) fn gradient(problem: &KdaProblem, inputs: Inputs<'_>) -> TensorMap {
    let (heads, hv, gates) = (problem.heads, problem.value_heads, problem.gate_dim());
    let (kd, vd, total) = (problem.key_dim, problem.value_dim, problem.sequences.total());
    let read = |name: &str| inputs.tensor(name).to_f64();
    let state_len = problem.state_len();
    let state = |name: &str| match inputs.get(name) {
        Some(state) => state.to_f64(), // [N, HV, K, V]
        None => vec![0.0; problem.sequences.count() * hv * state_len],
    };
    let (raw_q, raw_k) = (read("q"), read("k")); // [total, H, K]
    let [q, k] = [&raw_q, &raw_k].map(|raw| {
        let mut rows = raw.clone();
        if problem.l2norm {
            rows.chunks_mut(kd).for_each(normalise);
        }
        rows
    });
    let (v, d_o) = (read("v"), read("do")); // [total, HV, V]
    let g = log_decay(problem, inputs); // [total, HV, gates]
    let beta = write_strength(problem, inputs); // [total, HV]
    let (initial, dfinal) = (state("initial_state"), state("dfinal_state"));
    let mut dinitial = vec![0.0; initial.len()]; // [N, HV, K, V]
    let [mut dq, mut dk] = [0, 1].map(|_| vec![0.0; total * heads * kd]); // [total, H, K]
    let mut dv = vec![0.0; v.len()]; // [total, HV, V]
    let mut dg = vec![0.0; g.len()]; // [total, HV, gates]
    let mut dbeta = vec![0.0; beta.len()]; // [total, HV]

    for (sequence, tokens) in problem.sequences.iter().enumerate() {
        for head in 0..hv {
            let row = |t: usize| (t * heads + problem.head_of(head)) * kd;
            let own = |t: usize| t * hv + head;
            // The gate of a key channel, which is the only one of gated_delta.
            let gate = |t: usize, channel: usize| own(t) * gates + channel.min(gates - 1);
            let steps: Vec<Step<'_>> = tokens
                .clone()
                .map(|t| Step {
                    q: &q[row(t)..][..kd],
                    k: &k[row(t)..][..kd],
                    decay: (0..kd).map(|channel| g[gate(t, channel)].exp()).collect(),
                    beta: beta[own(t)],
                })
                .collect();
            let at_state = |channel: usize, row: usize| {
                (sequence * hv + head) * state_len + row * vd + channel
            };
            let solve = |channel: usize| {
                let of_state =
                    |state: &[f64]| (0..kd).map(|c| state[at_state(channel, c)]).collect();
                let of_tokens = |values: &[f64]| -> Vec<f64> {
                    tokens.clone().map(|t| values[own(t) * vd + channel]).collect()
                };
                let states = [of_state(&initial), of_state(&dfinal)];
                of_channel(&steps, states, [&of_tokens(&v), &of_tokens(&d_o)], problem.scale)
            };
            // Value channels are independent: each is a column of the state.
            for first in (0..vd).step_by(CHANNELS) {
                let channels = first..(first + CHANNELS).min(vd);
                let solved: Vec<_> = channels.clone().into_par_iter().map(solve).collect();
                for (channel, column) in channels.zip(solved) {
                    for (c, of_state) in column.dinitial.iter().enumerate() {
                        dinitial[at_state(channel, c)] = *of_state;
                    }
                    for (t, of) in tokens.clone().rev().zip(column.tokens) {
                        for c in 0..kd {
                            dq[row(t) + c] += of.q[c];
                            dk[row(t) + c] += of.k[c];
                            dg[gate(t, c)] += of.g[c];
                        }
                        dv[own(t) * vd + channel] = of.v;
                        dbeta[own(t)] += of.beta;
                    }
                }
            }
        }
    }

    if problem.l2norm {
        for (raw, (unit, gradient)) in [(&raw_q, (&q, &mut dq)), (&raw_k, (&k, &mut dk))] {
            let rows = raw.chunks(kd).zip(unit.chunks(kd)).zip(gradient.chunks_mut(kd));
            rows.for_each(|((raw, unit), gradient)| through_norm(raw, unit, gradient));
        }
    }
    if let Beta::Sigmoid { factor } = problem.beta {
        let slope = |x: f64| factor * sigmoid(x) * sigmoid(-x);
        dbeta.iter_mut().zip(read("beta")).for_each(|(dbeta, x)| *dbeta *= slope(x));
    }
    let mut drate = vec![0.0; hv]; // [HV]
    let mut dbias = vec![0.0; hv * gates]; // [HV, gates]
    if problem.gate != Gate::LogDecay {
        let rate: Vec<f64> = read("A_log").into_iter().map(f64::exp).collect();
        let bias = inputs.get("dt_bias").map_or_else(|| vec![0.0; hv * gates], Tensor::to_f64);
        for (index, (dg, logit)) in dg.iter_mut().zip(read("g")).enumerate() {
            let channel = index % (hv * gates);
            let (head, x) = (channel / gates, logit + bias[channel]);
            let (of_rate, of_x) = match problem.gate {
                Gate::Safe { lower_bound } => {
                    let z = rate[head] * x;
                    let slope = lower_bound * rate[head] * sigmoid(z) * sigmoid(-z);
                    (slope * x, slope)
                }
                _ => (g[index], -rate[head] * sigmoid(x)),
            };
            drate[head] += *dg * of_rate;
            *dg *= of_x;
            dbias[channel] += *dg;
        }
    }
    let like =
        |of: &str, values| Some((format!("d{of}"), Tensor::new(inputs.get(of)?.shape(), values)));
    let all = [
        like("q", dq),
        like("k", dk),
        like("v", dv),
        like("g", dg),
        like("beta", dbeta),
        like("A_log", drate),
        like("dt_bias", dbias),
        like("initial_state", dinitial),
    ];
    all.into_iter().flatten().collect()
}

/// The inputs of one token and head, prepared: query, key and decay of each key channel, and the write strength.
struct Step<'a> {
    q: &'a [f64],
    k: &'a [f64],
    decay: Vec<f64>,
    beta: f64,
}

/// The gradients of one token through one value channel. Those of q, k and g have K elements.
struct OfToken {
    q: Vec<f64>,
    k: Vec<f64>,
    g: Vec<f64>,
    v: f64,
    beta: f64,
}

/// The gradients through one value channel.
struct OfChannel {
    /// Gradients of the tokens, the last one first.
    tokens: Vec<OfToken>,
    /// Gradient of the initial state, K elements.
    dinitial: Vec<f64>,
}

/// Runs the recurrence of one column of the state, then its gradient from the last token to the first.
fn of_channel(
    steps: &[Step<'_>],
    [mut s, mut ds]: [Vec<f64>; 2],
    [v, d_o]: [&[f64]; 2],
    scale: f64,
) -> OfChannel {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    // For each token the decayed state, the value minus what the key reads from it, and the state after the token.
    let mut history = Vec::new();
    for (step, v) in steps.iter().zip(v) {
        s.iter_mut().zip(&step.decay).for_each(|(s, decay)| *s *= decay);
        let decayed = s.clone();
        let error = v - dot(step.k, &s);
        s.iter_mut().zip(step.k).for_each(|(s, k)| *s += k * step.beta * error);
        history.push((decayed, error, s.clone()));
    }
    let mut tokens = Vec::new();
    for ((step, d_o), (decayed, error, after)) in steps.iter().zip(d_o).zip(&history).rev() {
        let Step { q, k, decay, beta } = step;
        ds.iter_mut().zip(*q).for_each(|(ds, q)| *ds += scale * q * d_o);
        let dwrite = dot(k, &ds);
        let dv = beta * dwrite;
        let dk = ds.iter().zip(decayed).map(|(ds, s)| ds * beta * error - s * dv).collect();
        ds.iter_mut().zip(*k).for_each(|(ds, k)| *ds -= k * dv);
        tokens.push(OfToken {
            q: after.iter().map(|s| scale * s * d_o).collect(),
            k: dk,
            g: ds.iter().zip(decayed).map(|(ds, s)| ds * s).collect(),
            v: dv,
            beta: dwrite * error,
        });
        ds.iter_mut().zip(decay).for_each(|(ds, decay)| *ds *= decay);
    }
    OfChannel { tokens, dinitial: ds }
}

/// The gradient of a row `x` from that of the normalised row `y`: (dy - y (y . dy)) / sqrt(x . x + 1e-6).
fn through_norm(x: &[f64], y: &[f64], gradient: &mut [f64]) {
    let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    let along: f64 = y.iter().zip(&*gradient).map(|(y, dy)| y * dy).sum();
    gradient.iter_mut().zip(y).for_each(|(dy, y)| *dy = (*dy - y * along) / norm);
}

#[cfg(test)]
mod tests {
    use crate::gated_delta::GatedDeltaOp;
    use crate::gradient::differences::{check, integers, uniform};
    use crate::kda::KdaOp;
    use crate::{DType, Settings, Tensor};

    /// Sequences of these lengths, packed or dense, with 2 query heads, `hv` value heads and K and V channels.
    struct Shape<'a> {
        lengths: &'a [usize],
        dense: bool,
        hv: usize,
        channels: [usize; 2],
    }

    /// Inputs of kda, or of gated_delta with one gate per head: gates are log decays in [-range, 0], or logits in [-range, range].
    fn inputs(
        of: &Shape<'_>,
        per_head: bool,
        logits: bool,
        range: f32,
    ) -> Vec<(&'static str, Tensor)> {
        let Shape { lengths, dense, hv, channels: [kd, vd] } = *of;
        let total: usize = lengths.iter().sum();
        let lead = if dense { vec![lengths.len(), lengths[0]] } else { vec![total] };
        let shape = |rest: &[usize]| [&lead[..], rest].concat();
        let gates: &[usize] = if per_head { &[hv] } else { &[hv, kd] };
        let between =
            |name: &str, shape: &[usize], bounds| Tensor::uniform::<f32>(name, shape, bounds);
        let mut inputs = vec![
            ("q", uniform("q", &shape(&[2, kd]), 1.0)),
            ("k", uniform("k", &shape(&[2, kd]), 1.0)),
            ("v", uniform("v", &shape(&[hv, vd]), 1.0)),
        ];
        if logits {
            inputs.push(("g", uniform("g", &shape(gates), range)));
            inputs.push(("beta", uniform("beta", &shape(&[hv]), 3.0)));
            inputs.push(("A_log", uniform("A_log", &[hv], 1.0)));
            inputs.push(("dt_bias", uniform("dt_bias", gates, 1.0)));
            inputs.push(("initial_state", uniform("s", &[lengths.len(), hv, kd, vd], 1.0)));
        } else {
            inputs.push(("g", between("g", &shape(gates), [-range, 0.0])));
            inputs.push(("beta", between("beta", &shape(&[hv]), [0.0, 1.0])));
        }
        if !dense {
            let mut offsets = vec![0];
            for length in lengths {
                offsets.push(offsets[offsets.len() - 1] + *length as i32);
            }
            inputs.push(("cu_seqlens", integers(&offsets)));
        }
        inputs
    }

    fn compare(of: &Shape<'_>, logits: bool, range: f32, l2norm: bool, settings: &Settings) {
        let what = format!("{:?} {} {:?} {logits} {range}", of.lengths, of.hv, of.channels);
        let settings = settings.clone().with("l2norm", l2norm);
        check::<KdaOp>(&what, &inputs(of, false, logits, range), &settings);
        if settings.iter().all(|(name, _)| name != "gate" && name != "lower_bound") {
            check::<GatedDeltaOp>(&what, &inputs(of, true, logits, range), &settings);
        }
    }

    const SHAPES: [Shape<'static>; 4] = [
        Shape { lengths: &[5, 5], dense: true, hv: 4, channels: [3, 5] },
        Shape { lengths: &[1], dense: true, hv: 2, channels: [1, 1] },
        Shape { lengths: &[3, 0, 1, 6], dense: false, hv: 2, channels: [4, 2] },
        Shape { lengths: &[0, 0], dense: true, hv: 2, channels: [2, 3] },
    ];

    #[test]
    fn gradient_equals_finite_differences() {
        let plain = Settings::new();
        let safe = Settings::new().with("gate", "safe");
        for shape in &SHAPES {
            for l2norm in [false, true] {
                compare(shape, false, 1.0, l2norm, &plain);
                compare(shape, true, 3.0, l2norm, &plain);
                compare(shape, true, 3.0, l2norm, &safe);
            }
        }
        let wide = Shape { lengths: &[4], dense: true, hv: 2, channels: [3, 18] };
        compare(&wide, true, 1.0, true, &plain.clone().with("allow_neg_eigval", true));
        compare(&wide, true, 1.0, true, &safe.with("lower_bound", -0.5).with("scale", 2));
        compare(&wide, false, 1.0, true, &plain.with("scale", -1));
    }

    #[test]
    fn gradient_through_saturated_gates_equals_finite_differences() {
        for settings in [Settings::new(), Settings::new().with("gate", "safe")] {
            compare(&SHAPES[0], true, 60.0, true, &settings);
        }
        compare(&SHAPES[0], false, 20.0, true, &Settings::new());
    }

    #[test]
    fn bias_of_one_dimension_has_a_gradient_of_one_dimension() {
        let mut inputs = inputs(&SHAPES[0], false, true, 1.0);
        let bias = inputs.iter_mut().find(|(name, _)| *name == "dt_bias").unwrap();
        bias.1 = Tensor::new(&[4 * 3], bias.1.to_f64()).cast(DType::F32);
        check::<KdaOp>("dt_bias [HV * K]", &inputs, &Settings::new());
    }
}
