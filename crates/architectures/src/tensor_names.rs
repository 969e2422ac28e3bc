//! Alternative tensor names in checkpoints.
//!
//! transformers saves a model under its published names, or (`save_original_format=False`) under the names of its
//! classes; a base model's names have no prefix. A family declares the published names; the checkpoint's names are
//! looked up here.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The names and shapes of a checkpoint's tensors.
#[derive(Debug, Clone, Default)]
pub struct TensorShapes(Arc<BTreeMap<String, Vec<usize>>>);

/// Equivalent name prefixes.
const PREFIXES: &[&[&str]] = &[
    &[
        "model.language_model.",
        "model.text_model.",
        "language_model.model.",
        "model.",
        "backbone.",
        "language_model.",
        "",
    ],
    &["lm_head.", "language_model.lm_head.", "model.lm_head."],
];

/// Equivalent parts of names: modules of feed-forward parts, routers, projections and embeddings.
const PARTS: &[&[&str]] = &[
    &[".block_sparse_moe.", ".mlp.", ".feed_forward.", ".mixer."],
    &[".router.layer.", ".router.gate.", ".router.", ".gate."],
    &[".gate.e_score_correction_bias", ".e_score_correction_bias", ".expert_bias"],
    &[".shared_experts.", ".shared_mlp."],
    &[".self_attn.", ".self_attn.forget_gate."],
    // transformers 5.24 saves the layers of Kimi K2.5's language model under the name of its encoder's.
    &[".layers.", ".blocks."],
    &[".w1.", ".gate_proj."],
    &[".w3.", ".up_proj."],
    &[".w2.", ".down_proj."],
];

impl TensorShapes {
    /// The shapes of these tensors.
    pub fn new(shapes: impl IntoIterator<Item = (String, Vec<usize>)>) -> Self {
        Self(Arc::new(shapes.into_iter().collect()))
    }

    /// The shape of a tensor.
    pub(crate) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// The checkpoint's name of a tensor; its published name if the checkpoint has no known spelling.
    pub(crate) fn present_key(&self, name: String) -> String {
        if self.0.is_empty() || self.0.contains_key(&name) {
            return name;
        }
        let found = spellings(&name).into_iter().find(|name| self.0.contains_key(name));
        found.unwrap_or(name)
    }
}

/// Every spelling of a name, or of a prefix of it that ends at a dot, the published one first.
pub(crate) fn spellings(name: &str) -> Vec<String> {
    let mut all = vec![name.to_owned()];
    for group in PARTS {
        for nth in 0..all.len() {
            let Some(part) = group.iter().find(|part| all[nth].contains(**part)) else { continue };
            let others = group.iter().filter(|other| *other != part);
            let others: Vec<String> =
                others.map(|other| all[nth].replacen(part, other, 1)).collect();
            all.extend(others);
        }
    }
    for group in PREFIXES {
        let Some(prefix) = group.iter().find(|prefix| name.starts_with(**prefix)) else { continue };
        let others = group.iter().filter(|other| *other != prefix);
        let renamed: Vec<String> = others
            .flat_map(|other| {
                all.iter().map(move |name| format!("{other}{}", &name[prefix.len()..]))
            })
            .collect();
        all.extend(renamed);
        break;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, there: &[&str], wanted: &str) {
        let shapes = TensorShapes::new(there.iter().map(|name| ((*name).to_owned(), vec![1])));
        assert_eq!(shapes.present_key(name.to_owned()), wanted);
    }

    #[test]
    fn names_of_other_savers_are_found() {
        let gate = "model.layers.1.block_sparse_moe.gate.weight";
        check(gate, &["model.layers.1.mlp.gate.weight"], "model.layers.1.mlp.gate.weight");
        check(gate, &["layers.1.mlp.router.weight"], "layers.1.mlp.router.weight");
        let embedding = "model.embed_tokens.weight";
        check(embedding, &["embed_tokens.weight"], "embed_tokens.weight");
        check("backbone.norm_f.weight", &["model.norm_f.weight"], "model.norm_f.weight");
        let down = "model.layers.0.mlp.down_proj.weight";
        let saved = "model.layers.0.block_sparse_moe.down_proj.weight";
        check(down, &[saved], saved);
    }

    #[test]
    fn a_name_that_is_there_or_nowhere_is_kept() {
        let name = "model.norm.weight";
        check(name, &[name, "norm.weight"], name);
        check(name, &["model.norm2.weight"], name);
        check(name, &[], name);
    }
}
