//! Writes files atomically.

use crate::ModelError;
#[cfg(unix)]
use facts::byte_count;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Writes a file under a temporary name first, so that an interrupted write leaves no file that looks complete.
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
        // Removing may fail for the same reason; the first error is the one to report.
        let _ = std::fs::remove_file(&partial);
        ModelError::written(path, error)
    })
}

/// Progress of a file operation, which another thread may watch and cancel.
#[derive(Debug, Clone, Default)]
pub struct FileProgress {
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl FileProgress {
    /// Bytes done so far.
    pub fn done(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.done)
    }

    /// Set to cancel the operation, which then removes its files.
    pub fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Counts bytes.
    ///
    /// # Errors
    /// Of kind `Interrupted`, once the operation is cancelled.
    pub(crate) fn add(&self, bytes: usize) -> io::Result<()> {
        self.done.fetch_add(bytes as u64, Ordering::Relaxed);
        match self.stop.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(()),
        }
    }
}

/// New files and folders, which are removed unless all of them are completed.
#[derive(Debug, Default)]
pub(crate) struct TemporaryFiles {
    files: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl TemporaryFiles {
    /// Creates a folder and its parents, or takes an empty one.
    pub(crate) fn folder(folder: &Path) -> Result<Self, ModelError> {
        let mut missing: Vec<PathBuf> =
            folder.ancestors().take_while(|at| !at.exists()).map(Path::to_owned).collect();
        missing.retain(|at| !at.as_os_str().is_empty());
        let made = Self { files: Vec::new(), folders: missing };
        empty_folder(folder)?;
        Ok(made)
    }

    /// Creates a file in it.
    pub(crate) fn file(&mut self, path: PathBuf) -> &Path {
        self.files.push(path);
        &self.files[self.files.len() - 1]
    }

    /// Keeps all files.
    pub(crate) fn keep(mut self) {
        self.files.clear();
        self.folders.clear();
    }
}

impl Drop for TemporaryFiles {
    fn drop(&mut self) {
        // Removal errors are ignored: the error that led here is reported.
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
        // The innermost first; a folder that another process has put something into is kept.
        for folder in &self.folders {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// Writes a text file.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<(), ModelError> {
    whole(path, |partial| std::fs::write(partial, text))
}

/// Creates a folder, or takes an empty one.
pub(crate) fn empty_folder(folder: &Path) -> Result<(), ModelError> {
    std::fs::create_dir_all(folder).map_err(|error| ModelError::written(folder, error))?;
    let mut entries = std::fs::read_dir(folder).map_err(|error| ModelError::file(folder, error))?;
    match entries.next() {
        Some(_) => Err(ModelError::file(folder, "is not empty, and nothing in it is replaced")
            .hinted("name a folder that is empty or does not exist yet")),
        None => Ok(()),
    }
}

/// Checks that the file system has enough free space.
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

/// The free space is unknown on this system: a full disk is reported when writing.
#[cfg(not(unix))]
pub(crate) fn room(_: &Path, _: u64) -> Result<(), ModelError> {
    Ok(())
}
