//! The recurrence of the README, token by token in float64.

use super::{Beta, Gate, KdaProblem};
use crate::{Inputs, Tensor, TensorMap};

pub(super) fn reference(problem: &KdaProblem, inputs: Inputs<'_>) -> TensorMap {
    let (hv, kd, vd) = (problem.value_heads, problem.key_dim, problem.value_dim);
    let q = inputs.tensor("q").to_f64(); // [total, H, K]
    let k = inputs.tensor("k").to_f64(); // [total, H, K]
    let v = inputs.tensor("v").to_f64(); // [total, HV, V]
    let log_decay = log_decay(problem, inputs); // [total, HV, K]
    let beta = write_strength(problem, inputs); // [total, HV]
    let mut states = match inputs.get("initial_state") {
        Some(initial) => initial.to_f64(), // [slots, HV, K, V]
        None => vec![0.0; problem.slots.count() * hv * kd * vd],
    };
    let mut o = vec![0.0; problem.sequences.total() * hv * vd]; // [total, HV, V]

    for (sequence, tokens) in problem.sequences.iter().enumerate() {
        let Some(slot) = problem.slots.of(sequence) else { continue }; // Padding: its rows of o stay 0.
        for head in 0..hv {
            let state = &mut states[(slot * hv + head) * kd * vd..][..kd * vd]; // [K, V]
            for t in tokens.clone() {
                let shared = (t * problem.heads + problem.head_of(head)) * kd;
                let own = t * hv + head;
                let mut q = q[shared..][..kd].to_vec();
                let mut k = k[shared..][..kd].to_vec();
                if problem.l2norm {
                    normalise(&mut q);
                    normalise(&mut k);
                }
                q.iter_mut().for_each(|q| *q *= problem.scale);
                let v = &v[own * vd..][..vd];
                let o = &mut o[own * vd..][..vd];
                step(state, &q, &k, v, &log_decay[own * kd..][..kd], beta[own], o);
            }
        }
    }
    TensorMap::from([
        ("o".to_owned(), Tensor::new(&problem.sequences.shape(&[hv, vd]), o)),
        ("final_state".to_owned(), Tensor::new(&[problem.slots.count(), hv, kd, vd], states)),
    ])
}

/// One token of one head: `S <- Diag(exp(g)) S`, then `S <- S + beta k (v - k^T S)^T`, then `o = q^T S`.
fn step(state: &mut [f64], q: &[f64], k: &[f64], v: &[f64], g: &[f64], beta: f64, o: &mut [f64]) {
    let width = v.len();
    for (row, g) in state.chunks_exact_mut(width.max(1)).zip(g) {
        let decay = g.exp();
        row.iter_mut().for_each(|s| *s *= decay);
    }
    let mut write = v.to_vec(); // v - k^T S, [V]
    for (row, k) in state.chunks_exact(width.max(1)).zip(k) {
        write.iter_mut().zip(row).for_each(|(write, s)| *write -= k * s);
    }
    for (row, k) in state.chunks_exact_mut(width.max(1)).zip(k) {
        row.iter_mut().zip(&write).for_each(|(s, write)| *s += beta * k * write);
    }
    for (row, q) in state.chunks_exact(width.max(1)).zip(q) {
        o.iter_mut().zip(row).for_each(|(o, s)| *o += q * s);
    }
}

/// `x / sqrt(sum x^2 + 1e-6)`.
pub(crate) fn normalise(x: &mut [f64]) {
    let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    x.iter_mut().for_each(|x| *x /= norm);
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)`, without overflow.
pub(crate) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The log decay of every token, value head and key channel, `[total, HV, K]`.
fn log_decay(problem: &KdaProblem, inputs: Inputs<'_>) -> Vec<f64> {
    let g = inputs.tensor("g").to_f64();
    if problem.gate == Gate::LogDecay {
        return g;
    }
    let per_token = problem.value_heads * problem.key_dim;
    let a_log = inputs.tensor("A_log").to_f64(); // [HV]
    let bias = match inputs.get("dt_bias") {
        Some(bias) => bias.to_f64(), // [HV, K]
        None => vec![0.0; per_token],
    };
    let log_decay = |(index, g): (usize, &f64)| {
        let channel = index % per_token;
        let (rate, x) = (a_log[channel / problem.key_dim].exp(), g + bias[channel]);
        match problem.gate {
            Gate::LogDecay => *g,
            Gate::Plain => -rate * softplus(x),
            Gate::Safe { lower_bound } => lower_bound * sigmoid(rate * x),
        }
    };
    g.iter().enumerate().map(log_decay).collect()
}

/// The write strength of every token and value head, `[total, HV]`.
pub(crate) fn write_strength(problem: &KdaProblem, inputs: Inputs<'_>) -> Vec<f64> {
    let beta = inputs.tensor("beta").to_f64();
    match problem.beta {
        Beta::AsGiven => beta,
        Beta::Sigmoid { factor } => beta.into_iter().map(|x| factor * sigmoid(x)).collect(),
    }
}
