//! Errors of source builds.

use super::MissingRequirement;
use crate::wheel::WheelError;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Why a source build failed.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A requirement of the build is missing. Nothing was started.
    #[error("{package} cannot be built here: {}", listed(missing))]
    Preconditions {
        /// The package.
        package: String,
        /// Everything that is missing.
        missing: Vec<MissingRequirement>,
    },
    /// A folder of the build cannot be written or read.
    #[error("cannot use {}: {source}", folder.display())]
    Folder {
        /// The folder or file.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The source is not available.
    #[error("the source of {package} is not available: {what}")]
    Source {
        /// The package.
        package: String,
        /// The attempts and their results.
        what: String,
    },
    /// A program of the build could not be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// The build ended without a wheel.
    #[error("building {package} failed ({status}): {last}")]
    Failed {
        /// The package.
        package: String,
        /// Its exit status.
        status: ExitStatus,
        /// The most informative line of the log.
        last: String,
        /// The log.
        log: PathBuf,
    },
    /// The wheel has no compiled file.
    #[error("{package} was not compiled: {} has no compiled file", wheel.display())]
    NothingCompiled {
        /// The package.
        package: String,
        /// The wheel.
        wheel: PathBuf,
        /// The log.
        log: PathBuf,
    },
    /// A compiled file of the wheel was not linked by the build: a prebuilt wheel was used.
    #[error("{package} was not compiled here: {seen}")]
    Prebuilt {
        /// The package.
        package: String,
        /// The file that no compiler linked, the number of recorded runs, and the log's hint.
        seen: String,
        /// The switches that were set, `NAME=value`, or `none was set`.
        switches: String,
        /// The log.
        log: PathBuf,
    },
    /// The result is not a complete wheel.
    #[error(transparent)]
    Wheel(#[from] WheelError),
}

fn listed(missing: &[MissingRequirement]) -> String {
    let each: Vec<&str> = missing.iter().map(|missing| missing.what.as_str()).collect();
    each.join("; ")
}

impl BuildError {
    /// The remedy.
    pub fn hint(&self) -> String {
        match self {
            Self::Preconditions { missing, .. } => {
                let each: Vec<&str> = missing.iter().map(|missing| missing.hint.as_str()).collect();
                each.join("; ")
            }
            Self::Folder { .. } => "check free space and the folder's permissions".to_owned(),
            Self::Source { .. } => "try the URL in the plan manually".to_owned(),
            Self::Start { .. } => "check that it is installed and executable".to_owned(),
            Self::Failed { log, .. } => {
                let log = log.display();
                format!("the whole log is {log}; `firstlight explain {log}` explains it")
            }
            Self::NothingCompiled { log, .. } => {
                format!("the log {} shows which variable disabled its extension", log.display())
            }
            Self::Prebuilt { switches, .. } => format!(
                "its setup.py uses a prebuilt wheel if it finds one; its variable is *_FORCE_BUILD=TRUE ({switches})"
            ),
            Self::Wheel(error) => error.hint().to_owned(),
        }
    }

    /// A failure, with the line of the log that names its cause.
    pub(super) fn failed(package: &str, status: ExitStatus, log: &Path) -> Self {
        let text = std::fs::read(log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
        // A compiler's first error is the cause of later ones; for Python it is the last line.
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
