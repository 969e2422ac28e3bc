//! Paths of an apply: the environment, the new one, the old one, and the work folder.

use super::ApplyError;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of one apply, all in the environment's parent so that they can be renamed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApplyPaths {
    /// The environment.
    pub(super) venv: PathBuf,
    /// The new environment: `DIR.firstlight-new`.
    pub(super) new: PathBuf,
    /// The replaced environment: `DIR.firstlight-old`.
    pub(super) old: PathBuf,
    /// Locks, journal, opened wheels and built wheels: `DIR.firstlight-work`.
    pub(super) work: PathBuf,
}

impl ApplyPaths {
    /// The folders for an environment, which may be absent, empty or a virtual environment: anything else would be a
    /// user's data.
    pub(super) fn of(venv: &Path) -> Result<Self, ApplyError> {
        let folder = |what: &str, hint: &str| ApplyError::Folder {
            path: venv.to_owned(),
            what: what.to_owned(),
            hint: hint.to_owned(),
        };
        // A link's target is replaced, and the link stays.
        let venv = match fs::canonicalize(venv) {
            Ok(real) => real,
            Err(_) if venv.is_symlink() => {
                return Err(folder("is a broken link", "remove it, or name another folder"));
            }
            Err(_) => {
                let (Some(parent), Some(name)) = (venv.parent(), venv.file_name()) else {
                    return Err(folder(
                        "is not a folder name",
                        "name the environment: --venv .venv",
                    ));
                };
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                let parent = fs::canonicalize(parent).map_err(|error| {
                    folder(
                        &format!("is in a folder that does not exist ({error})"),
                        "create that folder first",
                    )
                })?;
                parent.join(name)
            }
        };
        if venv.exists() && !venv.is_dir() {
            return Err(folder("is a file", "name the environment's folder"));
        }
        if venv.join("conda-meta").exists() {
            let hint = "conda packages cannot be replaced by wheels one by one: name another folder, such as .venv";
            return Err(folder("is a conda environment", hint));
        }
        let environment = venv.join("pyvenv.cfg").is_file();
        if !environment && venv.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
            let hint = "name a virtual environment (a folder with pyvenv.cfg), or one that does not exist yet";
            return Err(folder("is not a virtual environment and not empty", hint));
        }
        let (Some(parent), Some(name)) = (venv.parent(), venv.file_name()) else {
            return Err(folder(
                "is the root of the file system",
                "name the environment: --venv .venv",
            ));
        };
        let beside = |what: &str| {
            let mut beside = OsString::from(name);
            beside.push(format!(".firstlight-{what}"));
            parent.join(beside)
        };
        Ok(Self {
            new: beside("new"),
            old: beside("old"),
            work: beside("work"),
            venv: venv.clone(),
        })
    }

    /// The environment while its wheels are opened, judged and installed. It becomes the new one when it is complete.
    pub(super) fn staging(&self) -> PathBuf {
        self.work.join("environment")
    }

    /// Wheels and logs of source builds.
    pub(super) fn built(&self) -> PathBuf {
        self.work.join("built")
    }
}

/// Removes a folder if it exists.
pub(super) fn remove(folder: &Path) -> Result<(), ApplyError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ApplyError::io(folder)(error))
        }
        _ => Ok(()),
    }
}

/// Writes a file atomically, and returns when it is on disk.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), ApplyError> {
    let folder = path.parent().unwrap_or(path);
    let written = tempfile::NamedTempFile::new_in(folder).and_then(|mut file| {
        std::io::Write::write_all(&mut file, content)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        fs::File::open(folder)?.sync_all()
    });
    written.map_err(ApplyError::io(path))
}
