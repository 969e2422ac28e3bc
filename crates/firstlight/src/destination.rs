//! Where results go, looked at before anything is computed for them: minutes of work must not end with a folder that cannot
//! be written. Nothing is left behind by looking.

use crate::failure::Failure;
use std::path::{Path, PathBuf};

/// Looks whether files can be made in a folder, which need not be there yet.
pub(crate) fn folder(path: &Path) -> anyhow::Result<()> {
    // The nearest folder that is there: the others are made in it.
    let mut there = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    while !there.exists() && there.pop() {}
    if !there.is_dir() {
        let what = format!("cannot write {}: {} is not a folder", path.display(), there.display());
        return Err(Failure::hinted(what, "name a folder that is empty or does not exist yet"));
    }
    probe(&there).map_err(|error| cannot(path, &error))
}

/// Compares what is to be written with what the disk of a folder has free, which need not be there yet.
pub(crate) fn room(path: &Path, bytes: u64) -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let mut there = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        while !there.exists() && there.pop() {}
        // Where the system does not tell, the disk itself says when it is full.
        let Ok(stat) = rustix::fs::statvfs(&there) else { return Ok(()) };
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < bytes {
            let what = format!(
                "the disk of {} has {} free, and up to {} are written",
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

/// Looks whether a file can be written: a new one, or one that is replaced.
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
        return Err(Failure::hinted(what, "make the folder first, or name another one"));
    }
    probe(folder).map_err(|error| cannot(path, &error))
}

/// Refuses a file of results that is one of the files they are made from.
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

/// Makes a file and takes it away again.
fn probe(folder: &Path) -> std::io::Result<()> {
    let path = folder.join(format!(".firstlight.{}.probe", std::process::id()));
    std::fs::File::create(&path)?;
    std::fs::remove_file(&path)
}

fn cannot(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let what = format!("cannot write {}: {error}", path.display());
    Failure::hinted(what, "name a place that you may write to")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_written_passes_and_leaves_nothing() {
        let here = tempfile::tempdir().unwrap();
        folder(here.path()).unwrap();
        folder(&here.path().join("new/deeper")).unwrap();
        file(&here.path().join("out.csv")).unwrap();
        assert_eq!(here.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn what_cannot_be_written_says_why() {
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
