//! Why there is no wheel.

use super::Missing;
use crate::wheel::WheelError;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// What stopped a source build.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Something that the build needs is not here. Nothing was started.
    #[error("{package} cannot be built here: {}", listed(missing))]
    Preconditions {
        /// The package.
        package: String,
        /// All that is missing.
        missing: Vec<Missing>,
    },
    /// A folder of the build cannot be written or read.
    #[error("cannot use {}: {source}", folder.display())]
    Folder {
        /// The folder or file.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The source cannot be had.
    #[error("the source of {package} cannot be had: {what}")]
    Source {
        /// The package.
        package: String,
        /// What was tried, and what came of it.
        what: String,
    },
    /// A program of the build could not be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// The build ended without a wheel.
    #[error("building {package} failed ({status}): {last}")]
    Failed {
        /// The package.
        package: String,
        /// How it ended.
        status: ExitStatus,
        /// The line of the log that tells most.
        last: String,
        /// The log.
        log: PathBuf,
    },
    /// The wheel has no compiled file at all.
    #[error("{package} was not compiled: {} has no compiled file", wheel.display())]
    NothingCompiled {
        /// The package.
        package: String,
        /// The wheel.
        wheel: PathBuf,
        /// The log.
        log: PathBuf,
    },
    /// A compiled file of the wheel was not linked by the build: a prebuilt wheel was taken.
    #[error("{package} was not compiled here: {seen}")]
    Prebuilt {
        /// The package.
        package: String,
        /// Which file no compiler linked, how many runs were seen, and what the log says.
        seen: String,
        /// The switches that were set, `NAME=value`, or `none was set`.
        switches: String,
        /// The log.
        log: PathBuf,
    },
    /// What came out is not a whole wheel.
    #[error(transparent)]
    Wheel(#[from] WheelError),
}

fn listed(missing: &[Missing]) -> String {
    let each: Vec<&str> = missing.iter().map(|missing| missing.what.as_str()).collect();
    each.join("; ")
}

impl BuildError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Preconditions { missing, .. } => {
                let each: Vec<&str> = missing.iter().map(|missing| missing.hint.as_str()).collect();
                each.join("; ")
            }
            Self::Folder { .. } => {
                "see that there is space and that the folder is yours".to_owned()
            }
            Self::Source { .. } => "try the address in the plan by hand".to_owned(),
            Self::Start { .. } => "see that it is installed and may be run".to_owned(),
            Self::Failed { log, .. } => {
                let log = log.display();
                format!("the whole log is {log}; `firstlight explain {log}` looks its words up")
            }
            Self::NothingCompiled { log, .. } => {
                format!("the log {} says which switch left its extension out", log.display())
            }
            Self::Prebuilt { switches, .. } => format!(
                "its setup.py takes a prebuilt wheel where it finds one; its switch is *_FORCE_BUILD=TRUE ({switches})"
            ),
            Self::Wheel(error) => error.hint().to_owned(),
        }
    }

    /// A failure, with the line of the log that names its cause.
    pub(super) fn failed(package: &str, status: ExitStatus, log: &Path) -> Self {
        let text = std::fs::read(log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
        // A compiler's first error is the cause of the others; Python's last line is.
        let compiler = lines().find(|line| line.contains("error: ") && line.contains(':'));
        let python = lines().rfind(|line| line.contains("Error"));
        let last = compiler.or(python).or(lines().next_back()).unwrap_or("it printed nothing");
        Self::Failed {
            package: package.to_owned(),
            status,
            last: last.to_owned(),
            log: log.to_owned(),
        }
    }
}
