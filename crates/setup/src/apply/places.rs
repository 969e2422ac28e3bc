//! Where things are: the environment, the one that is built beside it, the old one, and the folder of the work.

use super::ApplyError;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of one apply, all in the environment's parent so that a rename moves them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Places {
    /// The environment.
    pub(super) venv: PathBuf,
    /// The one that is built: `DIR.firstlight-new`.
    pub(super) new: PathBuf,
    /// The one that was replaced: `DIR.firstlight-old`.
    pub(super) old: PathBuf,
    /// Locks, journal, opened wheels and what was built: `DIR.firstlight-work`.
    pub(super) work: PathBuf,
}

impl Places {
    /// The folders for an environment, whose own may be absent, empty or a virtual environment: anything else would be
    /// somebody's data.
    pub(super) fn of(venv: &Path) -> Result<Self, ApplyError> {
        let folder = |what: &str, hint: &str| ApplyError::Folder {
            path: venv.to_owned(),
            what: what.to_owned(),
            hint: hint.to_owned(),
        };
        // Through a link the folder behind it is replaced, and the link stays.
        let venv = match fs::canonicalize(venv) {
            Ok(real) => real,
            Err(_) if venv.is_symlink() => {
                return Err(folder(
                    "is a link that leads nowhere",
                    "remove it, or name another folder",
                ));
            }
            Err(_) => {
                let (Some(parent), Some(name)) = (venv.parent(), venv.file_name()) else {
                    return Err(folder(
                        "is no name of a folder",
                        "name the environment: --venv .venv",
                    ));
                };
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                let parent = fs::canonicalize(parent).map_err(|error| {
                    folder(
                        &format!("lies in a folder that is not there ({error})"),
                        "make that folder first",
                    )
                })?;
                parent.join(name)
            }
        };
        if venv.exists() && !venv.is_dir() {
            return Err(folder("is a file", "name the environment's folder"));
        }
        if venv.join("conda-meta").exists() {
            let hint = "conda packages cannot be replaced by wheels one by one: name a folder beside it, such as .venv";
            return Err(folder("is a conda environment", hint));
        }
        let environment = venv.join("pyvenv.cfg").is_file();
        if !environment && venv.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
            let hint = "name a virtual environment (a folder with pyvenv.cfg), or one that does not exist yet";
            return Err(folder("is no virtual environment and not empty", hint));
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

    /// The environment while its wheels are opened, judged and installed. It becomes the new one when it is whole.
    pub(super) fn made(&self) -> PathBuf {
        self.work.join("environment")
    }

    /// Wheels and logs of source builds.
    pub(super) fn built(&self) -> PathBuf {
        self.work.join("built")
    }
}

/// Removes a folder that need not be there.
pub(super) fn remove(folder: &Path) -> Result<(), ApplyError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ApplyError::io(folder)(error))
        }
        _ => Ok(()),
    }
}

/// Writes a whole file or nothing, and returns when it is on the disk.
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
