use super::*;

pub(super) fn logits(m: &Oracle, tokens: &[u32]) -> Vec<f64> {
    let hidden = m.count("hidden_size");
    let eps = m.number("rms_norm_eps");
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(|token| m.embedding(*token, hidden)).collect();
    let full = m.config["linear_attn_config"]["full_attn_layers"].as_array().unwrap();
    for layer in 0..m.count("num_hidden_layers") {
        let p = format!("model.layers.{layer}");
        let norm = m.tensor(&format!("{p}.input_layernorm.weight"));
        let normed: Vec<_> = xs.iter().map(|x| rms_norm(x, norm, eps)).collect();
        // The list counts from 1.
        let mixed = match full.contains(&Value::from(layer + 1)) {
            true => latent_attention(m, &format!("{p}.self_attn"), &normed),
            false => delta_attention(m, &format!("{p}.self_attn"), &normed),
        };
        let norm = m.tensor(&format!("{p}.post_attention_layernorm.weight"));
        for (x, mixed) in xs.iter_mut().zip(mixed) {
            add(x, &mixed, 1.0);
            let h = rms_norm(x, norm, eps);
            let names = ["gate_proj", "up_proj", "down_proj"];
            if layer < m.count("first_k_dense_replace") {
                add(x, &gated(m, &format!("{p}.mlp"), names, &h), 1.0);
            } else {
                let p = format!("{p}.block_sparse_moe");
                add(x, &experts(m, &p, &h), 1.0);
                add(x, &gated(m, &format!("{p}.shared_experts"), names, &h), 1.0);
            }
        }
    }
    let norm = m.tensor("model.norm.weight");
    xs.iter().flat_map(|x| m.project("lm_head.weight", &rms_norm(x, norm, eps))).collect()
}

fn gated(m: &Oracle, p: &str, [gate, up, down]: [&str; 3], h: &[f64]) -> Vec<f64> {
    let gate = m.project(&format!("{p}.{gate}.weight"), h);
    let up = m.project(&format!("{p}.{up}.weight"), h);
    let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| silu(*g) * u).collect();
    m.project(&format!("{p}.{down}.weight"), &inner)
}

/// Chosen by score plus bias, mixed by the score without it.
fn experts(m: &Oracle, p: &str, h: &[f64]) -> Vec<f64> {
    let scores: Vec<f64> =
        m.project(&format!("{p}.gate.weight"), h).into_iter().map(sigmoid).collect();
    let bias = m.tensor(&format!("{p}.gate.e_score_correction_bias"));
    let ranked: Vec<f64> = scores.iter().zip(bias).map(|(score, bias)| score + bias).collect();
    let chosen = largest(&ranked, m.count("num_experts_per_token"));
    let sum: f64 = chosen.iter().map(|e| scores[*e]).sum();
    let mut y = vec![0.0; h.len()];
    for e in chosen {
        let made = gated(m, &format!("{p}.experts.{e}"), ["w1", "w3", "w2"], h);
        add(&mut y, &made, scores[e] / (sum + 1e-20) * m.number("routed_scaling_factor"));
    }
    y
}

