use std::path::PathBuf;

/// Why an environment or a recorded machine selected by the user could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The path does not exist.
    #[error("environment {} does not exist", path.display())]
    VenvMissing {
        /// The path given.
        path: PathBuf,
    },
    /// The path is a file.
    #[error("environment {} is a file, not a folder", path.display())]
    VenvIsFile {
        /// The path given.
        path: PathBuf,
    },
    /// The folder or its pyvenv.cfg cannot be read.
    #[error("environment {} cannot be read: {} ({reason})", path.display(), file.display())]
    VenvUnreadable {
        /// The path given.
        path: PathBuf,
        /// The file that could not be opened.
        file: PathBuf,
        /// The operating system's error.
        reason: std::io::Error,
    },
    /// The folder is not an environment.
    #[error(
        "{} is not a python environment: it has no pyvenv.cfg, no conda-meta and no bin/python with \
         lib/python3.*/site-packages",
        path.display()
    )]
    NotAnEnvironment {
        /// The path given.
        path: PathBuf,
    },
    /// A recorded machine without its files.
    #[error("recorded machine {} has no folder named root", path.display())]
    NotARecording {
        /// The path given.
        path: PathBuf,
    },
}

impl ProbeError {
    /// A hint in one line.
    pub fn hint(&self) -> String {
        match self {
            Self::VenvMissing { path } => {
                format!("create it with `python3 -m venv {}`, or correct the path", path.display())
            }
            Self::VenvIsFile { path } => {
                // `--venv DIR/bin/python` is a common mistake: the environment is two folders up.
                let folder = path
                    .parent()
                    .filter(|parent| parent.ends_with("bin"))
                    .and_then(|parent| parent.parent())
                    .or(path.parent());
                match folder {
                    Some(folder) if !folder.as_os_str().is_empty() => {
                        format!("name the environment's folder: {}", folder.display())
                    }
                    _ => "name the environment's folder, not a file in it".to_string(),
                }
            }
            Self::VenvUnreadable { file, .. } => {
                format!(
                    "check what `ls -ld {}` says about its owner and permissions",
                    file.display()
                )
            }
            Self::NotAnEnvironment { path } => format!(
                "name the folder that holds pyvenv.cfg (often {}), or make one with `python3 -m venv`",
                path.join(".venv").display()
            ),
            Self::NotARecording { path } => {
                format!("put the machine's files under {}", path.join("root").display())
            }
        }
    }
}
