//! The model families, one file each: their names in config.json, and how their keys determine the layers.

use crate::builder::ArchitectureBuilder;
use crate::layers::{ExpertGroups, RouterScore};
use crate::{Architecture, Config, ConfigError};

mod bamba;
mod falcon_h1;
mod falcon_mamba;
mod gemma4;
mod gpt_oss;
mod granite_hybrid;
mod jamba;
mod kimi_linear;
mod lfm2;
mod mamba;
mod mamba2;
mod nemotron_h;
mod olmo_hybrid;
mod plain_attention;
mod qwen3_next;

/// Substrings of the names of encoders' tensors, which are not loaded.
const ENCODERS: [&str; 17] = [
    "vision_tower.",
    "vision_model.",
    "vision_encoder.",
    "vision_projection.",
    "visual.",
    "visual_embeddings_table.",
    "image_tower.",
    "image_newline",
    "video_tower.",
    "audio_tower.",
    "multi_modal_projector.",
    "model.connector.",
    "model.projector.",
    "model.merger.",
    "aligner.",
    "mm_projector.",
    "mlp1.",
];

/// Every family. Plain attention accepts any config with its keys, so it is last.
pub const FAMILIES: &[ModelFamily] = &[
    granite_hybrid::FAMILY,
    kimi_linear::FAMILY,
    qwen3_next::FAMILY,
    nemotron_h::FAMILY,
    falcon_h1::FAMILY,
    lfm2::FAMILY,
    olmo_hybrid::FAMILY,
    gemma4::FAMILY,
    gpt_oss::FAMILY,
    bamba::FAMILY,
    jamba::FAMILY,
    mamba2::FAMILY,
    mamba::FAMILY,
    falcon_mamba::FAMILY,
    plain_attention::FAMILY,
];

/// One model family.
#[derive(Debug)]
pub struct ModelFamily {
    /// Its name here, words joined by `-`.
    pub name: &'static str,
    /// Values of `model_type` and `architectures` that identify it.
    pub config_names: &'static [&'static str],
    /// The `model_type` of multimodal models that contain it as their language model; engines run that on text only.
    pub multimodal_types: &'static [&'static str],
    /// The behavior in Python if kernels that its code needs are missing; `None` if there is a slow path.
    pub without_kernels: Option<&'static str>,
    /// Whether a config belongs to it by other features than its names.
    pub(crate) matches_keys: fn(&Config) -> bool,
    /// Describes the model of a config.
    pub(crate) read: fn(&Config, ArchitectureBuilder) -> Result<Architecture, ConfigError>,
}

impl ModelFamily {
    /// The family of a config.
    pub fn of(config: &Config) -> Option<&'static Self> {
        let named = |family: &&Self| family.is_named(config);
        let by_keys = || FAMILIES.iter().find(|family| (family.matches_keys)(config));
        FAMILIES.iter().find(named).or_else(by_keys)
    }

    /// Whether a config has one of its names.
    pub(crate) fn is_named(&self, config: &Config) -> bool {
        config.names().iter().any(|name| self.config_names.contains(name))
    }
}

/// Refuses an activation other than SiLU, which all supported published models use.
fn only_silu(config: &Config) -> Result<(), ConfigError> {
    match config.text("hidden_act")? {
        None | Some("silu" | "swish") => Ok(()),
        Some(_) => Err(config.wrong("hidden_act", "silu")),
    }
}

/// Refuses a flag that changes the layers in an unsupported way.
fn only_without(config: &Config, flag: &str) -> Result<(), ConfigError> {
    match config.flag_or(flag, false)? {
        false => Ok(()),
        true => Err(config.wrong(flag, "false, the published models have it so")),
    }
}

/// Refuses a missing flag that all published models set.
fn only_with(config: &Config, flag: &str) -> Result<(), ConfigError> {
    match config.flag_or(flag, true)? {
        true => Ok(()),
        false => Err(config.wrong(flag, "true, the published models have it so")),
    }
}

/// How a softmax router's logits become weights. The softmax over all experts divided by the sum of the chosen equals
/// the softmax over the chosen.
fn softmax(config: &Config, builder: &mut ArchitectureBuilder, renormalised: bool) -> RouterScore {
    match builder.need(config.flag_or("norm_topk_prob", renormalised), true) {
        true => RouterScore::SoftmaxOfChosen,
        false => RouterScore::SoftmaxOfAll,
    }
}

/// The groups of a router's `count` experts under one of two keys; `None` if every group is chosen.
fn expert_groups(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    keys: &[&str],
    [count, per_token]: [usize; 2],
) -> Option<ExpertGroups> {
    const CHOSEN: &str = "topk_group";
    let key = config.present_key(keys);
    let groups = builder.need(config.count_or(key, 1), 1).max(1);
    let chosen = builder.need(config.size_or(CHOSEN, 1), 1);
    // The score of a group is the sum of its two best experts.
    if groups > 1 && (!count.is_multiple_of(groups) || count / groups < 2) {
        let wanted = format!("groups of equal size, of at least two of the {count} experts");
        builder.refuse(config.wrong(key, wanted));
        return None;
    }
    if chosen > groups || chosen * (count / groups) < per_token {
        let wanted = format!("groups with {per_token} experts together, at most {groups}");
        builder.refuse(config.wrong(CHOSEN, wanted));
        return None;
    }
    (chosen < groups).then_some(ExpertGroups { count: groups, chosen })
}

/// Refuses expert groups: a single group is equivalent to none.
fn only_one_group(config: &Config, builder: &mut ArchitectureBuilder) {
    const KEYS: [&str; 2] = ["n_group", "topk_group"];
    for key in KEYS {
        if builder.need(config.count_or(key, 1), 1) > 1 {
            builder.refuse(config.wrong(key, "1, the published models have it so"));
        }
    }
}

/// Which layers are attention and which are of the other kind, if the config has a list. transformers 5 uses other
/// names for the kinds.
fn attends(config: &Config, other: &str) -> Result<Option<Vec<bool>>, ConfigError> {
    let Some((key, words)) = config.layer_words(&["layer_types", "layers_block_type"])? else {
        return Ok(None);
    };
    let kind = |word: &String| match word.as_str() {
        "attention" | "full_attention" | "hybrid" => Ok(true),
        word if word == other || word == "linear_attention" => Ok(false),
        word => {
            Err(config.wrong(key, format!("no layer of kind `{word}`, but {other} or attention")))
        }
    };
    words.iter().map(kind).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_the_folder() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/families");
        let stem = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().path().file_stem().unwrap().to_string_lossy().replace('_', "-")
        };
        let is_file = |entry: &std::io::Result<std::fs::DirEntry>| {
            entry.as_ref().unwrap().file_type().unwrap().is_file()
        };
        let files = std::fs::read_dir(folder).unwrap().filter(is_file);
        let mut files: Vec<String> = files.map(stem).collect();
        let mut listed: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        files.sort();
        listed.sort_unstable();
        assert_eq!(files, listed);
    }
}
