//! The gradient in float64, one query at a time, from its formulas. It shares no code with the fast variants.

use super::AttentionProblem;
use super::problem::SPEC as FORWARD;
use super::reference::{is_visible, lse_index};
use crate::spec::tensor;
use crate::{Inputs, OpSpec, Tensor, TensorMap};

/// The gradient's table. Paged keys and caches that are not full, which are for inference, are not supported.
pub(super) static SPEC: OpSpec = OpSpec {
    name: "attention_backward",
    summary: "gradients of attention",
    inputs: &[
        FORWARD.inputs[0],
        FORWARD.inputs[1],
        FORWARD.inputs[2],
        FORWARD.inputs[3],
        FORWARD.inputs[4],
        FORWARD.outputs[0],
        FORWARD.outputs[1],
        tensor("do", "like o", true, "gradient of o, in its type"),
        tensor("dlse", "like lse", false, "f32 gradient of lse, for sinks and merged parts"),
    ],
    outputs: &[
        tensor("dq", "like q", true, "gradient of q, in its type"),
        tensor("dk", "like k", true, "gradient of k, in its type"),
        tensor("dv", "like v", false, "gradient of v, in its type"),
    ],
    settings: FORWARD.settings,
};

/// `dq`, `dk` and `dv` in float64.
///
/// With logits s = scale q.k (capped) and p = exp(s - lse): dv = p do, ds = p (do.v - do.o + dlse), dq = scale ds k and dk = scale ds q,
/// ds times 1 - tanh^2 with a soft cap; dk and dv are summed over the queries and over the heads of a group.
pub(super) fn gradient(problem: &AttentionProblem, inputs: Inputs<'_>) -> TensorMap {
    let (heads, kv_heads) = (problem.heads, problem.kv_heads);
    let (dim, value_dim) = (problem.head_dim, problem.value_dim);
    let q = inputs.tensor("q").to_f64(); // [query rows, H, D]
    let k = inputs.tensor("k").to_f64(); // [key rows, Hkv, D]
    // [key rows, Hkv, Dv], or the first Dv channels of the keys.
    let own = inputs.get("v").map(Tensor::to_f64);
    let (v, v_row) = own.as_ref().map_or((&k, dim), |v| (v, value_dim));
    let o = inputs.tensor("o").to_f64(); // [query rows, H, Dv]
    let d_o = inputs.tensor("do").to_f64(); // [query rows, H, Dv]
    let lse = inputs.tensor("lse").to_f64(); // [B, H, Tq] or [H, total]
    let dlse = inputs.get("dlse").map(Tensor::to_f64); // like lse
    let mut dq = vec![0.0; q.len()];
    let mut dk = vec![0.0; k.len()];
    let mut dv = vec![0.0; v.len()]; // like v, or like k
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };

    for (sequence, rows) in problem.queries.iter().enumerate() {
        let (queries, keys) = (rows.len(), problem.keys.len(sequence));
        for head in 0..heads {
            let kv_head = head / (heads / kv_heads);
            for (i, row) in rows.clone().enumerate() {
                let (q_at, o_at) = ((row * heads + head) * dim, (row * heads + head) * value_dim);
                let (q, d_o) = (&q[q_at..][..dim], &d_o[o_at..][..value_dim]);
                let lse_at = lse_index(problem, sequence, head, i, row);
                let delta = dot(d_o, &o[o_at..][..value_dim])
                    - dlse.as_ref().map_or(0.0, |dlse| dlse[lse_at]);
                for j in 0..keys {
                    if !is_visible(&problem.mask, queries, keys, i, j) {
                        continue;
                    }
                    let at = problem.keys.row(sequence, j) * kv_heads + kv_head;
                    let k = &k[at * dim..][..dim];
                    let plain = problem.scale * dot(q, k);
                    let (logit, slope) = match problem.softcap {
                        Some(cap) => {
                            let tanh = (plain / cap).tanh();
                            (cap * tanh, 1.0 - tanh * tanh)
                        }
                        None => (plain, 1.0),
                    };
                    let p = (logit - lse[lse_at]).exp();
                    let dp = dot(d_o, &v[at * v_row..][..value_dim]);
                    let ds = problem.scale * slope * p * (dp - delta);
                    for channel in 0..dim {
                        dq[q_at + channel] += ds * k[channel];
                        dk[at * dim + channel] += ds * q[channel];
                    }
                    for channel in 0..value_dim {
                        dv[at * v_row + channel] += p * d_o[channel];
                    }
                }
            }
        }
    }
    if own.is_none() {
        dk.iter_mut().zip(&dv).for_each(|(dk, dv)| *dk += dv);
    }

    let like =
        |of: &str, values| Some((format!("d{of}"), Tensor::new(inputs.get(of)?.shape(), values)));
    [like("q", dq), like("k", dk), like("v", dv)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use crate::Settings;
    use crate::attention::AttentionOp;
    use crate::gradient::differences::{check, integers, uniform};

    /// Dense attention of `[B, Tq, Tk, H, Hkv, D, Dv]`; Dv is 0 for values in the keys.
    fn dense(
        [batch, queries, keys, heads, kv_heads, dim, value_dim]: [usize; 7],
        settings: Settings,
        range: f32,
    ) {
        let mut inputs = vec![
            ("q", uniform("q", &[batch, queries, heads, dim], range)),
            ("k", uniform("k", &[batch, keys, kv_heads, dim], range)),
        ];
        if value_dim > 0 {
            inputs.push(("v", uniform("v", &[batch, keys, kv_heads, value_dim], 1.0)));
        }
        let what = format!(
            "{:?} {settings:?} {range}",
            inputs.iter().map(|(_, t)| t.shape().to_vec()).collect::<Vec<_>>()
        );
        check::<AttentionOp>(&what, &inputs, &settings);
    }

    #[test]
    fn gradient_equals_finite_differences() {
        let none = Settings::new;
        let causal = || none().with("causal", true);
        for settings in [
            none(),
            causal(),
            causal().with("window_left", 2),
            none().with("window_left", 1).with("window_right", 1).with("scale", 0.7),
            causal().with("softcap", 1.5),
        ] {
            for sizes in [
                [2, 5, 5, 2, 2, 7, 7],
                [1, 1, 1, 1, 1, 1, 1],
                [1, 1, 6, 4, 2, 3, 5],
                [1, 6, 3, 3, 1, 4, 2],
                [1, 3, 0, 2, 1, 4, 4],
                [2, 0, 4, 2, 1, 4, 4],
            ] {
                dense(sizes, settings.clone(), 1.0);
            }
            dense([1, 5, 5, 4, 1, 6, 0], settings.clone().with("value_width", 4), 1.0);
        }
    }

    #[test]
    fn gradient_of_far_logits_equals_finite_differences() {
        // Logits of some hundreds: lse is far from 0, and one key has nearly all of the weight.
        for causal in [false, true] {
            dense([1, 7, 9, 2, 1, 16, 8], Settings::new().with("causal", causal), 12.0);
        }
    }

    #[test]
    fn gradient_of_packed_sequences_equals_finite_differences() {
        let (offsets, keys) = (integers(&[0, 3, 3, 8, 9]), integers(&[0, 4, 6, 6, 11]));
        for causal in [false, true] {
            let settings = Settings::new().with("causal", causal);
            let mut inputs = vec![
                ("q", uniform("q", &[9, 4, 5], 1.0)),
                ("k", uniform("k", &[9, 2, 5], 1.0)),
                ("v", uniform("v", &[9, 2, 3], 1.0)),
                ("cu_seqlens", offsets.clone()),
            ];
            check::<AttentionOp>("packed", &inputs, &settings);
            inputs[1].1 = uniform("k", &[11, 2, 5], 1.0);
            inputs[2].1 = uniform("v", &[11, 2, 3], 1.0);
            inputs.push(("cu_seqlens_k", keys.clone()));
            check::<AttentionOp>("packed keys", &inputs, &settings);
        }
    }
}
