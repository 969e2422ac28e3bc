//! Gated delta nets and attention as in transformers' OLMo Hybrid.

use super::*;

pub(super) fn logits(m: &Oracle, tokens: &[u32]) -> Vec<f64> {
    let embed = |token: &u32| m.embedding(*token, m.count("hidden_size"));
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
    for layer in 0..m.count("num_hidden_layers") {
        let p = format!("model.layers.{layer}");
        let norm = |name: &str, x: &Vec<f64>| {
            rms_norm(x, m.tensor(&format!("{p}.{name}.weight")), m.number("rms_norm_eps"))
        };
        let forward = |x: &[f64]| {
            plain::gated(m, &format!("{p}.mlp"), ["gate_proj", "up_proj", "down_proj"], x)
        };
        if m.word("layer_types", layer) == "linear_attention" {
            let normed: Vec<_> = xs.iter().map(|x| norm("attention_layer_norm", x)).collect();
            for (x, mixed) in xs.iter_mut().zip(delta_net(m, &format!("{p}.linear_attn"), &normed))
            {
                add(x, &mixed, 1.0);
                let made = forward(&norm("feedforward_layer_norm", x));
                add(x, &made, 1.0);
            }
        } else {
            let mixed = attention(m, &format!("{p}.self_attn"), &xs);
            for (x, mixed) in xs.iter_mut().zip(mixed) {
                add(x, &norm("post_attention_layernorm", &mixed), 1.0);
                let made = norm("post_feedforward_layernorm", &forward(x));
                add(x, &made, 1.0);
            }
        }
    }
    plain::head(m, "model.norm", &xs)
}

fn delta_net(m: &Oracle, p: &str, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let (hk, hv) = (m.count("linear_num_key_heads"), m.count("linear_num_value_heads"));
    let (dk, dv) = (m.count("linear_key_head_dim"), m.count("linear_value_head_dim"));
    let part = |name: &str| -> Vec<Vec<f64>> {
        xs.iter().map(|x| m.project(&format!("{p}.{name}_proj.weight"), x)).collect()
    };
    let convolved =
        |name: &str| convolve(&part(name), m.tensor(&format!("{p}.{name}_conv1d.weight")), None);
    let [q, k, v] = ["q", "k", "v"].map(convolved);
    let [gates, strengths, decays] = ["g", "b", "a"].map(part);
    let (a_log, dt_bias) = (m.tensor(&format!("{p}.A_log")), m.tensor(&format!("{p}.dt_bias")));
    let weight = m.tensor(&format!("{p}.o_norm.weight"));
    let most = if m.config["linear_allow_neg_eigval"] == true { 2.0 } else { 1.0 };
    let unit = |x: &[f64]| -> Vec<f64> {
        let size = (dot(x, x) + 1e-6).sqrt();
        x.iter().map(|x| x / size).collect()
    };
    // [value heads][key channel][value channel]
    let mut states = vec![vec![vec![0.0; dv]; dk]; hv];
    let mut out = Vec::new();
    for t in 0..xs.len() {
        let mut y = Vec::new();
        for (head, state) in states.iter_mut().enumerate() {
            let key_head = head / (hv / hk);
            let (q, k) = (unit(&q[t][key_head * dk..][..dk]), unit(&k[t][key_head * dk..][..dk]));
            let v = &v[t][head * dv..][..dv];
            let beta = most * sigmoid(strengths[t][head]);
            let decay = (-a_log[head].exp() * softplus(decays[t][head] + dt_bias[head])).exp();
            state.iter_mut().flatten().for_each(|s| *s *= decay);
            for c in 0..dv {
                let seen: f64 = (0..dk).map(|i| k[i] * state[i][c]).sum();
                (0..dk).for_each(|i| state[i][c] += k[i] * beta * (v[c] - seen));
            }
            let read = |c: usize| (0..dk).map(|i| q[i] * state[i][c]).sum::<f64>();
            let o: Vec<f64> = (0..dv).map(|c| read(c) / (dk as f64).sqrt()).collect();
            let gates = &gates[t][head * dv..][..dv];
            let normed = rms_norm(&o, weight, 1e-5);
            y.extend(normed.iter().zip(gates).map(|(o, gate)| o * silu(*gate)));
        }
        out.push(m.project(&format!("{p}.o_proj.weight"), &y));
    }
    out
}

fn attention(m: &Oracle, p: &str, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let (heads, kv_heads) = (m.count("num_attention_heads"), m.count("num_key_value_heads"));
    let dim = m.count("hidden_size") / heads;
    let theta = m.config["rope_parameters"]["rope_theta"].as_f64();
    let made = |t: usize, name: &str| {
        let mut y = m.project(&format!("{p}.{name}_proj.weight"), &xs[t]);
        if let Some(bias) = m.tensors.get(&format!("{p}.{name}_proj.bias")) {
            add(&mut y, bias, 1.0);
        }
        y
    };
    let turned = |t: usize, name: &str| -> Vec<f64> {
        let norm = m.tensor(&format!("{p}.{name}_norm.weight"));
        let old = rms_norm(&made(t, name), norm, m.number("rms_norm_eps"));
        let Some(theta) = theta else { return old };
        let mut y = old.clone();
        for (old, y) in old.chunks(dim).zip(y.chunks_mut(dim)) {
            for i in 0..dim / 2 {
                let angle = t as f64 / theta.powf((2 * i) as f64 / dim as f64);
                y[i] = old[i] * angle.cos() - old[i + dim / 2] * angle.sin();
                y[i + dim / 2] = old[i + dim / 2] * angle.cos() + old[i] * angle.sin();
            }
        }
        y
    };
    let keys: Vec<Vec<f64>> = (0..xs.len()).map(|t| turned(t, "k")).collect();
    let values: Vec<Vec<f64>> = (0..xs.len()).map(|t| made(t, "v")).collect();
    let token = |t: usize| {
        let mut y = Vec::new();
        for (head, q) in turned(t, "q").chunks(dim).enumerate() {
            let kv = head / (heads / kv_heads) * dim;
            let score = |j: usize| dot(q, &keys[j][kv..][..dim]) / (dim as f64).sqrt();
            let scores: Vec<f64> = (0..=t).map(score).collect();
            let values: Vec<&[f64]> = (0..=t).map(|j| &values[j][kv..][..dim]).collect();
            y.extend(attend(&scores, &values));
        }
        let mut y = m.project(&format!("{p}.o_proj.weight"), &y);
        if let Some(bias) = m.tensors.get(&format!("{p}.o_proj.bias")) {
            add(&mut y, bias, 1.0);
        }
        y
    };
    (0..xs.len()).map(token).collect()
}
