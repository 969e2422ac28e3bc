//! Why a wheel is not taken.

use std::path::PathBuf;

/// What is wrong with a wheel as a file.
#[derive(Debug, thiserror::Error)]
pub enum WheelError {
    /// The file name does not follow PEP 427.
    #[error(
        "`{file}` is no wheel's name\nhint: a wheel is called NAME-VERSION-PYTHON-ABI-PLATFORM.whl; keep the name it was published under"
    )]
    Name {
        /// The name.
        file: String,
    },
    /// The file cannot be read, or what is in it cannot be written.
    #[error("{} cannot be unpacked: {what}\nhint: fetch it again; a download that was cut off looks like this", path.display())]
    Unreadable {
        /// The wheel.
        path: PathBuf,
        /// What was wrong.
        what: String,
    },
    /// What the wheel says about itself does not agree with what is in it.
    #[error(
        "{} is not what it says: {what}\nhint: fetch it again, from its project's own index; if it stays so, the wheel was tampered with or badly made", path.display()
    )]
    Lies {
        /// The wheel.
        path: PathBuf,
        /// Which statement, and what is there in its place.
        what: String,
    },
}
