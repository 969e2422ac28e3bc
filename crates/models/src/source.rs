//! Model sources, for code that opens a model more than once.

use crate::{Config, Model, ModelError};
use std::path::PathBuf;

/// A folder of weights, or a config with random weights.
#[derive(Debug, Clone)]
pub enum ModelSource {
    /// A folder with config.json and safetensors files.
    Folder(PathBuf),
    /// Random weights, determined by the seed.
    Random {
        /// The model's config.
        config: Config,
        /// The seed.
        seed: u64,
    },
}

impl ModelSource {
    /// Opens the model.
    ///
    /// # Errors
    /// [`ModelError`] naming the file, key or tensor that is wrong.
    pub fn open(&self) -> Result<Model, ModelError> {
        match self {
            Self::Folder(folder) => Model::read(folder),
            Self::Random { config, seed } => Model::random(config, *seed),
        }
    }
}
