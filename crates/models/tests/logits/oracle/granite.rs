use super::*;

pub(super) fn logits(m: &Oracle, tokens: &[u32]) -> Vec<f64> {
    let hidden = m.count("hidden_size");
    let eps = m.number("rms_norm_eps");
    let residual = m.number("residual_multiplier");
    let embed = |token: &u32| -> Vec<f64> {
        let scale = m.number("embedding_multiplier");
        m.embedding(*token, hidden).iter().map(|x| x * scale).collect()
    };
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
    for layer in 0..m.count("num_hidden_layers") {
        let p = format!("model.layers.{layer}");
        let norm = m.tensor(&format!("{p}.input_layernorm.weight"));
        let normed: Vec<_> = xs.iter().map(|x| rms_norm(x, norm, eps)).collect();
        let mixed = match m.word("layer_types", layer) {
            "mamba" => mamba(m, &format!("{p}.mamba"), &normed),
            _ => attention(m, &format!("{p}.self_attn"), &normed),
        };
        let norm = m.tensor(&format!("{p}.post_attention_layernorm.weight"));
        for (x, mixed) in xs.iter_mut().zip(mixed) {
            add(x, &mixed, residual);
            let h = rms_norm(x, norm, eps);
            if m.count("num_local_experts") > 0 {
                add(x, &experts(m, &format!("{p}.block_sparse_moe"), &h), residual);
            }
            let input = m.tensor(&format!("{p}.shared_mlp.input_linear.weight"));
            let output = m.tensor(&format!("{p}.shared_mlp.output_linear.weight"));
            add(x, &gated(input, output, &h), residual);
        }
    }
    let norm = m.tensor("model.norm.weight");
    let divisor = m.number("logits_scaling");
    let head = |x: &Vec<f64>| {
        let logits = m.project("model.embed_tokens.weight", &rms_norm(x, norm, eps));
        logits.into_iter().map(|x| x / divisor).collect::<Vec<f64>>()
    };
    xs.iter().flat_map(head).collect()
}

/// Fused halves: the gate's rows first, then up's.
fn gated(input: &[f64], output: &[f64], h: &[f64]) -> Vec<f64> {
    let both = product(input, h);
    let (gate, up) = both.split_at(both.len() / 2);
    let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| silu(*g) * u).collect();
    product(output, &inner)
}

/// Top-k of the raw logits, softmax over these k.
fn experts(m: &Oracle, p: &str, h: &[f64]) -> Vec<f64> {
    let (count, inner) = (m.count("num_local_experts"), m.count("intermediate_size"));
    let input = m.tensor(&format!("{p}.input_linear.weight"));
    let output = m.tensor(&format!("{p}.output_linear.weight"));
    let logits = m.project(&format!("{p}.router.layer.weight"), h);
    assert_eq!(logits.len(), count);
    let chosen = largest(&logits, m.count("num_experts_per_tok"));
    let sum: f64 = chosen.iter().map(|e| logits[*e].exp()).sum();
    let mut y = vec![0.0; h.len()];
    let (in_size, out_size) = (2 * inner * h.len(), h.len() * inner);
    for e in chosen {
        let made = gated(&input[e * in_size..][..in_size], &output[e * out_size..][..out_size], h);
        add(&mut y, &made, logits[e].exp() / sum);
    }
    y
}

