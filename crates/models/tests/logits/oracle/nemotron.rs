//! Nemotron-H as in transformers: one norm and one part per layer, no rotation, squared ReLU instead of gates.

use super::*;

pub(super) fn logits(m: &Oracle, tokens: &[u32]) -> Vec<f64> {
    let (hidden, eps) = (m.count("hidden_size"), m.number("layer_norm_epsilon"));
    let table = m.tensor("backbone.embeddings.weight");
    let embed = |token: &u32| table[*token as usize * hidden..][..hidden].to_vec();
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
    let pattern = m.config["hybrid_override_pattern"].as_str().unwrap();
    for (layer, letter) in pattern.chars().enumerate() {
        let p = format!("backbone.layers.{layer}");
        let norm = m.tensor(&format!("{p}.norm.weight"));
        let normed: Vec<_> = xs.iter().map(|x| rms_norm(x, norm, eps)).collect();
        let p = format!("{p}.mixer");
        let made: Vec<Vec<f64>> = match letter {
            'M' => {
                let keys = ["mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size"];
                granite::mamba_of(m, &p, &normed, keys.map(|key| m.count(key)), eps)
            }
            '*' => plain::attention(m, &p, &normed, usize::MAX),
            'E' => normed.iter().map(|h| experts(m, &p, h)).collect(),
            _ => normed.iter().map(|h| squares(m, &p, h)).collect(),
        };
        xs.iter_mut().zip(made).for_each(|(x, made)| add(x, &made, 1.0));
    }
    let norm = m.tensor("backbone.norm_f.weight");
    xs.iter().flat_map(|x| m.project("lm_head.weight", &rms_norm(x, norm, eps))).collect()
}

/// `down(relu(up h)^2)`.
fn squares(m: &Oracle, p: &str, h: &[f64]) -> Vec<f64> {
    let up = m.project(&format!("{p}.up_proj.weight"), h);
    let squares: Vec<f64> = up.into_iter().map(|x| if x > 0.0 { x * x } else { 0.0 }).collect();
    m.project(&format!("{p}.down_proj.weight"), &squares)
}

/// DeepSeek's router: chosen by sigmoid plus bias, weighted by the sigmoid. Experts may work on a narrower vector; the
/// shared expert and the router do not.
fn experts(m: &Oracle, p: &str, h: &[f64]) -> Vec<f64> {
    let logits = m.project(&format!("{p}.gate.weight"), h);
    let scores: Vec<f64> = logits.into_iter().map(sigmoid).collect();
    let bias = m.tensor(&format!("{p}.gate.e_score_correction_bias"));
    let ranked: Vec<f64> = scores.iter().zip(bias).map(|(score, bias)| score + bias).collect();
    let chosen = largest(&ranked, m.count("num_experts_per_tok"));
    let sum: f64 = match m.config["norm_topk_prob"].as_bool().unwrap() {
        true => chosen.iter().map(|e| scores[*e]).sum::<f64>() + 1e-20,
        false => 1.0,
    };
    let latent = m.config["moe_latent_size"].as_u64();
    let narrow = match latent {
        Some(_) => m.project(&format!("{p}.fc1_latent_proj.weight"), h),
        None => h.to_vec(),
    };
    let mut y = vec![0.0; narrow.len()];
    for e in chosen {
        let weight = scores[e] / sum * m.number("routed_scaling_factor");
        add(&mut y, &squares(m, &format!("{p}.experts.{e}"), &narrow), weight);
    }
    if latent.is_some() {
        y = m.project(&format!("{p}.fc2_latent_proj.weight"), &y);
    }
    add(&mut y, &squares(m, &format!("{p}.shared_experts"), h), 1.0);
    y
}
