//! Attention in every layer, as in transformers' Llama, Mistral, Mixtral, Phi-3, Qwen2, Qwen3, Qwen3-MoE, Granite and
//! Granite SWA, OLMo 3, GLM-4 and MiniMax M2.

use super::*;
use std::f64::consts::TAU;

pub(super) fn logits(m: &Oracle, tokens: &[u32]) -> Vec<f64> {
    let hidden = m.count("hidden_size");
    let kind = m.config["model_type"].as_str().unwrap();
    let multiplier = |key: &str| if kind.starts_with("granite") { m.number(key) } else { 1.0 };
    let residual = multiplier("residual_multiplier");
    let embed = |token: &u32| -> Vec<f64> {
        let scale = multiplier("embedding_multiplier");
        m.embedding(*token, hidden).iter().map(|x| x * scale).collect()
    };
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
    for layer in 0..m.count("num_hidden_layers") {
        let p = format!("model.layers.{layer}");
        let window = window(m, kind, layer);
        // Norms of the inputs of both parts, and of their outputs.
        let [before, after] = match kind {
            "olmo3" => [["", ""], ["post_attention_layernorm", "post_feedforward_layernorm"]],
            "glm4" => [INPUT_NORMS, ["post_self_attn_layernorm", "post_mlp_layernorm"]],
            _ => [INPUT_NORMS, ["", ""]],
        };
        let norm = |name: &str, x: &[f64]| match name {
            "" => x.to_vec(),
            _ => {
                let norm = m.tensor(&format!("{p}.{name}.weight"));
                rms_norm(x, norm, m.number("rms_norm_eps"))
            }
        };
        let inputs: Vec<Vec<f64>> = xs.iter().map(|x| norm(before[0], x)).collect();
        let mixed = attention(m, &format!("{p}.self_attn"), &inputs, window);
        for (x, mixed) in xs.iter_mut().zip(mixed) {
            add(x, &norm(after[0], &mixed), residual);
            let made = feed_forward(m, &p, kind, layer, &norm(before[1], x));
            add(x, &norm(after[1], &made), residual);
        }
    }
    head(m, "model.norm", &xs).into_iter().map(|x| x / multiplier("logits_scaling")).collect()
}

const INPUT_NORMS: [&str; 2] = ["input_layernorm", "post_attention_layernorm"];

pub(super) fn normed(m: &Oracle, p: &str, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let norm = m.tensor(&format!("{p}.input_layernorm.weight"));
    xs.iter().map(|x| rms_norm(x, norm, m.number("rms_norm_eps"))).collect()
}

pub(super) fn head(m: &Oracle, norm: &str, xs: &[Vec<f64>]) -> Vec<f64> {
    let tied = m.config["tie_word_embeddings"].as_bool().unwrap();
    let w = if tied { "model.embed_tokens.weight" } else { "lm_head.weight" };
    let norm = m.tensor(&format!("{norm}.weight"));
    let logits = |x: &Vec<f64>| m.project(w, &rms_norm(x, norm, m.number("rms_norm_eps")));
    xs.iter().flat_map(logits).collect()
}

/// The number of tokens that a query attends to, including its own.
fn window(m: &Oracle, kind: &str, layer: usize) -> usize {
    let config = &m.config;
    let slides = match kind {
        "mistral" | "mixtral" | "phi3" => true,
        "olmo3" | "granite_swa" => m.word("layer_types", layer) == "sliding_attention",
        "qwen2" | "qwen3" => {
            config["use_sliding_window"] == true && layer >= m.count("max_window_layers")
        }
        _ => false,
    };
    let window = config["sliding_window"].as_u64().filter(|_| slides);
    window.map_or(usize::MAX, |window| window as usize)
}

