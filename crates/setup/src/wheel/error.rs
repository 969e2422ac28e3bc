//! Why a wheel is not taken.

use std::path::PathBuf;

/// What is wrong with a wheel as a file.
#[derive(Debug, thiserror::Error)]
pub enum WheelError {
    /// The file name does not follow PEP 427.
    #[error("`{file}` is no wheel's name")]
    Name {
        /// The name.
        file: String,
    },
    /// The file cannot be read, or what is in it cannot be written.
    #[error("{} cannot be unpacked: {what}", path.display())]
    Unreadable {
        /// The wheel.
        path: PathBuf,
        /// What was wrong.
        what: String,
    },
    /// What the wheel says about itself does not agree with what is in it.
    #[error("{} is not what it says: {what}", path.display())]
    Lies {
        /// The wheel.
        path: PathBuf,
        /// Which statement, and what is there in its place.
        what: String,
    },
}

impl WheelError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Name { .. } => {
                "a wheel is called NAME-VERSION-PYTHON-ABI-PLATFORM.whl; keep the name it was published under"
            }
            Self::Unreadable { .. } => {
                "fetch it again; a download that was cut off looks like this"
            }
            Self::Lies { .. } => {
                "fetch it again, from its project's own index; if it stays so, the wheel was tampered with or badly made"
            }
        }
    }
}
