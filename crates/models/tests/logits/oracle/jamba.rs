//! Jamba as in transformers: Mamba with norms, attention layers without positions, and experts weighted by the softmax
//! over all of them.

use super::*;

pub(super) fn logits(m: &Oracle, tokens: &[u32]) -> Vec<f64> {
    let eps = m.number("rms_norm_eps");
    let embed = |token: &u32| m.embedding(*token, m.count("hidden_size"));
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
    let at = |layer: usize, kind: &str| {
        layer % m.count(&format!("{kind}_layer_period")) == m.count(&format!("{kind}_layer_offset"))
    };
    for layer in 0..m.count("num_hidden_layers") {
        let p = format!("model.layers.{layer}");
        let normed = plain::normed(m, &p, &xs);
        let mixed = match at(layer, "attn") {
            true => plain::attention(m, &format!("{p}.self_attn"), &normed, usize::MAX),
            false => mamba::mixer(m, &format!("{p}.mamba"), &normed, |of, x| {
                rms_norm(x, m.tensor(&format!("{p}.mamba.{of}_layernorm.weight")), eps)
            }),
        };
        let routed = at(layer, "expert") && m.count("num_experts") > 1;
        for (x, mixed) in xs.iter_mut().zip(mixed) {
            add(x, &mixed, 1.0);
            let h = rms_norm(x, m.tensor(&format!("{p}.pre_ff_layernorm.weight")), eps);
            add(x, &feed_forward(m, &format!("{p}.feed_forward"), routed, &h), 1.0);
        }
    }
    plain::head(m, "model.final_layernorm", &xs)
}

fn feed_forward(m: &Oracle, p: &str, routed: bool, h: &[f64]) -> Vec<f64> {
    let names = ["gate_proj", "up_proj", "down_proj"];
    if !routed {
        return plain::gated(m, p, names, h);
    }
    let logits = m.project(&format!("{p}.router.weight"), h);
    let sum: f64 = logits.iter().map(|x| x.exp()).sum();
    let mut y = vec![0.0; h.len()];
    for e in largest(&logits, m.count("num_experts_per_tok")) {
        let made = plain::gated(m, &format!("{p}.experts.{e}"), names, h);
        add(&mut y, &made, logits[e].exp() / sum);
    }
    y
}
