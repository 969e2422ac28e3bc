//! Fixes an environment in place: one set of changes for all findings, resolved before anything is touched, protected
//! by a snapshot, and judged by whether its packages can be imported.
//!
//! Invariant: however a fix ends (a failed command, a broken import, a kill), the environment is either fixed or its
//! files are restored: immediately, or by [`EnvironmentSnapshot::left`] in the next run.

mod action;
mod availability;
mod imports;
mod packages;
mod remedy;
mod resolve;
mod snapshot;

pub use action::{FixAction, actions};
pub use availability::{Availability, check_availability};
pub use imports::{Import, ImportLimits, ImportRegression, Imports};
pub use packages::Packages;
pub use remedy::{InstallSet, Remedy, is_for};
pub use resolve::{PackageChange, ResolveError, ResolvedRemedy, Tool};
pub use snapshot::{EnvironmentSnapshot, RestoreReport};

/// Why an environment could not be fixed; it is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum FixError {
    /// A file or folder could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// There is no room for the backup.
    #[error("a copy of {root} needs {needed} bytes, and its file system has {free} free")]
    Space {
        /// The environment.
        root: String,
        /// Bytes of the backup.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// Another fix is using the environment, or a program started by a killed one is still running.
    #[error("another fix is running on {root}")]
    Locked {
        /// The environment.
        root: String,
    },
    /// The environment's interpreter did not run.
    #[error("{python} does not run: {reason}")]
    Interpreter {
        /// The interpreter.
        python: String,
        /// Its message.
        reason: String,
    },
    /// Files could not be restored from the backup.
    #[error(
        "{} files of {root} could not be restored, the first is {}", files.len(), files.first().map_or("", String::as_str)
    )]
    Damaged {
        /// The environment.
        root: String,
        /// The files.
        files: Vec<String>,
    },
}

use resolve::python;

impl FixError {
    /// The remedy; `None` if the system's message says it.
    pub fn hint(&self) -> Option<&'static str> {
        let hint = match self {
            Self::Io { .. } => return None,
            Self::Space { .. } => {
                "the file system has no hard links, so files are copied: free some space, or move the environment to another file system"
            }
            Self::Locked { .. } => "wait for it to end; `ps` shows it",
            Self::Interpreter { .. } => "create the environment again",
            Self::Damaged { .. } => "install their packages again",
        };
        Some(hint)
    }

    fn io(path: impl Into<std::path::PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
