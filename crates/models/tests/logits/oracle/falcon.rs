//! Falcon-H1 as in transformers: attention and a mixer of the same x, and multipliers nearly everywhere.

use super::*;

pub(super) fn logits(m: &Oracle, tokens: &[u32]) -> Vec<f64> {
    let scale = m.number("embedding_multiplier");
    let embed = |token: &u32| times(m.embedding(*token, m.count("hidden_size")), scale);
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
    for layer in 0..m.count("num_hidden_layers") {
        let p = format!("model.layers.{layer}");
        let normed = plain::normed(m, &p, &xs);
        let factor = m.number("attention_in_multiplier");
        let read: Vec<_> = normed.iter().map(|x| times(x.clone(), factor)).collect();
        let attended = plain::attention(m, &format!("{p}.self_attn"), &read, usize::MAX);
        let scanned = mixer(m, &format!("{p}.mamba"), &normed);
        for ((x, attended), scanned) in xs.iter_mut().zip(attended).zip(scanned) {
            add(x, &scanned, m.number("ssm_out_multiplier"));
            add(x, &attended, m.number("attention_out_multiplier"));
            let norm = m.tensor(&format!("{p}.pre_ff_layernorm.weight"));
            let h = rms_norm(x, norm, m.number("rms_norm_eps"));
            add(x, &feed_forward(m, &format!("{p}.feed_forward"), &h), 1.0);
        }
    }
    times(plain::head(m, "model.final_layernorm", &xs), m.number("lm_head_multiplier"))
}

fn times(x: Vec<f64>, factor: f64) -> Vec<f64> {
    x.into_iter().map(|x| factor * x).collect()
}

fn feed_forward(m: &Oracle, p: &str, h: &[f64]) -> Vec<f64> {
    let factor = |at: usize| m.config["mlp_multipliers"][at].as_f64().unwrap();
    let gate = times(m.project(&format!("{p}.gate_proj.weight"), h), factor(0));
    let up = m.project(&format!("{p}.up_proj.weight"), h);
    let inner: Vec<f64> = gate.iter().zip(&up).map(|(gate, up)| silu(*gate) * up).collect();
    times(m.project(&format!("{p}.down_proj.weight"), &inner), factor(1))
}

fn mixer(m: &Oracle, p: &str, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let keys = ["mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state"];
    let [heads, dim, groups, n] = keys.map(|key| m.count(key));
    let inner = heads * dim;
    // Gate, x, B, C and step sizes.
    let widths = [inner, inner, groups * n, groups * n, heads];
    let projected = |x: &Vec<f64>| {
        let x = times(x.clone(), m.number("ssm_in_multiplier"));
        let mut row = m.project(&format!("{p}.in_proj.weight"), &x);
        let mut first = 0;
        for (part, width) in widths.iter().enumerate() {
            let factor = m.config["ssm_multipliers"][part].as_f64().unwrap();
            row[first..first + width].iter_mut().for_each(|y| *y *= factor);
            first += width;
        }
        row
    };
    let rows: Vec<Vec<f64>> = xs.iter().map(projected).collect();
    let channels = inner + 2 * groups * n;
    let middle: Vec<_> = rows.iter().map(|row| row[inner..inner + channels].to_vec()).collect();
    let taps = m.tensor(&format!("{p}.conv1d.weight"));
    let mixed = convolve(&middle, taps, Some(m.tensor(&format!("{p}.conv1d.bias"))));
    let [a_log, skip, bias] = ["A_log", "D", "dt_bias"].map(|of| m.tensor(&format!("{p}.{of}")));
    let mut state = vec![0.0; inner * n];
    let mut out = Vec::new();
    for (row, mixed) in rows.iter().zip(&mixed) {
        let mut y = vec![0.0; inner];
        for (at, y) in y.iter_mut().enumerate() {
            let head = at / dim;
            let group = head * groups / heads;
            let dt = softplus(row[inner + channels + head] + bias[head]);
            let (b, c) =
                (&mixed[inner + group * n..][..n], &mixed[inner + (groups + group) * n..][..n]);
            let h = &mut state[at * n..][..n];
            for (h, b) in h.iter_mut().zip(b) {
                *h = (-a_log[head].exp() * dt).exp() * *h + dt * mixed[at] * b;
            }
            *y = dot(h, c) + skip[head] * mixed[at];
        }
        out.push(m.project(&format!("{p}.out_proj.weight"), &gate(m, p, y, &row[..inner], groups)));
    }
    out
}

/// A norm of each group before or after the gate, or the gate alone.
fn gate(m: &Oracle, p: &str, mut y: Vec<f64>, gate: &[f64], groups: usize) -> Vec<f64> {
    let flag = |key: &str| m.config[key].as_bool().unwrap();
    let gated = |y: &mut [f64]| y.iter_mut().zip(gate).for_each(|(y, gate)| *y *= silu(*gate));
    let normed = flag("mamba_rms_norm");
    let before = normed && flag("mamba_norm_before_gate");
    if !before {
        gated(&mut y);
    }
    if normed {
        let (weight, width) = (m.tensor(&format!("{p}.norm.weight")), y.len() / groups);
        for (part, weight) in y.chunks_mut(width).zip(weight.chunks(width)) {
            let normed = rms_norm(part, weight, m.number("rms_norm_eps"));
            part.copy_from_slice(&normed);
        }
    }
    if before {
        gated(&mut y);
    }
    y
}
