//! Checks output paths before anything is computed: minutes of work must not end with a folder that cannot be written.
//! The checks leave no files.

use crate::failure::{Failure, hint_for_write};
use std::path::{Path, PathBuf};

/// Checks that files can be created in a folder, which may not exist yet.
pub(crate) fn folder(path: &Path) -> anyhow::Result<()> {
    // The nearest existing parent, in which the others are created.
    let mut there = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    while !there.exists() && there.pop() {}
    if !there.is_dir() {
        let what = format!("cannot write {}: {} is not a folder", path.display(), there.display());
        return Err(Failure::hinted(what, "name a folder that is empty or does not exist yet"));
    }
    probe(&there).map_err(|error| cannot(path, &error))
}

/// Compares the bytes to write with the free space of a folder's disk; the folder may not exist yet.
pub(crate) fn room(path: &Path, bytes: u64) -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let mut there = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        while !there.exists() && there.pop() {}
        // If the system does not report it, a full disk fails on write.
        let Ok(stat) = rustix::fs::statvfs(&there) else { return Ok(()) };
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < bytes {
            let what = format!(
                "the disk of {} has {} free, and up to {} will be written",
                path.display(),
                facts::byte_count(free),
                facts::byte_count(bytes)
            );
            return Err(Failure::hinted(
                what,
                "free some space, or name a folder on another disk with -o",
            ));
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (path, bytes);
    Ok(())
}

/// Checks that a file can be created or replaced.
pub(crate) fn file(path: &Path) -> anyhow::Result<()> {
    if path.is_dir() {
        let what = format!("cannot write {}: it is a folder", path.display());
        return Err(Failure::hinted(what, "name a file"));
    }
    // A device or a pipe is written directly.
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return Ok(());
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        let what =
            format!("cannot write {}: there is no folder {}", path.display(), folder.display());
        return Err(Failure::hinted(what, "create the folder first, or name another one"));
    }
    probe(folder).map_err(|error| cannot(path, &error))
}

/// Refuses an output file that is one of the input files.
pub(crate) fn not_of(inputs: &[PathBuf], path: &Path) -> anyhow::Result<()> {
    let same = |input: &&PathBuf| match (input.canonicalize(), path.canonicalize()) {
        (Ok(input), Ok(path)) => input == path,
        _ => false,
    };
    match inputs.iter().find(same) {
        None => Ok(()),
        Some(input) => {
            let what = format!("{} would overwrite the input {}", path.display(), input.display());
            Err(Failure::hinted(what, "name another file with -o"))
        }
    }
}

/// Creates a file and removes it.
fn probe(folder: &Path) -> std::io::Result<()> {
    let path = folder.join(format!(".firstlight.{}.probe", std::process::id()));
    std::fs::File::create(&path)?;
    std::fs::remove_file(&path)
}

fn cannot(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let what = format!("cannot write {}: {error}", path.display());
    Failure::hinted(what, hint_for_write(error, "name a location with write permission"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writable_destinations_pass_and_leave_no_file() {
        let here = tempfile::tempdir().unwrap();
        folder(here.path()).unwrap();
        folder(&here.path().join("new/deeper")).unwrap();
        file(&here.path().join("out.csv")).unwrap();
        assert_eq!(here.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn unwritable_destinations_name_the_reason() {
        let here = tempfile::tempdir().unwrap();
        let plain = here.path().join("plain");
        std::fs::write(&plain, "x").unwrap();
        let said = |looked: anyhow::Result<()>| format!("{:#}", looked.unwrap_err());
        assert!(said(folder(&plain)).ends_with("plain is not a folder"));
        assert!(said(folder(&plain.join("below"))).ends_with("plain is not a folder"));
        assert!(said(file(&plain.join("below"))).contains("there is no folder"));
        assert!(said(file(&here.path().join("absent/out"))).contains("there is no folder"));
        assert!(said(file(here.path())).ends_with("it is a folder"));
        let inputs = [here.path().join("other"), plain.clone()];
        assert!(
            said(not_of(&inputs, &here.path().join("./plain"))).contains("overwrite the input")
        );
        not_of(&inputs, &here.path().join("out")).unwrap();
    }
}
