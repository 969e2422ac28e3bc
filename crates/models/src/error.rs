use crate::{StateType, Storage};
use architectures::{ConfigError, ModelTooLarge, SplitError, UnsupportedStateType};
use device::DeviceError;
use facts::BackendKind;
use ops::OpError;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Errors of a model, its files, or a request to it. Every message names the file, key or tensor, its value and the
/// expected value.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file that cannot be read or written.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// The system's message.
        reason: String,
        /// Suggested action, if known.
        hint: Option<String>,
    },
    /// A config that cannot be used, or describes a model that no engine runs.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Weight files that do not match the config.
    #[error("{path}: {what}")]
    Weights {
        /// The file or folder.
        path: String,
        /// The mismatch: `tensor x has shape [2], the config wants [3]`.
        what: String,
    },
    /// A weight file that is missing or incomplete.
    #[error("{path} {what}{}", wanted.map_or(String::new(), |wanted| format!(": expected {wanted} bytes, there are {there}")))]
    Incomplete {
        /// The file.
        path: String,
        /// `is missing`, `is truncated`.
        what: &'static str,
        /// Expected size in bytes, if the file's header or the folder's index gives it.
        wanted: Option<u64>,
        /// Actual size in bytes.
        there: u64,
    },
    /// A model without a chat template, as base models are.
    #[error("{path}: there is no chat template, here or in tokenizer_config.json")]
    NoTemplate {
        /// The file that would contain it.
        path: String,
    },
    /// A conversation that a chat template cannot render.
    #[error("{path}: {what}")]
    Template {
        /// The file that contains the template.
        path: String,
        /// The problem, usually the message of the template.
        what: String,
        /// Suggested action.
        hint: String,
    },
    /// A call with invalid tokens, sequences or lengths.
    #[error("{what}")]
    Call {
        /// The problem.
        what: String,
        /// Suggested action, if the caller can do something.
        hint: Option<String>,
    },
    /// A model that is larger than the free memory.
    #[error(transparent)]
    Memory(#[from] ModelTooLarge),
    /// Work that was cancelled before a file was complete; its files are removed.
    #[error("stopped at {path}, and what was made is removed")]
    Stopped {
        /// The file.
        path: String,
    },
    /// A disk without enough room.
    #[error("{what}")]
    Disk {
        /// The free and the required space.
        what: String,
    },
    /// A model that is not in the cache, or that the hub does not provide.
    #[error("{what}")]
    Hub {
        /// The problem.
        what: String,
        /// Suggested action.
        hint: String,
    },
    /// A conversion that is impossible or could not finish.
    #[error("{what}")]
    Convert {
        /// The problem.
        what: String,
        /// Suggested action.
        hint: String,
    },
    /// A storage type that a backend's engine does not support.
    #[error("no engine runs models in {} on {backend}", storage.as_str())]
    Storage {
        /// The backend.
        backend: BackendKind,
        /// The type.
        storage: Storage,
    },
    /// A model whose states support float32 only.
    #[error(transparent)]
    States(#[from] UnsupportedStateType),
    /// A state type that a backend's engine does not support.
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
    /// The device failed outside of any layer.
    #[error("{0}")]
    Device(String),
    /// A model that cannot be split over ranks.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// A rank of a split model has ended, and with it the whole model.
    #[error("{what}")]
    Rank {
        /// Which rank, and what is known about it.
        what: String,
    },
    /// An op refused the inputs of a layer.
    #[error("layer {layer}: {error}")]
    Op {
        /// The layer, from 0.
        layer: usize,
        /// The op's error.
        error: OpError,
    },
}

impl From<DeviceError> for ModelError {
    fn from(error: DeviceError) -> Self {
        Self::Device(OpError::Device { op: "model", error }.to_string())
    }
}

impl ModelError {
    /// A file that cannot be read or written.
    pub(crate) fn file(path: &Path, reason: impl Into<Reason>) -> Self {
        let Reason { words, hint } = reason.into();
        let hint = hint.map(str::to_owned);
        Self::File { path: path.display().to_string(), reason: words, hint }
    }

    /// A call with invalid tokens, sequences or lengths, and what to do about it.
    pub(crate) fn call(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Call { what: what.into(), hint: Some(hint.into()) }
    }

    /// An error of a rank; `what` follows its number in the message.
    pub(crate) fn rank(rank: usize, what: impl std::fmt::Display) -> Self {
        Self::Rank { what: format!("rank {rank} {what}") }
    }

    /// An internal error, about which a caller can do nothing.
    pub(crate) fn fault(what: impl Into<String>) -> Self {
        Self::Call { what: what.into(), hint: None }
    }

    /// Adds a hint to a file or call error.
    #[must_use]
    pub(crate) fn hinted(mut self, words: impl Into<String>) -> Self {
        if let Self::File { hint, .. } | Self::Call { hint, .. } = &mut self {
            *hint = Some(words.into());
        }
        self
    }

    /// A file that could not be written. For a full disk or a size limit the hint is not about permissions.
    pub(crate) fn written(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                Self::Disk { what: format!("{}: {error}", path.display()) }
            }
            ErrorKind::Interrupted => Self::Stopped { path: path.display().to_string() },
            _ => Self::file(path, error),
        }
    }

    /// Weight files that do not match the config.
    pub(crate) fn weights(path: &Path, what: impl Into<String>) -> Self {
        Self::Weights { path: path.display().to_string(), what: what.into() }
    }

    /// A weight file that is missing or incomplete.
    pub(crate) fn incomplete(
        path: &Path,
        what: &'static str,
        wanted: Option<u64>,
        there: u64,
    ) -> Self {
        Self::Incomplete { path: path.display().to_string(), what, wanted, there }
    }

    /// A conversion that is impossible or could not finish.
    pub(crate) fn convert(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Convert { what: what.into(), hint: hint.into() }
    }

    /// Whether the engine cannot run any more: its device or a rank is lost.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Device(_) | Self::Rank { .. })
    }

    /// Suggested action, if known.
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
                Some("a base model has none: use -p instead of --chat".to_owned())
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

/// Why a file cannot be used, with a hint if the reason alone implies one.
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
