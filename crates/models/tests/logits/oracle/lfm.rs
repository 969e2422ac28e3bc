//! LFM2 as in transformers: a short convolution between two products, or attention with norms of queries and keys.

use super::*;

pub(super) fn logits(m: &Oracle, tokens: &[u32]) -> Vec<f64> {
    let eps = m.number("norm_eps");
    let embed = |token: &u32| m.embedding(*token, m.count("hidden_size"));
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
    for layer in 0..m.count("num_hidden_layers") {
        let p = format!("model.layers.{layer}");
        let norm = m.tensor(&format!("{p}.operator_norm.weight"));
        let normed: Vec<_> = xs.iter().map(|x| rms_norm(x, norm, eps)).collect();
        let mixed = match m.word("layer_types", layer) {
            "conv" => short_conv(m, &format!("{p}.conv"), &normed),
            _ => plain::attention(m, &format!("{p}.self_attn"), &normed, usize::MAX),
        };
        for (x, mixed) in xs.iter_mut().zip(mixed) {
            add(x, &mixed, 1.0);
            let h = rms_norm(x, m.tensor(&format!("{p}.ffn_norm.weight")), eps);
            add(x, &feed_forward(m, &format!("{p}.feed_forward"), &h), 1.0);
        }
    }
    let norm = m.tensor("model.embedding_norm.weight");
    let tied = m.config["tie_embedding"].as_bool().unwrap_or(true);
    let tied = m.config["tie_word_embeddings"].as_bool().unwrap_or(tied);
    let head = if tied { "model.embed_tokens.weight" } else { "lm_head.weight" };
    xs.iter().flat_map(|x| m.project(head, &rms_norm(x, norm, eps))).collect()
}

/// `out(C_t * sum_w k_w (B x)_(t - taps + 1 + w))`.
fn short_conv(m: &Oracle, p: &str, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let biased = |name: &str, x: &[f64]| {
        let mut y = m.project(&format!("{p}.{name}.weight"), x);
        if let Some(bias) = m.tensors.get(&format!("{p}.{name}.bias")) {
            add(&mut y, bias, 1.0);
        }
        y
    };
    let made: Vec<Vec<f64>> = xs.iter().map(|x| biased("in_proj", x)).collect();
    let (width, taps) = (xs[0].len(), m.tensor(&format!("{p}.conv.weight")));
    let bias = m.tensors.get(&format!("{p}.conv.bias"));
    let count = taps.len() / width;
    let token = |t: usize| {
        let channel = |c: usize| {
            let mut sum = bias.map_or(0.0, |bias| bias[c]);
            for w in (0..count).filter(|w| t + w + 1 >= count) {
                let row = &made[t + w + 1 - count];
                sum += taps[c * count + w] * row[c] * row[2 * width + c];
            }
            made[t][width + c] * sum
        };
        biased("out_proj", &(0..width).map(channel).collect::<Vec<_>>())
    };
    (0..xs.len()).map(token).collect()
}

fn feed_forward(m: &Oracle, p: &str, h: &[f64]) -> Vec<f64> {
    let names = ["w1", "w3", "w2"];
    let Some(router) = m.tensors.get(&format!("{p}.gate.weight")) else {
        return plain::gated(m, p, names, h);
    };
    let scores: Vec<f64> = product(router, h).into_iter().map(sigmoid).collect();
    let bias = m.tensor(&format!("{p}.expert_bias"));
    let ranked: Vec<f64> = scores.iter().zip(bias).map(|(score, bias)| score + bias).collect();
    let chosen = largest(&ranked, m.count("num_experts_per_tok"));
    let sum: f64 = chosen.iter().map(|e| scores[*e]).sum::<f64>() + 1e-6;
    let mut y = vec![0.0; h.len()];
    for e in chosen {
        let weight = scores[e] / sum * m.number("routed_scaling_factor");
        add(&mut y, &plain::gated(m, &format!("{p}.experts.{e}"), names, h), weight);
    }
    y
}
