//! gpt-oss as in transformers: attention sinks, and experts with interleaved gate and up rows.

use super::*;

/// The value of 4 bits: a sign, two exponent bits, one mantissa bit.
fn e2m1(bits: usize) -> f64 {
    let (exponent, mantissa) = (bits >> 1 & 3, (bits & 1) as f64);
    let size = match exponent {
        0 => mantissa / 2.0,
        _ => 2f64.powi(exponent as i32 - 1) * (1.0 + mantissa / 2.0),
    };
    if bits & 8 == 0 { size } else { -size }
}

pub(super) fn logits(m: &Oracle, tokens: &[u32]) -> Vec<f64> {
    let embed = |token: &u32| m.embedding(*token, m.count("hidden_size"));
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
    for layer in 0..m.count("num_hidden_layers") {
        let p = format!("model.layers.{layer}");
        let window = match m.word("layer_types", layer) {
            "sliding_attention" => m.count("sliding_window"),
            _ => usize::MAX,
        };
        let normed = plain::normed(m, &p, &xs);
        let mixed = plain::attention(m, &format!("{p}.self_attn"), &normed, window);
        for (x, mixed) in xs.iter_mut().zip(mixed) {
            add(x, &mixed, 1.0);
            let norm = m.tensor(&format!("{p}.post_attention_layernorm.weight"));
            let h = rms_norm(x, norm, m.number("rms_norm_eps"));
            add(x, &experts(m, &format!("{p}.mlp"), &h), 1.0);
        }
    }
    plain::head(m, "model.norm", &xs)
}

/// Top-k of the biased logits, softmax over these k.
fn experts(m: &Oracle, p: &str, h: &[f64]) -> Vec<f64> {
    let mut logits = m.project(&format!("{p}.router.weight"), h);
    add(&mut logits, m.tensor(&format!("{p}.router.bias")), 1.0);
    let chosen = largest(&logits, m.count("num_experts_per_tok"));
    let sum: f64 = chosen.iter().map(|e| logits[*e].exp()).sum();
    let (inner, limit) = (m.count("intermediate_size"), m.number("swiglu_limit"));
    let mut y = vec![0.0; h.len()];
    for e in chosen {
        let both = multiplied(m, &format!("{p}.experts.gate_up_proj"), e, h, 2 * inner);
        let pair = |pair: &[f64]| {
            let (gate, up) = (pair[0].min(limit), pair[1].max(-limit).min(limit));
            (up + 1.0) * gate * sigmoid(1.702 * gate)
        };
        let made: Vec<f64> = both.chunks(2).map(pair).collect();
        let made = multiplied(m, &format!("{p}.experts.down_proj"), e, &made, h.len());
        add(&mut y, &made, logits[e].exp() / sum);
    }
    y
}

/// `x W + b` of an expert, W `[inputs, outputs]`, or in MXFP4 `[outputs, inputs]`.
fn multiplied(m: &Oracle, name: &str, e: usize, x: &[f64], outputs: usize) -> Vec<f64> {
    let inputs = x.len();
    let weight = |o: usize, i: usize| match m.tensors.get(name) {
        Some(all) => all[(e * inputs + i) * outputs + o],
        None => {
            let at = (e * outputs + o) * inputs + i;
            let byte = m.tensor(&format!("{name}_blocks"))[at / 2] as usize;
            let scale = m.tensor(&format!("{name}_scales"))[at / 32];
            e2m1(byte >> (at % 2 * 4) & 15) * 2f64.powi(scale as i32 - 127)
        }
    };
    let bias = &m.tensor(&format!("{name}_bias"))[e * outputs..][..outputs];
    let output = |o: usize| bias[o] + (0..inputs).map(|i| x[i] * weight(o, i)).sum::<f64>();
    (0..outputs).map(output).collect()
}
