use crate::{StateType, Storage};
use architectures::{CannotSplit, ConfigError, DoesNotFit, OtherStates};
use device::cuda::CudaError;
use facts::BackendKind;
use kernels::OpError;
use std::io::{self, ErrorKind};
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
        /// What to do about it, where this file and this reason tell.
        hint: Option<String>,
    },
    /// A config that cannot be used, or describes a model that no engine runs.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Weight files that are not what the config describes.
    #[error("{path}: {what}")]
    Weights {
        /// The file or folder.
        path: String,
        /// What is wrong: `tensor x has shape [2], the config wants [3]`.
        what: String,
    },
    /// A weight file that is not there, or not all of it.
    #[error("{path} {what}{}", wanted.map_or(String::new(), |wanted| format!(": wanted {wanted} bytes, there are {there}")))]
    Incomplete {
        /// The file.
        path: String,
        /// `is missing`, `is truncated`.
        what: &'static str,
        /// Bytes that there should be, where its own header or the folder's index tells.
        wanted: Option<u64>,
        /// Bytes that are there.
        there: u64,
    },
    /// A model without a chat template, as base models are.
    #[error("{path}: there is no chat template, here or in tokenizer_config.json")]
    NoTemplate {
        /// The file that would have it.
        path: String,
    },
    /// A conversation that a chat template does not render.
    #[error("{path}: {what}")]
    Template {
        /// The file that the template is in.
        path: String,
        /// What is wrong, mostly in the template's own words.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// A call with tokens, sequences or lengths that cannot be.
    #[error("{what}")]
    Call {
        /// What is wrong.
        what: String,
        /// What to do about it, where the caller can do something.
        hint: Option<String>,
    },
    /// A model that is larger than what is free.
    #[error(transparent)]
    Memory(#[from] DoesNotFit),
    /// Work that was stopped before a file of it was whole; what it made is removed.
    #[error("stopped at {path}, and what was made is removed")]
    Stopped {
        /// The file.
        path: String,
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
    /// A storage type that a backend's engine does not have weights in.
    #[error("no engine runs models in {} on {backend}", storage.as_str())]
    Storage {
        /// The backend.
        backend: BackendKind,
        /// The type.
        storage: Storage,
    },
    /// A model whose states are held in float32 alone.
    #[error(transparent)]
    States(#[from] OtherStates),
    /// A type that a backend's engine does not have states in.
    #[error("no engine holds recurrent states in {} on {backend}", states.as_str())]
    StatesOn {
        /// The backend.
        backend: BackendKind,
        /// The type.
        states: StateType,
    },
    /// A backend that has no engine.
    #[error("no engine runs models on {0}")]
    Backend(BackendKind),
    /// The device failed outside any layer.
    #[error("{0}")]
    Device(String),
    /// A model that cannot be split over ranks.
    #[error(transparent)]
    Split(#[from] CannotSplit),
    /// A rank of a split model that has ended: with it the whole model.
    #[error("{what}")]
    Rank {
        /// Which, and what is known of it.
        what: String,
    },
    /// An op refused what a layer gave it.
    #[error("layer {layer}: {error}")]
    Op {
        /// The layer, from 0.
        layer: usize,
        /// The op's words.
        error: OpError,
    },
}

impl From<CudaError> for ModelError {
    fn from(error: CudaError) -> Self {
        Self::Device(OpError::Cuda { op: "model", error }.to_string())
    }
}

impl ModelError {
    /// A file that cannot be read or written.
    pub(crate) fn file(path: &Path, reason: impl Into<Reason>) -> Self {
        let Reason { words, hint } = reason.into();
        let hint = hint.map(str::to_owned);
        Self::File { path: path.display().to_string(), reason: words, hint }
    }

    /// A call with tokens, sequences or lengths that cannot be, with what to do about it.
    pub(crate) fn call(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Call { what: what.into(), hint: Some(hint.into()) }
    }

    /// What is wrong with a rank of a split model, in the words behind its number.
    pub(crate) fn rank(rank: usize, what: impl std::fmt::Display) -> Self {
        Self::Rank { what: format!("rank {rank} {what}") }
    }

    /// A fault of firstlight's own, about which a caller can do nothing.
    pub(crate) fn fault(what: impl Into<String>) -> Self {
        Self::Call { what: what.into(), hint: None }
    }

    /// The same error with what to do about it, for files and calls.
    #[must_use]
    pub(crate) fn hinted(mut self, words: impl Into<String>) -> Self {
        if let Self::File { hint, .. } | Self::Call { hint, .. } = &mut self {
            *hint = Some(words.into());
        }
        self
    }

    /// A file that could not be written. A disk that is full, or a limit, is no matter of permissions.
    pub(crate) fn written(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                Self::Disk { what: format!("{}: {error}", path.display()) }
            }
            ErrorKind::Interrupted => Self::Stopped { path: path.display().to_string() },
            _ => Self::file(path, error),
        }
    }

    /// Weight files that are not what the config describes.
    pub(crate) fn weights(path: &Path, what: impl Into<String>) -> Self {
        Self::Weights { path: path.display().to_string(), what: what.into() }
    }

    /// A weight file that is not there, or not all of it.
    pub(crate) fn incomplete(
        path: &Path,
        what: &'static str,
        wanted: Option<u64>,
        there: u64,
    ) -> Self {
        Self::Incomplete { path: path.display().to_string(), what, wanted, there }
    }

    /// A conversion that cannot be, or could not be ended.
    pub(crate) fn convert(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Convert { what: what.into(), hint: hint.into() }
    }

    /// Whether nothing can run behind it: the device is lost, or a rank.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Device(_) | Self::Rank { .. })
    }

    /// What to do about it, where there is something to say.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Config(error) => Some(error.hint()),
            Self::Memory(error) => Some(error.hint.clone()),
            Self::Weights { .. } => Some(
                "fetch the file again and compare its hash, or take the config that belongs to it"
                    .to_owned(),
            ),
            Self::Incomplete { .. } => {
                Some("download the model again, or copy all of its files".to_owned())
            }
            Self::Storage { .. } => Some("ask for --dtype bf16, or for --backend cpu".to_owned()),
            Self::States(_) => Some("leave --mamba-ssm-cache-dtype out".to_owned()),
            Self::StatesOn { .. } => {
                Some("leave --mamba-ssm-cache-dtype out, or ask for --backend cuda".to_owned())
            }
            Self::File { hint, .. } | Self::Call { hint, .. } => hint.clone(),
            Self::Hub { hint, .. } | Self::Convert { hint, .. } | Self::Template { hint, .. } => {
                Some(hint.clone())
            }
            Self::NoTemplate { .. } => {
                Some("a base model has none: use -p in place of --chat".to_owned())
            }
            Self::Disk { .. } => {
                Some("free some space, or name a folder on another disk".to_owned())
            }
            Self::Stopped { .. } => None,
            Self::Backend(_) => Some("use the backend cpu or cuda".to_owned()),
            Self::Device(_) => {
                Some("firstlight doctor looks at the driver and the GPU's memory".to_owned())
            }
            Self::Split(error) => Some(error.hint.clone()),
            Self::Rank { .. } => {
                Some("without --tp one process says more; `dmesg` says who was killed".to_owned())
            }
            Self::Op { error, .. } => error.hint(),
        }
    }
}

