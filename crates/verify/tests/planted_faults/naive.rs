//! Intermediate values of a call that no kernel returns, computed naively.

use crate::FaultInput;
use ops::Tensor;

/// The largest visible logit of each query of a dense attention call, `[B, H, Tq]`; -inf if none is visible.
pub(crate) fn largest_logits(given: &FaultInput<'_>) -> Vec<f64> {
    let (q, k) = (Dense::of(&given.inputs["q"]), Dense::of(&given.inputs["k"]));
    let [batch, queries, heads, dim] = q.shape;
    let [_, keys, kv_heads, _] = k.shape;
    let causal = given.setting("causal") == Some("true");
    let mut largest = Vec::new();
    for sequence in 0..batch {
        for head in 0..heads {
            for query in 0..queries {
                let end = if causal { (query + 1 + keys).saturating_sub(queries) } else { keys };
                let row = q.row(sequence, query, head);
                let logits = (0..end.min(keys))
                    .map(|key| dot(row, k.row(sequence, key, head * kv_heads / heads)));
                let scale = (dim as f64).powf(-0.5);
                largest.push(logits.fold(f64::NEG_INFINITY, |max, logit| max.max(logit * scale)));
            }
        }
    }
    largest
}

/// The compressed blocks over which a selectable block's importance is summed.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Overlap {
    /// 4j - 1 ..= 4j + 3, which overlap it.
    True,
    /// 4j - 4 ..= 4j, as printed in the paper.
    Misprinted,
}

/// Which of equally important blocks is selected.
#[derive(Clone, Copy)]
pub(crate) enum Ties {
    Lower,
    Higher,
}

/// The selection `[B, Tq, Hkv, n]` of a dense call of nsa with mean pooling and l = 2 d, l' = 4 d; `None` for others.
pub(crate) fn select(given: &FaultInput<'_>, overlap: Overlap, ties: Ties) -> Option<Tensor> {
    let count = |name: &str, default: usize| {
        given.setting(name).map_or(default, |value| value.parse::<usize>().unwrap())
    };
    let (l, d, block) =
        (count("compress_block", 32), count("compress_stride", 16), count("select_block", 64));
    let n = count("select_count", 16);
    let (initial, local) = (count("initial_blocks", 1), count("local_blocks", 2));
    let absent =
        ["block_indices", "cmp_k_weight"].iter().all(|name| !given.inputs.contains_key(*name));
    given.inputs.get("g_slc")?;
    if !given.is_dense() || !absent || l != 2 * d || block != 4 * d {
        return None;
    }
    let (q, k) = (Dense::of(&given.inputs["q"]), Dense::of(&given.inputs["k"]));
    let [batch, queries, heads, dim] = q.shape;
    let [_, keys, kv_heads, _] = k.shape;
    let scale = given.setting("scale").map_or((dim as f64).powf(-0.5), |s| s.parse().unwrap());
    let group = heads / kv_heads;
    let mut indices = Vec::new();
    for sequence in 0..batch {
        for query in 0..queries {
            for kv_head in 0..kv_heads {
                let seen = (query + 1 + keys).saturating_sub(queries);
                let visible = seen.div_ceil(block);
                let compressed = if seen < l { 0 } else { (seen - l) / d + 1 };
                let mut scores = vec![0.0; visible];
                for head in kv_head * group..(kv_head + 1) * group {
                    let row = q.row(sequence, query, head);
                    let pooled = |i: usize| -> f64 {
                        let tokens = i * d..i * d + l;
                        tokens.map(|t| dot(row, k.row(sequence, t, kv_head))).sum::<f64>()
                            / l as f64
                    };
                    let p = softmax((0..compressed).map(|i| scale * pooled(i)).collect());
                    for (j, score) in scores.iter_mut().enumerate() {
                        let first = 4 * j as i64 - if overlap == Overlap::True { 1 } else { 4 };
                        for (i, weight) in (first..).zip([1.0, 2.0, 2.0, 2.0, 1.0]) {
                            let p = usize::try_from(i).ok().and_then(|i| p.get(i));
                            *score += weight * p.copied().unwrap_or(0.0);
                        }
                    }
                }
                for (j, score) in scores.iter_mut().enumerate() {
                    if j < initial || j + local >= visible {
                        *score = f64::INFINITY;
                    }
                }
                let mut order: Vec<usize> = (0..visible).collect();
                order.sort_by(|a, b| {
                    let tie = match ties {
                        Ties::Lower => a.cmp(b),
                        Ties::Higher => b.cmp(a),
                    };
                    // Here equal keys give products that differ in their last bits.
                    let near = (scores[*a] - scores[*b]).abs() <= 1e-9 * scores[*a].abs();
                    if near || scores[*a] == scores[*b] {
                        tie
                    } else {
                        scores[*b].total_cmp(&scores[*a])
                    }
                });
                order.truncate(n);
                order.sort_unstable();
                let chosen = order.iter().map(|j| *j as i32);
                indices.extend(chosen.chain(std::iter::repeat(-1)).take(n));
            }
        }
    }
    Some(Tensor::new(&[batch, queries, kv_heads, n], indices))
}

fn softmax(logits: Vec<f64>) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|logit| (logit - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A `[B, T, H, D]` tensor accessed by rows.
struct Dense {
    shape: [usize; 4],
    values: Vec<f64>,
}

impl Dense {
    fn of(tensor: &Tensor) -> Self {
        Self { shape: tensor.shape().try_into().unwrap(), values: tensor.to_f64() }
    }

    fn row(&self, sequence: usize, token: usize, head: usize) -> &[f64] {
        let [_, tokens, heads, dim] = self.shape;
        &self.values[((sequence * tokens + token) * heads + head) * dim..][..dim]
    }
}