fn feed_forward(m: &Oracle, p: &str, kind: &str, layer: usize, h: &[f64]) -> Vec<f64> {
    let experts = m.config["num_experts"].as_u64().unwrap_or(0);
    let dense = m.config["mlp_only_layers"].as_array();
    let dense = dense.is_some_and(|dense| dense.iter().any(|index| *index == layer));
    if experts == 0 || dense {
        return match kind {
            "phi3" | "glm4" => {
                let both = m.project(&format!("{p}.mlp.gate_up_proj.weight"), h);
                let (gate, up) = both.split_at(both.len() / 2);
                m.project(&format!("{p}.mlp.down_proj.weight"), &swiglu(gate, up))
            }
            _ => gated(m, &format!("{p}.mlp"), ["gate_proj", "up_proj", "down_proj"], h),
        };
    }
    let (p, names) = match kind {
        "mixtral" | "minimax_m2" => (format!("{p}.block_sparse_moe"), ["w1", "w3", "w2"]),
        _ => (format!("{p}.mlp"), ["gate_proj", "up_proj", "down_proj"]),
    };
    // Softmax over all experts, or sigmoid and a bias for the choice; the weights of the chosen are divided by their sum.
    let logits = m.project(&format!("{p}.gate.weight"), h);
    let sum: f64 = logits.iter().map(|x| x.exp()).sum();
    let bias = m.tensors.get(&format!("{p}.e_score_correction_bias"));
    let weights: Vec<f64> = match bias {
        Some(_) => logits.iter().map(|x| sigmoid(*x)).collect(),
        None => logits.iter().map(|x| x.exp() / sum).collect(),
    };
    let mut scores = weights.clone();
    bias.into_iter().for_each(|bias| add(&mut scores, bias, 1.0));
    let chosen = largest(&scores, m.count("num_experts_per_tok"));
    let sum: f64 = chosen.iter().map(|e| weights[*e]).sum();
    let mut y = vec![0.0; h.len()];
    for e in chosen {
        add(&mut y, &gated(m, &format!("{p}.experts.{e}"), names, h), weights[e] / sum);
    }
    y
}

fn swiglu(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter().zip(up).map(|(gate, up)| silu(*gate) * up).collect()
}

pub(super) fn gated(m: &Oracle, p: &str, [gate, up, down]: [&str; 3], h: &[f64]) -> Vec<f64> {
    let [gate, up] = [gate, up].map(|name| m.project(&format!("{p}.{name}.weight"), h));
    m.project(&format!("{p}.{down}.weight"), &swiglu(&gate, &up))
}

pub(super) fn attention(m: &Oracle, p: &str, xs: &[Vec<f64>], window: usize) -> Vec<Vec<f64>> {
    let (heads, kv_heads) = (m.count("num_attention_heads"), m.count("num_key_value_heads"));
    let dim =
        m.config["head_dim"].as_u64().map_or(m.count("hidden_size") / heads, |dim| dim as usize);
    let scale = m.config["attention_multiplier"].as_f64().unwrap_or(1.0 / (dim as f64).sqrt());
    let (frequencies, factor) = match layer_rotation(m, p, window) {
        Some(theta) => {
            let plain = |i: usize| theta.powf(-((2 * i) as f64) / dim as f64);
            ((0..dim / 2).filter(|_| theta > 0.0).map(plain).collect(), 1.0)
        }
        None => rotation(m, dim),
    };
    let made = |t: usize| -> [Vec<f64>; 3] {
        let mut parts = match m.tensors.contains_key(&format!("{p}.qkv_proj.weight")) {
            true => {
                let mut q = m.project(&format!("{p}.qkv_proj.weight"), &xs[t]);
                let mut k = q.split_off(heads * dim);
                let v = k.split_off(kv_heads * dim);
                [q, k, v]
            }
            false => ["q", "k", "v"].map(|name| {
                let mut y = m.project(&format!("{p}.{name}_proj.weight"), &xs[t]);
                if let Some(bias) = m.tensors.get(&format!("{p}.{name}_proj.bias")) {
                    add(&mut y, bias, 1.0);
                }
                y
            }),
        };
        let key = m.config["key_multiplier"].as_f64().unwrap_or(1.0);
        parts[1].iter_mut().for_each(|k| *k *= key);
        for (part, name) in parts.iter_mut().zip(["q", "k"]) {
            let norms = ["norm", "layernorm"].map(|norm| format!("{p}.{name}_{norm}.weight"));
            if let Some(norm) = norms.iter().find_map(|norm| m.tensors.get(norm)) {
                let eps = m.config["rms_norm_eps"]
                    .as_f64()
                    .unwrap_or(m.config["norm_eps"].as_f64().unwrap_or(f64::NAN));
                // The norm of each head, or of all heads together.
                for heads in part.chunks_exact_mut(norm.len()) {
                    heads.copy_from_slice(&rms_norm(heads, norm, eps));
                }
            }
            for head in part.chunks_exact_mut(dim) {
                if m.config["model_type"] == "glm4" {
                    rotate_pairs(head, t, &frequencies);
                } else {
                    rotate(head, t, &frequencies, factor);
                }
            }
        }
        parts
    };
    let nothing = vec![0.0; dim];
    let all: Vec<[Vec<f64>; 3]> = (0..xs.len()).map(made).collect();
    let token = |t: usize| {
        let mut o = Vec::new();
        let seen: Vec<usize> = (0..=t).filter(|j| t - j < window).collect();
        for head in 0..heads {
            let q = &all[t][0][head * dim..][..dim];
            let kv = head / (heads / kv_heads) * dim;
            let mut scores: Vec<f64> =
                seen.iter().map(|j| scale * dot(q, &all[*j][1][kv..][..dim])).collect();
            let mut values: Vec<&[f64]> = seen.iter().map(|j| &all[*j][2][kv..][..dim]).collect();
            // A sink is an additional key without a value.
            if let Some(sinks) = m.tensors.get(&format!("{p}.sinks")) {
                scores.push(sinks[head]);
                values.push(&nothing);
            }
            o.extend(attend(&scores, &values));
        }
        let out = ["o_proj", "out_proj"].map(|out| format!("{p}.{out}.weight"));
        let mut y = product(out.iter().find_map(|out| m.tensors.get(out)).unwrap(), &o);
        if let Some(bias) = m.tensors.get(&format!("{p}.o_proj.bias")) {
            add(&mut y, bias, 1.0);
        }
        y
    };
    (0..xs.len()).map(token).collect()
}