/// Keys and values of every head expanded from the latent vector, as the checkpoint's names suggest.
fn latent_attention(m: &Oracle, p: &str, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let heads = m.count("num_attention_heads");
    let (rank, nope) = (m.count("kv_lora_rank"), m.count("qk_nope_head_dim"));
    let (shared, value) = (m.count("qk_rope_head_dim"), m.count("v_head_dim"));
    let dim = nope + shared;
    let scale = (dim as f64).powf(-0.5);
    let norm = m.tensor(&format!("{p}.kv_a_layernorm.weight"));
    let (mut keys, mut values, mut queries) = (Vec::new(), Vec::new(), Vec::new());
    for x in xs {
        queries.push(m.project(&format!("{p}.q_proj.weight"), x));
        let compressed = m.project(&format!("{p}.kv_a_proj_with_mqa.weight"), x);
        let latent = rms_norm(&compressed[..rank], norm, 1e-6);
        let expanded = m.project(&format!("{p}.kv_b_proj.weight"), &latent);
        let (mut key, mut own) = (Vec::new(), Vec::new());
        for head in expanded.chunks_exact(nope + value) {
            key.extend(&head[..nope]);
            key.extend(&compressed[rank..]);
            own.extend(&head[nope..]);
        }
        keys.push(key);
        values.push(own);
    }
    let token = |t: usize| {
        let mut o = Vec::new();
        for head in 0..heads {
            let own = head * dim..(head + 1) * dim;
            let scores: Vec<f64> = (0..=t)
                .map(|j| scale * dot(&queries[t][own.clone()], &keys[j][own.clone()]))
                .collect();
            let seen: Vec<&[f64]> = (0..=t).map(|j| &values[j][head * value..][..value]).collect();
            o.extend(attend(&scores, &seen));
        }
        m.project(&format!("{p}.o_proj.weight"), &o)
    };
    (0..xs.len()).map(token).collect()
}

/// `S <- Diag(e^g) S; S <- S + beta k (v - k^T S)^T; o = (K^-1/2 q)^T S` of each head.
fn delta_attention(m: &Oracle, p: &str, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let linear = &m.config["linear_attn_config"];
    let heads = linear["num_heads"].as_u64().unwrap() as usize;
    let dim = linear["head_dim"].as_u64().unwrap() as usize;
    let conv = |part: &str| {
        let made: Vec<_> =
            xs.iter().map(|x| m.project(&format!("{p}.{part}_proj.weight"), x)).collect();
        convolve(&made, m.tensor(&format!("{p}.{part}_conv1d.weight")), None)
    };
    let (q, k, v) = (conv("q"), conv("k"), conv("v"));
    let low_rank = |part: &str, x: &[f64]| {
        let low = m.project(&format!("{p}.{part}_a_proj.weight"), x);
        m.project(&format!("{p}.{part}_b_proj.weight"), &low)
    };
    let a_log = m.tensor(&format!("{p}.A_log"));
    let bias = m.tensor(&format!("{p}.dt_bias"));
    let norm = m.tensor(&format!("{p}.o_norm.weight"));
    let unit = |x: &[f64]| -> Vec<f64> {
        let length = (dot(x, x) + 1e-6).sqrt();
        x.iter().map(|x| x / length).collect()
    };
    let mut states = vec![vec![vec![0.0; dim]; dim]; heads]; // [head][key channel][value channel]
    let mut out = Vec::new();
    for (t, x) in xs.iter().enumerate() {
        let decay = low_rank("f", x);
        let gate = low_rank("g", x);
        let strength = m.project(&format!("{p}.b_proj.weight"), x);
        let mut all = Vec::new();
        for (head, state) in states.iter_mut().enumerate() {
            let own = head * dim..(head + 1) * dim;
            let (q, k, v) = (unit(&q[t][own.clone()]), unit(&k[t][own.clone()]), &v[t][own]);
            let mut recalled = vec![0.0; dim];
            for c in 0..dim {
                let at = head * dim + c;
                let g = -a_log[head].exp() * softplus(decay[at] + bias[at]);
                state[c].iter_mut().for_each(|s| *s *= g.exp());
                add(&mut recalled, &state[c], k[c]);
            }
            let beta = sigmoid(strength[head]);
            let mut o = vec![0.0; dim];
            for c in 0..dim {
                for (s, (v, recalled)) in state[c].iter_mut().zip(v.iter().zip(&recalled)) {
                    *s += beta * k[c] * (v - recalled);
                }
                add(&mut o, &state[c], q[c] * (dim as f64).powf(-0.5));
            }
            let o = rms_norm(&o, norm, m.number("rms_norm_eps"));
            let gate = &gate[head * dim..][..dim];
            all.extend(o.iter().zip(gate).map(|(o, gate)| o * sigmoid(*gate)));
        }
        out.push(m.project(&format!("{p}.o_proj.weight"), &all));
    }
    out
}
