//! Mends an environment where it is: one set of changes for all findings, resolved before anything is touched, carried
//! out behind a snapshot, and judged by whether its packages can be imported.
//!
//! Invariant: whatever ends a mend (a command that fails, an import that no longer works, a kill), the environment is either
//! mended or its files are what they were: at once, or by [`Snapshot::left`] in the next run.

mod action;
mod availability;
mod imports;
mod packages;
mod remedy;
mod resolve;
mod snapshot;

pub use action::{Action, actions};
pub use availability::{Availability, check_availability};
pub use imports::{Import, Imports, Limits, Worse};
pub use packages::Packages;
pub use remedy::{Remedy, Set, is_for};
pub use resolve::{Change, Resolved, Tool, Unresolved};
pub use snapshot::{PutBack, Snapshot};

/// Why an environment could not be mended; nothing of it was lost.
#[derive(Debug, thiserror::Error)]
pub enum MendError {
    /// A file or folder could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was being read or written.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The backup would not fit.
    #[error("a copy of {root} needs {needed} bytes, and its file system has {free} free")]
    Space {
        /// The environment.
        root: String,
        /// Bytes of the copy.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Another fix works on the environment, or a program that a killed one started still runs.
    #[error("another fix is at work on {root}")]
    Locked {
        /// The environment.
        root: String,
    },
    /// The environment's interpreter did not import anything.
    #[error("{python} does not run: {reason}")]
    Interpreter {
        /// The interpreter.
        python: String,
        /// What it said.
        reason: String,
    },
    /// Files of the backup are not what they were.
    #[error(
        "{} files of {root} could not be put back as they were, {} first", files.len(), files.first().map_or("", String::as_str)
    )]
    Damaged {
        /// The environment.
        root: String,
        /// The files.
        files: Vec<String>,
    },
}

use resolve::python;

impl MendError {
    /// What to do about it; `None` where the system's own words say it.
    pub fn hint(&self) -> Option<&'static str> {
        let hint = match self {
            Self::Io { .. } => return None,
            Self::Space { .. } => {
                "the file system cannot link files, so that they are copied: make space, or move the environment to another file system"
            }
            Self::Locked { .. } => "wait for it to end; `ps` shows it",
            Self::Interpreter { .. } => "make the environment anew",
            Self::Damaged { .. } => "install their packages again",
        };
        Some(hint)
    }

    fn io(path: impl Into<std::path::PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