/// `x cos + rotate_half(x) sin` of the first channels, with rotate_half(x) = [-second half, first half].
fn rotate(head: &mut [f64], position: usize, frequencies: &[f64], factor: f64) {
    let half = frequencies.len();
    for (i, frequency) in frequencies.iter().enumerate() {
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        let (low, high) = (head[i], head[i + half]);
        head[i] = factor * (low * cos - high * sin);
        head[i + half] = factor * (high * cos + low * sin);
    }
}

/// `x cos + rotate_half(x) sin` of adjacent channels, with rotate_half(x) = [-x1, x0, -x3, x2, ..].
fn rotate_pairs(head: &mut [f64], position: usize, frequencies: &[f64]) {
    for (pair, frequency) in head.chunks_exact_mut(2).zip(frequencies) {
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[1] * cos + pair[0] * sin);
    }
}

/// The base of a layer that has a rotation without the model's scaling: Granite SWA's list, where 0 is none, and OLMo
/// 3's layers with a window.
fn layer_rotation(m: &Oracle, p: &str, window: usize) -> Option<f64> {
    let layer: usize = p.split('.').nth(2)?.parse().ok()?;
    let base = m.config["layer_rope_theta"].get(layer).and_then(Value::as_f64);
    let plain = m.config["model_type"] == "olmo3" && window < usize::MAX;
    base.or(plain.then(|| m.number("rope_theta")))
}

/// Angles per position and the factor on cosines, computed from wavelengths as in transformers'
/// `modeling_rope_utils.py`.
fn rotation(m: &Oracle, dim: usize) -> (Vec<f64>, f64) {
    if m.config["model_type"] == "nemotron_h" || m.config["model_type"] == "jamba" {
        return (Vec::new(), 1.0);
    }
    let theta = m.number("rope_theta");
    let partial = match m.config["model_type"] == "bamba" {
        true => 0.5,
        false => m.config["partial_rotary_factor"].as_f64().unwrap_or(1.0),
    };
    let dim = (dim as f64 * partial) as usize;
    let plain: Vec<f64> =
        (0..dim / 2).map(|i| 1.0 / theta.powf((2 * i) as f64 / dim as f64)).collect();
    let scaling = &m.config["rope_scaling"];
    let number = |key: &str| scaling[key].as_f64().unwrap();
    match scaling["rope_type"].as_str().or(scaling["type"].as_str()) {
        None => (plain, 1.0),
        Some("linear") => (plain.iter().map(|f| f / number("factor")).collect(), 1.0),
        Some("llama3") => {
            let (low, high) = (number("low_freq_factor"), number("high_freq_factor"));
            let context = number("original_max_position_embeddings");
            let scaled = |f: &f64| {
                let length = TAU / f;
                if length < context / high {
                    *f
                } else if length > context / low {
                    f / number("factor")
                } else {
                    let smooth = (context / length - low) / (high - low);
                    (1.0 - smooth) * f / number("factor") + smooth * f
                }
            };
            (plain.iter().map(scaled).collect(), 1.0)
        }
        Some("yarn") => {
            let context = number("original_max_position_embeddings");
            let pair =
                |turns: f64| dim as f64 * (context / (turns * TAU)).ln() / (2.0 * theta.ln());
            let (low, high) = match scaling["truncate"].as_bool().unwrap_or(true) {
                true => (pair(32.0).floor(), pair(1.0).ceil()),
                false => (pair(32.0), pair(1.0)),
            };
            let (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
            let scaled = |(i, f): (usize, &f64)| {
                let kept = 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                f / number("factor") * (1.0 - kept) + f * kept
            };
            let factor = 0.1 * number("factor").ln() + 1.0;
            (plain.iter().enumerate().map(scaled).collect(), factor)
        }
        Some(other) => panic!("no rotation {other}"),
    }
}
