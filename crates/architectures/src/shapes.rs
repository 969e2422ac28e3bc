//! Configs to draw models by: those of published models, and reduced ones.

use crate::{Config, ConfigError};

/// A model shape that can be drawn.
#[derive(Debug)]
pub struct Shape {
    /// Its name.
    pub name: &'static str,
    /// What it is.
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

/// Every shape: those of published models, and reduced ones that run in an instant.
pub const SHAPES: &[Shape] = &[
    shape!("granite-4.0-h-micro", "3.2 billion parameters, dense"),
    shape!("granite-4.0-h-tiny", "6.9 billion parameters, 64 experts"),
    shape!("granite-4.0-h-small", "32 billion parameters, 72 experts"),
    shape!("kimi-linear-48b-a3b", "49 billion parameters, KDA and latent attention, 256 experts"),
    shape!("granite-hybrid-mini", "reduced: dense"),
    shape!("granite-moe-mini", "reduced: 8 experts, two groups"),
    shape!("granite-rope-mini", "reduced: attention everywhere, rotated"),
    shape!("kimi-linear-mini", "reduced: KDA, latent attention, 8 experts"),
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
