//! Where a model comes from, for whoever opens it more than once.

use crate::{Config, Model, ModelError};
use std::path::PathBuf;

/// A folder of weights, or a config whose weights are drawn.
#[derive(Debug, Clone)]
pub enum ModelSource {
    /// A folder with config.json and safetensors files.
    Folder(PathBuf),
    /// Random weights; the same seed draws the same ones.
    Random {
        /// What they are the weights of.
        config: Config,
        /// The seed.
        seed: u64,
    },
}

impl ModelSource {
    /// Opens it.
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