fn attention(m: &Oracle, p: &str, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let (heads, kv_heads) = (m.count("num_attention_heads"), m.count("num_key_value_heads"));
    let dim = m.count("hidden_size") / heads;
    let scale = m.number("attention_multiplier");
    let rope = m.config["position_embedding_type"] == "rope";
    let theta = m.number("rope_theta");
    let project = |name: &str, rotated: bool| -> Vec<Vec<f64>> {
        let name = format!("{p}.{name}_proj.weight");
        let rows = xs.iter().enumerate().map(|(t, x)| {
            let mut row = m.project(&name, x);
            if rotated {
                row.chunks_exact_mut(dim).for_each(|head| rotate(head, t, theta));
            }
            row
        });
        rows.collect()
    };
    let (q, k, v) = (project("q", rope), project("k", rope), project("v", false));
    let token = |t: usize| {
        let mut o = Vec::new();
        for head in 0..heads {
            let own = head * dim..(head + 1) * dim;
            let kv = head / (heads / kv_heads);
            let kv = kv * dim..(kv + 1) * dim;
            // A query attends to itself and everything before it.
            let scores: Vec<f64> =
                (0..=t).map(|j| scale * dot(&q[t][own.clone()], &k[j][kv.clone()])).collect();
            let values: Vec<&[f64]> = (0..=t).map(|j| &v[j][kv.clone()]).collect();
            o.extend(attend(&scores, &values));
        }
        m.project(&format!("{p}.o_proj.weight"), &o)
    };
    (0..xs.len()).map(token).collect()
}

/// `x cos + rotate_half(x) sin`, with rotate_half(x) = [-second half, first half].
fn rotate(head: &mut [f64], position: usize, theta: f64) {
    let dim = head.len();
    let old = head.to_vec();
    for i in 0..dim {
        let pair = i % (dim / 2);
        let angle = position as f64 / theta.powf(2.0 * pair as f64 / dim as f64);
        let half = if i < dim / 2 { -old[i + dim / 2] } else { old[i - dim / 2] };
        head[i] = old[i] * angle.cos() + half * angle.sin();
    }
}

pub(super) fn mamba(m: &Oracle, p: &str, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let keys = ["mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state"];
    mamba_of(m, p, xs, keys.map(|key| m.count(key)), m.number("rms_norm_eps"))
}

/// Given the heads, their channels, groups, and the channels of a group's B and C.
pub(super) fn mamba_of(
    m: &Oracle,
    p: &str,
    xs: &[Vec<f64>],
    [heads, dim, groups, n]: [usize; 4],
    eps: f64,
) -> Vec<Vec<f64>> {
    let inner = heads * dim;
    let channels = inner + 2 * groups * n;
    let projected: Vec<Vec<f64>> =
        xs.iter().map(|x| m.project(&format!("{p}.in_proj.weight"), x)).collect();
    let middle: Vec<Vec<f64>> =
        projected.iter().map(|row| row[inner..inner + channels].to_vec()).collect();
    let convolved = convolve(
        &middle,
        m.tensor(&format!("{p}.conv1d.weight")),
        Some(m.tensor(&format!("{p}.conv1d.bias"))),
    );
    let a_log = m.tensor(&format!("{p}.A_log"));
    let skip = m.tensor(&format!("{p}.D"));
    let bias = m.tensor(&format!("{p}.dt_bias"));
    let norm = m.tensor(&format!("{p}.norm.weight"));
    let mut state = vec![0.0; heads * dim * n];
    let mut out = Vec::new();
    for (row, mixed) in projected.iter().zip(&convolved) {
        let mut y = vec![0.0; inner];
        for head in 0..heads {
            let group = head / (heads / groups);
            let b = &mixed[inner + group * n..][..n];
            let c = &mixed[inner + (groups + group) * n..][..n];
            let dt = softplus(row[inner + channels + head] + bias[head]);
            let decay = (-a_log[head].exp() * dt).exp();
            for i in 0..dim {
                let x = mixed[head * dim + i];
                let h = &mut state[(head * dim + i) * n..][..n];
                h.iter_mut().zip(b).for_each(|(h, b)| *h = decay * *h + dt * x * b);
                y[head * dim + i] = dot(h, c) + skip[head] * x;
            }
        }
        // The gate is applied before the norm, which normalizes each group of heads.
        y.iter_mut().zip(&row[..inner]).for_each(|(y, gate)| *y *= silu(*gate));
        let width = inner / groups;
        let normed: Vec<f64> = (0..groups)
            .flat_map(|g| {
                let part = g * width..(g + 1) * width;
                rms_norm(&y[part.clone()], &norm[part], eps)
            })
            .collect();
        out.push(m.project(&format!("{p}.out_proj.weight"), &normed));
    }
    out
}
