//! Configs for random models: published ones and reduced ones.

use crate::{Config, ConfigError};

/// A model shape for random weights.
#[derive(Debug)]
pub struct Shape {
    /// Its name.
    pub name: &'static str,
    /// A description.
    pub about: &'static str,
    config: &'static str,
}

macro_rules! shape {
    ($name:literal, $about:literal) => {
        Shape {
            name: $name,
            about: $about,
            config: include_str!(concat!("shapes/", $name, ".json")),
        }
    };
}

/// Every shape: published models, and reduced ones that run in an instant.
pub const SHAPES: &[Shape] = &[
    shape!("granite-4.0-h-micro", "3.2 billion parameters, dense"),
    shape!("granite-4.0-h-tiny", "6.9 billion parameters, 64 experts"),
    shape!("granite-4.0-h-small", "32 billion parameters, 72 experts"),
    shape!("kimi-linear-48b-a3b", "49 billion parameters, KDA and latent attention, 256 experts"),
    shape!("llama-3.1-8b", "8.0 billion parameters, dense"),
    shape!("qwen2.5-0.5b", "0.5 billion parameters, dense"),
    shape!("qwen3-0.6b", "0.6 billion parameters, dense"),
    shape!("qwen3-8b", "8.2 billion parameters, dense"),
    shape!("qwen3-30b-a3b", "31 billion parameters, 128 experts"),
    shape!(
        "qwen3-next-80b-a3b",
        "80 billion parameters, gated delta nets and gated attention, 512 experts"
    ),
    shape!(
        "nemotron-3-nano-30b-a3b",
        "32 billion parameters, Mamba-2, squares in the place of gates, 128 experts"
    ),
    shape!("falcon-h1-0.5b", "0.5 billion parameters, attention and Mamba-2 side by side"),
    shape!(
        "gpt-oss-20b",
        "21 billion parameters, sinks, a window in every other layer, 32 experts in MXFP4"
    ),
    shape!("lfm2-350m", "0.4 billion parameters, short convolutions between products"),
    shape!("lfm2-8b-a1b", "8.3 billion parameters, short convolutions, 32 experts"),
    shape!("granite-hybrid-mini", "reduced: dense"),
    shape!("granite-moe-mini", "reduced: 8 experts, two groups"),
    shape!("granite-rope-mini", "reduced: attention everywhere, rotated"),
    shape!("kimi-linear-mini", "reduced: KDA, latent attention, 8 experts"),
    shape!("llama-mini", "reduced: Llama 3.1's rotation"),
    shape!("mistral-mini", "reduced: a window in every layer"),
    shape!("qwen2-mini", "reduced: biases, a window in the last layer, YaRN"),
    shape!("qwen3-mini", "reduced: norms of queries and keys"),
    shape!("qwen3-moe-mini", "reduced: 8 experts in two of three layers"),
    shape!("granite-dense-mini", "reduced: Granite 3's multipliers"),
    shape!("qwen3-next-mini", "reduced: gated delta nets, gated attention, 8 experts"),
    shape!("qwen3.5-moe-mini", "reduced: gated delta nets inside a model that sees"),
    shape!("olmo-hybrid-mini", "reduced: gated delta nets, attention with norms after it"),
    shape!("mamba2-mini", "reduced: Mamba-2 with two groups"),
    shape!("mamba-mini", "reduced: Mamba with biases and 17 states a channel"),
    shape!("falcon-mamba-mini", "reduced: Mamba with norms that have no weights"),
    shape!("jamba-mini", "reduced: Mamba and attention, 8 experts in every other layer"),
    shape!("falcon-h1-mini", "reduced: attention and Mamba-2 side by side, every factor"),
    shape!("gpt-oss-mini", "reduced: sinks, a window, YaRN, 8 experts with biases"),
    shape!("lfm2-mini", "reduced: short convolutions between products, norms of queries and keys"),
    shape!("lfm2-moe-mini", "reduced: short convolutions, 8 experts"),
    shape!("nemotron-mini", "reduced: a part a layer, two groups, 8 experts without gates"),
    shape!("bamba-mini", "reduced: Mamba-2 with two groups, half-rotated attention"),
];

/// The config of a shape, by its name.
///
/// # Errors
/// [`ConfigError::Shape`].
pub fn shape(name: &str) -> Result<Config, ConfigError> {
    match SHAPES.iter().find(|shape| shape.name == name) {
        Some(shape) => Config::parse(shape.name, shape.config),
        None => Err(ConfigError::Shape { name: name.to_owned() }),
    }
}
