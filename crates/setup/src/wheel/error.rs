//! Errors of wheels.

use std::path::PathBuf;

/// An invalid wheel file.
#[derive(Debug, thiserror::Error)]
pub enum WheelError {
    /// The file name does not follow PEP 427.
    #[error("`{file}` is not a wheel's name")]
    Name {
        /// The name.
        file: String,
    },
    /// The file cannot be read, or its contents cannot be written.
    #[error("{} cannot be unpacked: {what}", path.display())]
    Unreadable {
        /// The wheel.
        path: PathBuf,
        /// The problem.
        what: String,
    },
    /// The wheel's metadata disagrees with its contents.
    #[error("{} does not match its metadata: {what}", path.display())]
    Lies {
        /// The wheel.
        path: PathBuf,
        /// The disagreement.
        what: String,
    },
}

impl WheelError {
    /// The remedy.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Name { .. } => {
                "a wheel is called NAME-VERSION-PYTHON-ABI-PLATFORM.whl; keep the name it was published under"
            }
            Self::Unreadable { .. } => "download it again; this one is probably truncated",
            Self::Lies { .. } => {
                "download it again from its project's index; if it fails again, the wheel is invalid or was tampered with"
            }
        }
    }
}
