use facts::BackendKind;
use kernels::OpError;
use std::path::Path;

/// What is wrong with a model, its files, or what was asked of it. Every message names the file, key or tensor, what it
/// is and what was wanted.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file that cannot be read or written.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What the system says.
        reason: String,
    },
    /// A config without a key that its family cannot do without.
    #[error("{path}: `{key}` is missing, wanted {wanted}")]
    MissingKey {
        /// The config.
        path: String,
        /// The key.
        key: String,
        /// What it holds.
        wanted: &'static str,
    },
    /// A config's key whose value cannot be used.
    #[error("{path}: `{key}` is {value}, wanted {wanted}")]
    Key {
        /// The config.
        path: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What it may be.
        wanted: String,
    },
    /// A config of no family here.
    #[error("{path}: {names} is no model family that firstlight runs")]
    Family {
        /// The config.
        path: String,
        /// Its `model_type` and `architectures`.
        names: String,
    },
    /// Weight files that are not what the config describes.
    #[error("{path}: {what}")]
    Weights {
        /// The file or folder.
        path: String,
        /// What is wrong: `tensor x has shape [2], the config wants [3]`.
        what: String,
    },
    /// A call with tokens, sequences or lengths that cannot be.
    #[error("{0}")]
    Call(String),
    /// A model or shape that has no such name.
    #[error("there is no model shape `{name}`")]
    Shape {
        /// The name given.
        name: String,
    },
    /// A model that is larger than what is free.
    #[error("{what}")]
    Memory {
        /// What is needed and for what, and what is free.
        what: String,
        /// What to reduce.
        hint: String,
    },
    /// A disk that has not the room for what is to be written.
    #[error("{what}")]
    Disk {
        /// What is free, and what is to be written.
        what: String,
    },
    /// A model that the cache does not have, or the hub does not give.
    #[error("{what}")]
    Hub {
        /// What is wrong.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// A conversion that cannot be, or could not be ended.
    #[error("{what}")]
    Convert {
        /// What is wrong.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// A backend that has no engine.
    #[error("no engine runs models on {0}")]
    Backend(BackendKind),
    /// The device failed outside any layer.
    #[error("{0}")]
    Device(String),
    /// An op refused what a layer gave it.
    #[error("layer {layer}: {error}")]
    Op {
        /// The layer, from 0.
        layer: usize,
        /// The op's words.
        error: OpError,
    },
}

impl ModelError {
    /// A file that cannot be read or written.
    pub(crate) fn file(path: &Path, reason: impl ToString) -> Self {
        Self::File { path: path.display().to_string(), reason: reason.to_string() }
    }

    /// Weight files that are not what the config describes.
    pub(crate) fn weights(path: &Path, what: impl Into<String>) -> Self {
        Self::Weights { path: path.display().to_string(), what: what.into() }
    }

    /// A conversion that cannot be, or could not be ended.
    pub(crate) fn convert(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Convert { what: what.into(), hint: hint.into() }
    }

    /// What to do about it, where there is something to say.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Family { .. } => {
                let names: Vec<&str> = crate::FAMILIES.iter().map(|family| family.name).collect();
                Some(format!("families: {}", names.join(", ")))
            }
            Self::Shape { .. } => {
                let names: Vec<&str> = crate::SHAPES.iter().map(|shape| shape.name).collect();
                Some(format!("shapes: {}", names.join(", ")))
            }
            Self::Weights { .. } => Some(
                "fetch the file again and compare its hash, or take the config that belongs to it"
                    .to_owned(),
            ),
            Self::File { .. } => {
                Some("a model's folder has config.json and safetensors files; check the path and its permissions".to_owned())
            }
            Self::MissingKey { .. } | Self::Key { .. } => {
                Some("take the config.json that was published with the weights".to_owned())
            }
            Self::Call(_) => {
                Some("tokens come from the model's own tokenizer, and fit the length that was asked for".to_owned())
            }
            Self::Memory { hint, .. } | Self::Hub { hint, .. } | Self::Convert { hint, .. } => {
                Some(hint.clone())
            }
            Self::Disk { .. } => Some("free some space, or name a folder on another disk".to_owned()),
            Self::Backend(_) => Some("use the backend cpu or cuda".to_owned()),
            Self::Device(_) => {
                Some("firstlight doctor looks at the driver and the GPU's memory".to_owned())
            }
            Self::Op { error, .. } => error.hint(),
        }
    }
}
