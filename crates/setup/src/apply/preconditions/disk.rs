//! Disk space: in the cache and next to the environment.

use super::super::download::SelectedFile;
use super::super::places::ApplyPaths;
use super::super::{ApplyError, UnmetPrecondition};
use super::mib;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum ratio of a wheel's unpacked size to its packed size: libraries compress to between a half and a third;
/// texts compress further, but are the smaller part.
const UNPACKED: u64 = 3;

/// Checks the free space of each file system; returns the bytes that all of them need.
pub(super) fn check(
    files: &[SelectedFile],
    to_fetch: u64,
    cache: &Path,
    places: &ApplyPaths,
    unmet: &mut Vec<UnmetPrecondition>,
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
            unmet.push(UnmetPrecondition::new(
                format!(
                    "the file system of {1} has {0} free, and {2} are needed",
                    mib(free),
                    folder.display(),
                    mib(*bytes)
                ),
                "free some space; --cache selects another folder for downloads",
            ));
        }
    }
    Ok(needs.values().map(|(_, bytes)| bytes).sum())
}

/// The file system of a folder that may not exist yet, from its first existing parent.
fn device(folder: &Path) -> Result<(u64, PathBuf), ApplyError> {
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let metadata = there.metadata().map_err(ApplyError::io(there))?;
    Ok((metadata.dev(), there.to_owned()))
}
