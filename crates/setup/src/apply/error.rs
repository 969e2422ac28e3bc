//! Why a plan was not applied.

use crate::fetch::{hint_for_status, http_status};
use facts::Finding;
use std::io;
use std::path::PathBuf;

/// Why a plan was not applied. Nothing in the environment's folder was changed.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The folder is not an environment that can be replaced.
    #[error("{} {what}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The problem.
        what: String,
        /// The remedy.
        hint: String,
    },
    /// Another apply is using the environment, or a program started by a killed one is still running.
    #[error("{what}: {}", venv.display())]
    Locked {
        /// The environment.
        venv: PathBuf,
        /// The holder of the lock.
        what: &'static str,
    },
    /// A precondition does not hold.
    #[error("{}", listed("this machine is not ready for the plan", unmet.iter().map(|it| it.what.clone())))]
    Unmet {
        /// Each with what to do.
        unmet: Vec<UnmetPrecondition>,
    },
    /// A file has another hash than in the plan.
    #[error("{file} from {url} has SHA-256 {found}, but the plan has {wanted}")]
    Hash {
        /// The file.
        file: String,
        /// Its address.
        url: String,
        /// The hash in the plan.
        wanted: String,
        /// The hash of the downloaded file.
        found: String,
    },
    /// A file could not be downloaded.
    #[error("{file} could not be downloaded from {url}: {reason}")]
    Fetch {
        /// The file.
        file: String,
        /// Its address.
        url: String,
        /// The last error.
        reason: String,
    },
    /// A wheel cannot be opened, or does not match its metadata.
    #[error(transparent)]
    Wheel(#[from] crate::wheel::WheelError),
    /// The rules find an error in the files to install.
    #[error("{}", listed("a wheel failed its inspection and is not installed", texts(findings)))]
    Judged {
        /// The errors among the findings.
        findings: Vec<Finding>,
    },
    /// The rules find an error in the finished environment.
    #[error("{}", listed("the new environment is not activated", texts(findings)))]
    Unsound {
        /// The errors among the findings.
        findings: Vec<Finding>,
    },
    /// The finished environment did not run correctly.
    #[error("the new environment is not activated: {what}")]
    Unproven {
        /// The observed and the expected result.
        what: String,
        /// The remedy.
        hint: String,
    },
    /// A program failed.
    #[error("`{program}` ended with {status}: {said}")]
    Program {
        /// The command line.
        program: String,
        /// Its exit status.
        status: String,
        /// The end of its output.
        said: String,
    },
    /// A package could not be built from source.
    #[error(transparent)]
    Build(#[from] crate::build::BuildError),
    /// A file or folder could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A precondition that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmetPrecondition {
    /// The actual and the required state, in one sentence.
    pub what: String,
    /// The remedy.
    pub hint: String,
}

impl UnmetPrecondition {
    pub(super) fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }
}

/// One sentence is appended in line; several are listed below each other.
fn listed(what: &str, parts: impl Iterator<Item = String>) -> String {
    let parts: Vec<String> = parts.collect();
    match parts.as_slice() {
        [one] => format!("{what}: {one}"),
        several => format!("{what}:\n  - {}", several.join("\n  - ")),
    }
}

fn texts(findings: &[Finding]) -> impl Iterator<Item = String> {
    findings.iter().map(|finding| {
        let evidence = finding.evidence.iter().map(|it| format!("{} ({})", it.what, it.source));
        let evidence: Vec<String> = evidence.collect();
        format!("{} [{}] {}", finding.title, finding.rule, evidence.join("; "))
    })
}

impl ApplyError {
    /// The remedy; `None` if the error's own text says it.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Folder { hint, .. } | Self::Unproven { hint, .. } => hint.clone(),
            Self::Locked { .. } => "wait for it to end; `ps` shows it".to_owned(),
            Self::Unmet { unmet } => {
                let hints: Vec<&str> = unmet.iter().map(|it| it.hint.as_str()).collect();
                hints.join("; ")
            }
            Self::Hash { .. } => "the download is discarded: if it happens again, the published file was replaced; make a new plan and compare its hash"
                .to_owned(),
            Self::Fetch { reason, .. } => {
                let status = http_status(reason);
                if let Some(hint) = status.and_then(hint_for_status) {
                    return Some(hint.to_owned());
                }
                "the partial download is kept: apply again when the network works, and it resumes".to_owned()
            }
            Self::Judged { findings } | Self::Unsound { findings } => {
                let fix = findings.iter().find(|finding| !finding.fix.is_empty())?;
                format!(
                    "make a plan without this choice; `firstlight explain {}` has details",
                    fix.rule
                )
            }
            Self::Program { .. } => "the old environment is unchanged; fix the reported problem and apply again".to_owned(),
            Self::Io { path, source } => match source.kind() {
                io::ErrorKind::NotFound => {
                    "another program removed it: make sure that no other program uses that folder, and apply again".to_owned()
                }
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    format!("free some space on the file system of {}, and apply again", path.display())
                }
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    format!("get write permission for {}, and apply again", path.display())
                }
                _ => "fix the reported problem, and apply again".to_owned(),
            },
            Self::Wheel(error) => error.hint().to_owned(),
            Self::Build(error) => error.hint(),
        };
        Some(text)
    }

    pub(super) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
