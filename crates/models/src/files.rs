//! Files that are whole or not there.

use crate::ModelError;
#[cfg(unix)]
use facts::byte_count;
use std::path::Path;

/// Writes a file under another name first, so that a full disk leaves nothing that looks whole.
pub(crate) fn whole<T>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<T, String>,
) -> Result<T, ModelError> {
    let partial = path.with_extension("part");
    let written = write(&partial).and_then(|written| {
        std::fs::rename(&partial, path).map_err(|error| error.to_string())?;
        Ok(written)
    });
    written.map_err(|reason| {
        // What cannot be written can perhaps not be removed either; the first reason is the one to tell.
        let _ = std::fs::remove_file(&partial);
        ModelError::file(path, reason)
    })
}

/// Writes a whole text.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<(), ModelError> {
    whole(path, |partial| std::fs::write(partial, text).map_err(|error| error.to_string()))
}

/// Makes a folder, or takes one that holds nothing.
pub(crate) fn empty_folder(folder: &Path) -> Result<(), ModelError> {
    std::fs::create_dir_all(folder).map_err(|error| ModelError::file(folder, error))?;
    let mut entries = std::fs::read_dir(folder).map_err(|error| ModelError::file(folder, error))?;
    match entries.next() {
        Some(_) => Err(ModelError::file(folder, "is not empty, and nothing in it is replaced")),
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
