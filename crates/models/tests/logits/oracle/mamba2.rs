//! The reference of Mamba-2 models: only Mamba-2 mixers, each after a norm.

use super::*;

pub(super) fn logits(m: &Oracle, tokens: &[u32]) -> Vec<f64> {
    let (hidden, eps) = (m.count("hidden_size"), m.number("layer_norm_epsilon"));
    let table = m.tensor("backbone.embeddings.weight");
    let embed = |token: &u32| table[*token as usize * hidden..][..hidden].to_vec();
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(embed).collect();
    for layer in 0..m.count("num_hidden_layers") {
        let p = format!("backbone.layers.{layer}");
        let norm = m.tensor(&format!("{p}.norm.weight"));
        let normed: Vec<_> = xs.iter().map(|x| rms_norm(x, norm, eps)).collect();
        let shape = ["num_heads", "head_dim", "n_groups", "state_size"].map(|key| m.count(key));
        let mixed = granite::mamba_of(m, &format!("{p}.mixer"), &normed, shape, eps);
        xs.iter_mut().zip(mixed).for_each(|(x, mixed)| add(x, &mixed, 1.0));
    }
    let norm = m.tensor("backbone.norm_f.weight");
    xs.iter().flat_map(|x| m.project("lm_head.weight", &rms_norm(x, norm, eps))).collect()
}
