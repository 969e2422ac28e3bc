//! Mamba and FalconMamba as in transformers' slow paths: only mixers, each with a norm.

use super::*;

pub(super) fn logits(m: &Oracle, tokens: &[u32]) -> Vec<f64> {
    let (hidden, eps) = (m.count("hidden_size"), m.number("layer_norm_epsilon"));
    let table = m.tensor("backbone.embeddings.weight");
    let embed = |token: &u32| table[*token as usize * hidden..][..hidden].to_vec();
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
    // FalconMamba's norms have no weights, and a separate epsilon.
    let plain = m.config["mixer_rms_eps"].as_f64();
    let norm = |_: &str, x: &[f64]| match plain {
        Some(eps) => rms_norm(x, &vec![1.0; x.len()], eps),
        None => x.to_vec(),
    };
    for layer in 0..m.count("num_hidden_layers") {
        let p = format!("backbone.layers.{layer}");
        let before = m.tensor(&format!("{p}.norm.weight"));
        let normed: Vec<_> = xs.iter().map(|x| rms_norm(x, before, eps)).collect();
        let mixed = mixer(m, &format!("{p}.mixer"), &normed, norm);
        xs.iter_mut().zip(mixed).for_each(|(x, mixed)| add(x, &mixed, 1.0));
    }
    let last = m.tensor("backbone.norm_f.weight");
    let tied = m.config["tie_word_embeddings"].as_bool().unwrap();
    let head = if tied { table } else { m.tensor("lm_head.weight") };
    xs.iter().flat_map(|x| product(head, &rms_norm(x, last, eps))).collect()
}

/// `W x`, plus the bias if there is one.
fn biased(m: &Oracle, p: &str, x: &[f64]) -> Vec<f64> {
    let mut y = m.project(&format!("{p}.weight"), x);
    if let Some(bias) = m.tensors.get(&format!("{p}.bias")) {
        add(&mut y, bias, 1.0);
    }
    y
}

/// Widths are those of the weights. `norm` is called for `dt`, `b` and `c`.
pub(super) fn mixer(
    m: &Oracle,
    p: &str,
    xs: &[Vec<f64>],
    norm: impl Fn(&str, &[f64]) -> Vec<f64>,
) -> Vec<Vec<f64>> {
    let [a_log, skip, bias] =
        ["A_log", "D", "dt_proj.bias"].map(|of| m.tensor(&format!("{p}.{of}")));
    let inner = skip.len();
    let n = a_log.len() / inner;
    let both: Vec<_> = xs.iter().map(|x| biased(m, &format!("{p}.in_proj"), x)).collect();
    let first: Vec<_> = both.iter().map(|row| row[..inner].to_vec()).collect();
    let conv_bias = m.tensors.get(&format!("{p}.conv1d.bias")).map(|bias| &bias[..]);
    let mixed = convolve(&first, m.tensor(&format!("{p}.conv1d.weight")), conv_bias);
    let mut state = vec![0.0; inner * n];
    let mut out = Vec::new();
    for (both, u) in both.iter().zip(&mixed) {
        let made = m.project(&format!("{p}.x_proj.weight"), u);
        let (dt, b_c) = made.split_at(made.len() - 2 * n);
        let dt = m.project(&format!("{p}.dt_proj.weight"), &norm("dt", dt));
        let (b, c) = (norm("b", &b_c[..n]), norm("c", &b_c[n..]));
        let mut y = vec![0.0; inner];
        for (channel, y) in y.iter_mut().enumerate() {
            let step = softplus(dt[channel] + bias[channel]);
            for at in 0..n {
                let rate = -a_log[channel * n + at].exp();
                let h = &mut state[channel * n + at];
                *h = (step * rate).exp() * *h + step * u[channel] * b[at];
                *y += *h * c[at];
            }
            *y = (*y + skip[channel] * u[channel]) * silu(both[inner + channel]);
        }
        out.push(biased(m, &format!("{p}.out_proj"), &y));
    }
    out
}
