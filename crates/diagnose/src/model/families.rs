//! The model families, one file each: the names they go by in config.json, and how their keys give the layers.

use super::config::{Config, Wrong};
use super::layer::{Layer, LayerKind, Size, product};
use super::parts;

mod bamba;
mod falcon_h1;
mod granite_hybrid;
mod jamba;
mod kimi_linear;
mod mamba;
mod mamba2;
mod nemotron_h;
mod plain_attention;
mod qwen3_next;

/// Every family. Plain attention takes whatever has its keys, so it stands last.
pub const FAMILIES: &[Family] = &[
    granite_hybrid::FAMILY,
    kimi_linear::FAMILY,
    qwen3_next::FAMILY,
    nemotron_h::FAMILY,
    falcon_h1::FAMILY,
    bamba::FAMILY,
    jamba::FAMILY,
    mamba2::FAMILY,
    mamba::FAMILY,
    plain_attention::FAMILY,
];

/// One model family.
#[derive(Debug)]
pub struct Family {
    /// Its name here, words joined by `-`.
    pub name: &'static str,
    /// The words of `model_type` and `architectures` it is known by.
    pub known_by: &'static [&'static str],
    /// What happens when kernels are missing that its code cannot do without; `None` where a slow path is taken.
    pub(crate) demands: Option<&'static str>,
    /// Whether a config is one of its own by other signs than its names.
    pub(crate) recognises: fn(&Config) -> bool,
    /// Its layers in order.
    pub(crate) layers: fn(&Config) -> Result<Vec<Layer>, Wrong>,
}

/// The family of a config.
pub(super) fn of(config: &Config) -> Option<&'static Family> {
    let names = config.names();
    let named = FAMILIES
        .iter()
        .find(|family| names.iter().any(|name| family.known_by.contains(&name.as_str())));
    named.or_else(|| FAMILIES.iter().find(|family| (family.recognises)(config)))
}

/// Two norms, which stand before the mixer and before the feed-forward part of nearly every layer.
fn norms(hidden: u64) -> Size {
    Size::of(hidden.saturating_mul(2))
}

/// The Mamba-2 mixer by the keys that Granite, Bamba and Falcon-H1 share.
fn shared_mamba2(config: &Config, norm: bool) -> Result<Size, Wrong> {
    let hidden = config.number(&["hidden_size"])?;
    let inner = match config.optional(&["mamba_d_ssm"]) {
        Some(inner) => inner,
        None => product(&[hidden, config.number(&["mamba_expand"])?]),
    };
    let heads = config.number(&["mamba_n_heads"])?;
    // "auto" stands for the inner width shared out among the heads.
    let head_dim = match config.optional(&["mamba_d_head"]) {
        Some(dim) => dim,
        None => inner.checked_div(heads).ok_or(Wrong::Key("mamba_n_heads".into()))?,
    };
    let mixer = parts::Mamba2 {
        hidden,
        heads,
        head_dim,
        state: config.number(&["mamba_d_state"])?,
        groups: config.number(&["mamba_n_groups"])?,
        kernel: config.number(&["mamba_d_conv"])?,
        conv_bias: config.flag("mamba_conv_bias", true),
        proj_bias: config.flag("mamba_proj_bias", false),
        norm,
    };
    Ok(mixer.size(config))
}

/// What a list of layer types says, in the older spelling and in the one transformers 5 writes.
fn is_attention(word: &str) -> bool {
    matches!(word, "attention" | "full_attention" | "hybrid" | "*")
}

/// A list of layer types that has to be as long as there are layers.
fn typed<'a>(config: &Config<'a>, keys: &[&str]) -> Result<Option<Vec<&'a str>>, Wrong> {
    let count = config.layer_count()?;
    let Some((key, list)) = keys.iter().find_map(|key| Some((*key, config.words(key)?))) else {
        return Ok(None);
    };
    if list.len() != count {
        return Err(Wrong::Contradiction(format!(
            "`{key}` has {} entries for {count} layers",
            list.len()
        )));
    }
    Ok(Some(list))
}

fn layer(kind: LayerKind, size: Size) -> Layer {
    Layer { kind, size }
}

#[cfg(test)]
mod tests {
    use super::FAMILIES;

    #[test]
    fn the_list_is_the_folder() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/model/families");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .expect("the folder")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .path()
                    .file_stem()
                    .expect("a name")
                    .to_string_lossy()
                    .replace('_', "-")
            })
            .collect();
        let mut listed: Vec<String> =
            FAMILIES.iter().map(|family| family.name.to_owned()).collect();
        files.sort();
        listed.sort();
        assert_eq!(files, listed);
    }
}
