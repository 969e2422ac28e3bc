//! Gated DeltaNet and gated attention as in transformers' Qwen3-Next and Qwen3.5.

use super::*;

pub(super) fn logits(m: &Oracle, tokens: &[u32]) -> Vec<f64> {
    let embed = |token: &u32| m.embedding(*token, m.count("hidden_size"));
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
    for layer in 0..m.count("num_hidden_layers") {
        let p = format!("model.layers.{layer}");
        let normed: Vec<_> =
            xs.iter().map(|x| norm(m, &format!("{p}.input_layernorm"), x)).collect();
        let mixed = match m.word("layer_types", layer) {
            "linear_attention" => delta_net(m, &format!("{p}.linear_attn"), &normed),
            _ => attention(m, &format!("{p}.self_attn"), &normed),
        };
        for (x, mixed) in xs.iter_mut().zip(mixed) {
            add(x, &mixed, 1.0);
            let h = norm(m, &format!("{p}.post_attention_layernorm"), x);
            add(x, &feed_forward(m, &format!("{p}.mlp"), &h), 1.0);
        }
    }
    xs.iter().flat_map(|x| m.project("lm_head.weight", &norm(m, "model.norm", x))).collect()
}

/// Weights are stored minus 1.
fn norm(m: &Oracle, name: &str, x: &[f64]) -> Vec<f64> {
    let weight: Vec<f64> = m.tensor(&format!("{name}.weight")).iter().map(|w| 1.0 + w).collect();
    rms_norm(x, &weight, m.number("rms_norm_eps"))
}

fn swiglu(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter().zip(up).map(|(gate, up)| silu(*gate) * up).collect()
}

fn feed_forward(m: &Oracle, p: &str, h: &[f64]) -> Vec<f64> {
    let names = ["gate_proj", "up_proj", "down_proj"];
    let Some(router) = m.tensors.get(&format!("{p}.gate.weight")) else {
        return plain::gated(m, p, names, h);
    };
    let logits = product(router, h);
    let sum: f64 = logits.iter().map(|x| x.exp()).sum();
    let weights: Vec<f64> = logits.iter().map(|x| x.exp() / sum).collect();
    let chosen = largest(&weights, m.count("num_experts_per_tok"));
    let sum: f64 = chosen.iter().map(|e| weights[*e]).sum();
    let made = |e: usize| match m.tensors.get(&format!("{p}.experts.gate_up_proj")) {
        Some(all) => {
            let size = all.len() / weights.len();
            let both = product(&all[e * size..][..size], h);
            let (gate, up) = both.split_at(both.len() / 2);
            let down = m.tensor(&format!("{p}.experts.down_proj"));
            let size = down.len() / weights.len();
            product(&down[e * size..][..size], &swiglu(gate, up))
        }
        None => plain::gated(m, &format!("{p}.experts.{e}"), names, h),
    };
    let gate = sigmoid(m.project(&format!("{p}.shared_expert_gate.weight"), h)[0]);
    let shared = plain::gated(m, &format!("{p}.shared_expert"), names, h);
    let mut y: Vec<f64> = shared.iter().map(|y| gate * y).collect();
    for e in chosen {
        add(&mut y, &made(e), weights[e] / sum);
    }
    y
}

/// Queries, keys, values, output gates, write strengths and decays of a token, by head.
fn projected(m: &Oracle, p: &str, x: &[f64]) -> [Vec<f64>; 6] {
    let (hk, hv) = (m.count("linear_num_key_heads"), m.count("linear_num_value_heads"));
    let (dk, dv) = (m.count("linear_key_head_dim"), m.count("linear_value_head_dim"));
    let r = hv / hk;
    if !m.tensors.contains_key(&format!("{p}.in_proj_qkvz.weight")) {
        let part = |name: &str| m.project(&format!("{p}.in_proj_{name}.weight"), x);
        let mut q = part("qkv");
        let mut k = q.split_off(hk * dk);
        let v = k.split_off(hk * dk);
        return [q, k, v, part("z"), part("b"), part("a")];
    }
    let all = m.project(&format!("{p}.in_proj_qkvz.weight"), x);
    let scalars = m.project(&format!("{p}.in_proj_ba.weight"), x);
    let mut parts: [Vec<f64>; 6] = std::array::from_fn(|_| Vec::new());
    for (head, scalars) in all.chunks_exact(2 * dk + 2 * r * dv).zip(scalars.chunks_exact(2 * r)) {
        parts[0].extend(&head[..dk]);
        parts[1].extend(&head[dk..2 * dk]);
        parts[2].extend(&head[2 * dk..2 * dk + r * dv]);
        parts[3].extend(&head[2 * dk + r * dv..]);
        parts[4].extend(&scalars[..r]);
        parts[5].extend(&scalars[r..]);
    }
    parts
}