/// Why a file cannot be used, and what to do about that where the reason alone tells.
pub(crate) struct Reason {
    words: String,
    hint: Option<&'static str>,
}

impl From<String> for Reason {
    fn from(words: String) -> Self {
        Self { words, hint: None }
    }
}

impl From<&str> for Reason {
    fn from(words: &str) -> Self {
        words.to_owned().into()
    }
}

impl From<serde_json::Error> for Reason {
    fn from(error: serde_json::Error) -> Self {
        let hint = Some("the file is damaged; download it again");
        Self { words: error.to_string(), hint }
    }
}

impl From<std::io::Error> for Reason {
    fn from(error: std::io::Error) -> Self {
        let hint = match error.kind() {
            ErrorKind::NotFound => {
                Some("check the path; a model's folder has config.json and safetensors files")
            }
            ErrorKind::NotADirectory => Some("name a model's folder, not one of its files"),
            ErrorKind::PermissionDenied => Some("check who owns it, and its permissions"),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                Some("free some space, or name a folder on another disk")
            }
            ErrorKind::ReadOnlyFilesystem => Some("name a folder that can be written to"),
            _ => None,
        };
        Self { words: error.to_string(), hint }
    }
}

impl From<rustix::io::Errno> for Reason {
    fn from(error: rustix::io::Errno) -> Self {
        std::io::Error::from(error).into()
    }
}
