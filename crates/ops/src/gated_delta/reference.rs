//! The recurrence of the README, token by token in float64.

use crate::kda::reference::{normalise, softplus, write_strength};
use crate::kda::{Gate, KdaProblem};
use crate::{Inputs, Tensor, TensorMap};
use rayon::prelude::*;

pub(super) fn reference(problem: &KdaProblem, inputs: Inputs<'_>) -> TensorMap {
    let (hv, kd, vd) = (problem.value_heads, problem.key_dim, problem.value_dim);
    let q = rows(inputs.tensor("q"), problem); // [total][H][K]
    let k = rows(inputs.tensor("k"), problem); // [total][H][K]
    let v = inputs.tensor("v").to_f64(); // [total, HV, V]
    let decay = decays(problem, inputs); // [total, HV]
    let beta = write_strength(problem, inputs); // [total, HV]
    let mut states = match inputs.get("initial_state") {
        Some(initial) => initial.to_f64(), // [slots, HV, K, V]
        None => vec![0.0; problem.slots.count() * hv * kd * vd],
    };
    let mut o = vec![0.0; problem.sequences.total() * hv * vd]; // [total, HV, V]

    for (sequence, tokens) in problem.sequences.iter().enumerate() {
        // The rows of o of a padding sequence stay 0.
        let Some(slot) = problem.slots.of(sequence) else { continue };
        for head in 0..hv {
            let state = &mut states[(slot * hv + head) * kd * vd..][..kd * vd]; // [K, V]
            // A column of the state, [K], belongs to one value channel and is independent of the others.
            let solve = |column: usize| {
                let mut s: Vec<f64> = (0..kd).map(|c| state[c * vd + column]).collect();
                let token = |t: usize| {
                    let shared = t * problem.heads + problem.head_of(head);
                    let (q, k, own) = (&q[shared], &k[shared], t * hv + head);
                    for s in &mut s {
                        *s *= decay[own]; // S = e^g S
                    }
                    let read: f64 = (0..kd).map(|c| k[c] * s[c]).sum(); // k^T S
                    let write = beta[own] * (v[own * vd + column] - read);
                    for c in 0..kd {
                        s[c] += k[c] * write; // S += beta k (v - S^T k)^T
                    }
                    problem.scale * (0..kd).map(|c| q[c] * s[c]).sum::<f64>() // q^T S
                };
                let outputs: Vec<f64> = tokens.clone().map(token).collect();
                (s, outputs)
            };
            let solved: Vec<_> = (0..vd).into_par_iter().map(solve).collect();
            for (column, (s, outputs)) in solved.into_iter().enumerate() {
                (0..kd).for_each(|c| state[c * vd + column] = s[c]);
                tokens
                    .clone()
                    .zip(outputs)
                    .for_each(|(t, o_t)| o[(t * hv + head) * vd + column] = o_t);
            }
        }
    }
    TensorMap::from([
        ("o".to_owned(), Tensor::new(&problem.sequences.shape(&[hv, vd]), o)),
        ("final_state".to_owned(), Tensor::new(&[problem.slots.count(), hv, kd, vd], states)),
    ])
}

/// Queries or keys, L2-normalised if `l2norm` is set.
fn rows(tensor: &Tensor, problem: &KdaProblem) -> Vec<Vec<f64>> {
    let mut rows: Vec<_> =
        tensor.to_f64().chunks_exact(problem.key_dim).map(<[f64]>::to_vec).collect();
    if problem.l2norm {
        rows.iter_mut().for_each(|row| normalise(row));
    }
    rows
}

/// e^g of every token and value head, with g = -exp(A_log) softplus(logit + dt_bias) where logits are given.
fn decays(problem: &KdaProblem, inputs: Inputs<'_>) -> Vec<f64> {
    let g = inputs.tensor("g").to_f64(); // [total, HV]
    if problem.gate == Gate::LogDecay {
        return g.into_iter().map(f64::exp).collect();
    }
    let hv = problem.value_heads;
    let a_log = inputs.tensor("A_log").to_f64(); // [HV]
    let bias = inputs.get("dt_bias").map_or_else(|| vec![0.0; hv], Tensor::to_f64); // [HV]
    let decay =
        |(at, logit): (usize, f64)| (-a_log[at % hv].exp() * softplus(logit + bias[at % hv])).exp();
    g.into_iter().enumerate().map(decay).collect()
}
