//! Room for what comes: in the cache and beside the environment.

use super::super::download::Chosen;
use super::super::places::Places;
use super::super::{ApplyError, Unmet};
use super::mib;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A wheel is unpacked to at most so many times its size: libraries shrink to between a half and a third of it, texts more,
/// and texts are the smaller part.
const UNPACKED: u64 = 3;

/// Counts what each file system has to hold, and gives the sum.
pub(super) fn check(
    files: &[Chosen],
    to_fetch: u64,
    cache: &Path,
    places: &Places,
    unmet: &mut Vec<Unmet>,
) -> Result<u64, ApplyError> {
    let unpacked = UNPACKED * files.iter().filter_map(|file| file.bytes).sum::<u64>();
    let mut needs: BTreeMap<u64, (PathBuf, u64)> = BTreeMap::new();
    for (folder, bytes) in [(cache, to_fetch), (places.work.as_path(), unpacked)] {
        let (device, at) = device(folder)?;
        needs.entry(device).or_insert((at, 0)).1 += bytes;
    }
    for (folder, bytes) in needs.values() {
        let stat = rustix::fs::statvfs(folder.as_path())
            .map_err(|error| ApplyError::io(folder)(error.into()))?;
        let free = stat.f_bavail * stat.f_frsize;
        if free < *bytes {
            unmet.push(Unmet::new(
                format!(
                    "{} are free on the file system of {}, and {} are needed",
                    mib(free),
                    folder.display(),
                    mib(*bytes)
                ),
                "free some; --cache names another folder for downloads",
            ));
        }
    }
    Ok(needs.values().map(|(_, bytes)| bytes).sum())
}

/// The file system of a folder that may not exist yet, by the first folder above it that does.
fn device(folder: &Path) -> Result<(u64, PathBuf), ApplyError> {
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let metadata = there.metadata().map_err(ApplyError::io(there))?;
    Ok((metadata.dev(), there.to_owned()))
}
