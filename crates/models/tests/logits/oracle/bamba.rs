//! Granite's Mamba-2 mixer and attention layers that rotate half of each head.

use super::*;

pub(super) fn logits(m: &Oracle, tokens: &[u32]) -> Vec<f64> {
    let embed = |token: &u32| m.embedding(*token, m.count("hidden_size"));
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
    let attends = m.config["attn_layer_indices"].as_array().unwrap();
    for layer in 0..m.count("num_hidden_layers") {
        let p = format!("model.layers.{layer}");
        let normed = plain::normed(m, &p, &xs);
        let mixed = match attends.iter().any(|index| *index == layer) {
            true => plain::attention(m, &format!("{p}.self_attn"), &normed, usize::MAX),
            false => granite::mamba(m, &format!("{p}.mamba"), &normed),
        };
        for (x, mixed) in xs.iter_mut().zip(mixed) {
            add(x, &mixed, 1.0);
            let norm = m.tensor(&format!("{p}.pre_ff_layernorm.weight"));
            let h = rms_norm(x, norm, m.number("rms_norm_eps"));
            let names = ["gate_proj", "up_proj", "down_proj"];
            add(x, &plain::gated(m, &format!("{p}.feed_forward"), names, &h), 1.0);
        }
    }
    plain::head(m, "model.final_layernorm", &xs)
}
