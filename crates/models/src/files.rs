//! Files that are whole or not there.

use crate::ModelError;
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
