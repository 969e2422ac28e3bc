//! Attention in float64, one query at a time, from the definition. It tests the visibility of every (query, key) pair, and
//! shares no code with the fast variants.

use super::{AttentionProblem, Mask};
use crate::{Inputs, Tensor, TensorMap};
use rayon::prelude::*;

/// o [.., H, Dv] and lse [B, H, Tq] or [H, total], both float64.
pub(super) fn attention(problem: &AttentionProblem, inputs: Inputs<'_>) -> TensorMap {
    let (heads, kv_heads) = (problem.heads, problem.kv_heads);
    let (dim, value_dim) = (problem.head_dim, problem.value_dim);
    let q = inputs.tensor("q").to_f64(); // [query rows, H, D]
    let k = inputs.tensor("k").to_f64(); // [key rows, Hkv, D]
    // [key rows, Hkv, Dv], or the first Dv channels of the keys.
    let own = (!problem.values_in_keys).then(|| inputs.tensor("v").to_f64());
    let (v, v_row) = own.as_ref().map_or((&k, dim), |v| (v, value_dim));
    let total = problem.queries.total();
    let mut o = vec![0.0; total * heads * value_dim];
    let mut lse = vec![f64::NEG_INFINITY; heads * total];

    for (sequence, rows) in problem.queries.iter().enumerate() {
        let (queries, keys) = (rows.len(), problem.keys.len(sequence));
        for head in 0..heads {
            let kv_head = head / (heads / kv_heads);
            let solve = |(i, row): (usize, usize)| -> Option<(Vec<f64>, f64)> {
                let visible: Vec<usize> = (0..keys)
                    .filter(|j| is_visible(&problem.mask, queries, keys, i, *j))
                    .map(|j| problem.keys.row(sequence, j) * kv_heads + kv_head)
                    .collect();
                if visible.is_empty() {
                    return None; // o = 0, lse = -inf
                }
                let q_row = &q[(row * heads + head) * dim..][..dim];
                let logits: Vec<f64> = visible
                    .iter()
                    .map(|at| logit(problem, dot(q_row, &k[at * dim..][..dim])))
                    .collect();
                let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = logits.iter().map(|logit| (logit - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let mut o_row = vec![0.0; value_dim];
                for (weight, at) in weights.iter().zip(&visible) {
                    for (o, v) in o_row.iter_mut().zip(&v[at * v_row..][..value_dim]) {
                        *o += weight / sum * v;
                    }
                }
                Some((o_row, max + sum.ln()))
            };
            let numbered: Vec<(usize, usize)> = rows.clone().enumerate().collect();
            let solved: Vec<_> = numbered.par_iter().copied().map(solve).collect();
            for ((i, row), solved) in numbered.into_iter().zip(solved) {
                let Some((o_row, lse_row)) = solved else { continue };
                o[(row * heads + head) * value_dim..][..value_dim].copy_from_slice(&o_row);
                lse[lse_index(problem, sequence, head, i, row)] = lse_row;
            }
        }
    }

    let specs = crate::Problem::outputs(problem);
    [o, lse]
        .into_iter()
        .zip(specs)
        .map(|(values, spec)| (spec.name.to_owned(), Tensor::new(&spec.shape, values)))
        .collect()
}

/// Whether query i sees key j: its own position is i + Tk - Tq.
pub(super) fn is_visible(mask: &Mask, queries: usize, keys: usize, i: usize, j: usize) -> bool {
    let ahead = j as i64 - (i as i64 + keys as i64 - queries as i64);
    (!mask.causal || ahead <= 0)
        && mask.window_left.is_none_or(|left| -ahead <= i64::try_from(left).unwrap_or(i64::MAX))
        && mask.window_right.is_none_or(|right| ahead <= i64::try_from(right).unwrap_or(i64::MAX))
}

/// scale q.k, with the soft cap, if one is set.
fn logit(problem: &AttentionProblem, product: f64) -> f64 {
    let logit = problem.scale * product;
    match problem.softcap {
        Some(cap) => cap * (logit / cap).tanh(),
        None => logit,
    }
}

pub(super) fn lse_index(
    problem: &AttentionProblem,
    sequence: usize,
    head: usize,
    i: usize,
    row: usize,
) -> usize {
    match problem.queries.batch_and_tokens() {
        Some((_, tokens)) => (sequence * problem.heads + head) * tokens + i,
        None => head * problem.queries.total() + row,
    }
}

/// Dot product with eight partial sums, so that the compiler can vectorize.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}