fn delta_net(m: &Oracle, p: &str, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let (hk, hv) = (m.count("linear_num_key_heads"), m.count("linear_num_value_heads"));
    let (dk, dv) = (m.count("linear_key_head_dim"), m.count("linear_value_head_dim"));
    let all: Vec<[Vec<f64>; 6]> = xs.iter().map(|x| projected(m, p, x)).collect();
    let mixing: Vec<Vec<f64>> = all.iter().map(|parts| parts[..3].concat()).collect();
    let mixed = convolve(&mixing, m.tensor(&format!("{p}.conv1d.weight")), None);
    let (a_log, dt_bias) = (m.tensor(&format!("{p}.A_log")), m.tensor(&format!("{p}.dt_bias")));
    let weight = m.tensor(&format!("{p}.norm.weight"));
    let unit = |x: &[f64]| -> Vec<f64> {
        let size = (dot(x, x) + 1e-6).sqrt();
        x.iter().map(|x| x / size).collect()
    };
    // [value heads][key channel][value channel]
    let mut states = vec![vec![vec![0.0; dv]; dk]; hv];
    let mut out = Vec::new();
    for (parts, mixed) in all.iter().zip(&mixed) {
        let mut y = Vec::new();
        for (head, state) in states.iter_mut().enumerate() {
            let key_head = head / (hv / hk);
            let q = unit(&mixed[key_head * dk..][..dk]);
            let k = unit(&mixed[(hk + key_head) * dk..][..dk]);
            let v = &mixed[2 * hk * dk + head * dv..][..dv];
            let beta = sigmoid(parts[4][head]);
            let decay = (-a_log[head].exp() * softplus(parts[5][head] + dt_bias[head])).exp();
            for row in state.iter_mut() {
                row.iter_mut().for_each(|s| *s *= decay);
            }
            for c in 0..dv {
                let seen: f64 = (0..dk).map(|i| k[i] * state[i][c]).sum();
                let write = beta * (v[c] - seen);
                (0..dk).for_each(|i| state[i][c] += k[i] * write);
            }
            let scale = 1.0 / (dk as f64).sqrt();
            let o: Vec<f64> =
                (0..dv).map(|c| (0..dk).map(|i| scale * q[i] * state[i][c]).sum()).collect();
            let normed = rms_norm(&o, weight, m.number("rms_norm_eps"));
            let gates = &parts[3][head * dv..][..dv];
            y.extend(normed.iter().zip(gates).map(|(o, z)| o * silu(*z)));
        }
        out.push(m.project(&format!("{p}.out_proj.weight"), &y));
    }
    out
}

fn attention(m: &Oracle, p: &str, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let (heads, kv_heads) = (m.count("num_attention_heads"), m.count("num_key_value_heads"));
    let dim = m.count("head_dim");
    let rotation = m.config.get("rope_parameters").unwrap_or(&m.config);
    let turned = (dim as f64 * rotation["partial_rotary_factor"].as_f64().unwrap()) as usize;
    let theta = rotation["rope_theta"].as_f64().unwrap();
    let by_head = |t: usize, name: &str, y: &[f64]| -> Vec<f64> {
        let mut y = norm(m, &format!("{p}.{name}_norm"), y);
        let old = y.clone();
        for i in 0..turned / 2 {
            let angle = t as f64 / theta.powf((2 * i) as f64 / turned as f64);
            let (low, high) = (old[i], old[i + turned / 2]);
            y[i] = low * angle.cos() - high * angle.sin();
            y[i + turned / 2] = high * angle.cos() + low * angle.sin();
        }
        y
    };
    let part = |t: usize, name: &str| m.project(&format!("{p}.{name}_proj.weight"), &xs[t]);
    let keys: Vec<Vec<Vec<f64>>> = (0..xs.len())
        .map(|t| part(t, "k").chunks_exact(dim).map(|k| by_head(t, "k", k)).collect())
        .collect();
    let values: Vec<Vec<f64>> = (0..xs.len()).map(|t| part(t, "v")).collect();
    let token = |t: usize| {
        let mut y = Vec::new();
        for (head, both) in part(t, "q").chunks_exact(2 * dim).enumerate() {
            let (q, gate) = both.split_at(dim);
            let (q, kv) = (by_head(t, "q", q), head / (heads / kv_heads));
            let scale = 1.0 / (dim as f64).sqrt();
            let scores: Vec<f64> = (0..=t).map(|j| scale * dot(&q, &keys[j][kv])).collect();
            let values: Vec<&[f64]> = (0..=t).map(|j| &values[j][kv * dim..][..dim]).collect();
            y.extend(attend(&scores, &values).iter().zip(gate).map(|(o, gate)| o * sigmoid(*gate)));
        }
        m.project(&format!("{p}.o_proj.weight"), &y)
    };
    (0..xs.len()).map(token).collect()
}
