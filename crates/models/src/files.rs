//! Files that are whole or not there.

use crate::ModelError;
#[cfg(unix)]
use facts::byte_count;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Writes a file under another name first, so that a full disk leaves nothing that looks whole.
pub(crate) fn whole<T>(
    path: &Path,
    write: impl FnOnce(&Path) -> io::Result<T>,
) -> Result<T, ModelError> {
    let partial = path.with_extension("part");
    let written = write(&partial).and_then(|written| {
        std::fs::rename(&partial, path)?;
        Ok(written)
    });
    written.map_err(|error| {
        // What cannot be written can perhaps not be removed either; the first reason is the one to tell.
        let _ = std::fs::remove_file(&partial);
        ModelError::written(path, error)
    })
}

/// Work on bytes that another thread may watch, and stop.
#[derive(Debug, Clone, Default)]
pub struct Watched {
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Watched {
    /// Bytes that are done.
    pub fn done(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.done)
    }

    /// Whether the work is to stop: it then takes back what it made.
    pub fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Counts bytes.
    ///
    /// # Errors
    /// Of the kind `Interrupted`, once the work is to stop.
    pub(crate) fn add(&self, bytes: usize) -> io::Result<()> {
        self.done.fetch_add(bytes as u64, Ordering::Relaxed);
        match self.stop.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(()),
        }
    }
}

/// Files and folders that are being made: they are removed unless all of them were.
#[derive(Debug, Default)]
pub(crate) struct Made {
    files: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Made {
    /// Makes a folder, and those above it, or takes one that holds nothing.
    pub(crate) fn folder(folder: &Path) -> Result<Self, ModelError> {
        let mut missing: Vec<PathBuf> =
            folder.ancestors().take_while(|at| !at.exists()).map(Path::to_owned).collect();
        missing.retain(|at| !at.as_os_str().is_empty());
        let made = Self { files: Vec::new(), folders: missing };
        empty_folder(folder)?;
        Ok(made)
    }

    /// Makes a file in it.
    pub(crate) fn file(&mut self, path: PathBuf) -> &Path {
        self.files.push(path);
        &self.files[self.files.len() - 1]
    }

    /// All of it is there, and stays.
    pub(crate) fn keep(mut self) {
        self.files.clear();
        self.folders.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // What cannot be removed stays, and why it was to be is told by whoever failed.
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
        // The innermost first, and none that somebody else has put something into.
        for folder in &self.folders {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// Writes a whole text.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<(), ModelError> {
    whole(path, |partial| std::fs::write(partial, text))
}

/// Makes a folder, or takes one that holds nothing.
pub(crate) fn empty_folder(folder: &Path) -> Result<(), ModelError> {
    std::fs::create_dir_all(folder).map_err(|error| ModelError::written(folder, error))?;
    let mut entries = std::fs::read_dir(folder).map_err(|error| ModelError::file(folder, error))?;
    match entries.next() {
        Some(_) => Err(ModelError::file(folder, "is not empty, and nothing in it is replaced")
            .hinted("name a folder that is empty or does not exist yet")),
        None => Ok(()),
    }
}

/// Holds what is to be written against what the file system has free.
#[cfg(unix)]
pub(crate) fn room(folder: &Path, bytes: u64) -> Result<(), ModelError> {
    let stat = rustix::fs::statvfs(folder).map_err(|error| ModelError::file(folder, error))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free < bytes {
        let what = format!(
            "{} has {} free, {} are to be written",
            folder.display(),
            byte_count(free),
            byte_count(bytes)
        );
        return Err(ModelError::Disk { what });
    }
    Ok(())
}

/// Without a way to ask, the disk itself says when it is full.
#[cfg(not(unix))]
pub(crate) fn room(_: &Path, _: u64) -> Result<(), ModelError> {
    Ok(())
}
