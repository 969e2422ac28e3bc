//! Why a plan was not applied.

use facts::Finding;
use std::io;
use std::path::PathBuf;

/// Why a plan was not applied. Nothing in the environment's folder was changed.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The folder cannot be an environment that is replaced.
    #[error("{} {what}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What it is.
        what: String,
        /// What to do.
        hint: String,
    },
    /// Another apply works on the same environment, or a program that a killed one started still runs.
    #[error("{what}: {}", venv.display())]
    Locked {
        /// The environment.
        venv: PathBuf,
        /// Who holds it.
        what: &'static str,
    },
    /// Something has to be put right before anything is made.
    #[error("{}", listed("this machine is not ready for the plan", unmet.iter().map(|it| it.what.clone())))]
    Unmet {
        /// Each with what to do.
        unmet: Vec<Unmet>,
    },
    /// A file is not the one the plan names.
    #[error("{file} from {url} has the sha256 {found}, but the plan has {wanted}")]
    Hash {
        /// The file.
        file: String,
        /// Its address.
        url: String,
        /// What the plan says.
        wanted: String,
        /// What was fetched.
        found: String,
    },
    /// A file could not be fetched.
    #[error("{file} could not be fetched from {url}: {reason}")]
    Fetch {
        /// The file.
        file: String,
        /// Its address.
        url: String,
        /// The last thing that went wrong.
        reason: String,
    },
    /// A wheel cannot be opened, or is not what it says.
    #[error(transparent)]
    Wheel(#[from] crate::wheel::WheelError),
    /// The rules find an error in what was to be installed.
    #[error("{}", listed("a wheel was opened and is not installed", texts(findings)))]
    Judged {
        /// The errors among the findings.
        findings: Vec<Finding>,
    },
    /// The rules find an error in the finished environment.
    #[error("{}", listed("the new environment is not put in place", texts(findings)))]
    Unsound {
        /// The errors among the findings.
        findings: Vec<Finding>,
    },
    /// The finished environment did not run as it should.
    #[error("the new environment is not put in place: {what}")]
    Unproven {
        /// What was seen in place of what was wanted.
        what: String,
        /// What to do.
        hint: String,
    },
    /// A program failed.
    #[error("`{program}` ended with {status}: {said}")]
    Program {
        /// The command line.
        program: String,
        /// Its exit status.
        status: String,
        /// The end of what it printed.
        said: String,
    },
    /// A package could not be built from source.
    #[error(transparent)]
    Build(#[from] crate::build::BuildError),
    /// A file or folder could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was being read or written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Something that has to be put right first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmet {
    /// What is there and what was wanted, in one sentence.
    pub what: String,
    /// What to do.
    pub hint: String,
}

impl Unmet {
    pub(super) fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }
}

/// One sentence stands alone; several stand below each other.
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
    /// What to do about it; `None` where the error's own text says it.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Folder { hint, .. } | Self::Unproven { hint, .. } => hint.clone(),
            Self::Locked { .. } => "wait for it to end; `ps` shows it".to_owned(),
            Self::Unmet { unmet } => {
                let hints: Vec<&str> = unmet.iter().map(|it| it.hint.as_str()).collect();
                hints.join("; ")
            }
            Self::Hash { .. } => "what was fetched is thrown away: if it happens again, the file was replaced where it \
                                  is published; make the plan again and see whether its hash is explained there"
                .to_owned(),
            Self::Fetch { .. } => {
                "what came is kept: apply again when the network does, and it goes on from there".to_owned()
            }
            Self::Judged { findings } | Self::Unsound { findings } => {
                let fix = findings.iter().find(|finding| !finding.fix.is_empty())?;
                format!(
                    "make a plan without this choice; `firstlight explain {}` says more",
                    fix.rule
                )
            }
            Self::Program { .. } => "the old environment is as it was; put right what it says and apply again".to_owned(),
            Self::Io { path, source } => match source.kind() {
                io::ErrorKind::NotFound => {
                    "something removed it meanwhile: see that nothing else works in that folder, and apply again".to_owned()
                }
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    format!("make space on the file system of {}, and apply again", path.display())
                }
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    format!("see that {} is yours to write, and apply again", path.display())
                }
                _ => "put right what the system says, and apply again".to_owned(),
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
