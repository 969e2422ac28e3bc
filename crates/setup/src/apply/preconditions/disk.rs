//! Room for what comes: in the cache, in uv's cache and beside the environment.

use super::super::download::Chosen;
use super::super::places::Places;
use super::super::program::{Programs, output};
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
    programs: &Programs,
    unmet: &mut Vec<Unmet>,
) -> Result<u64, ApplyError> {
    let unpacked = UNPACKED * files.iter().filter_map(|file| file.bytes).sum::<u64>();
    let uv = PathBuf::from(output(&mut programs.uv(&["cache", "dir"])?)?.trim());
    // What is opened to be judged, and what is installed, which shares its files with uv's cache where both lie on one
    // file system.
    let mut needs: BTreeMap<u64, (PathBuf, u64)> = BTreeMap::new();
    let uv_device = device(&uv)?.0;
    for (folder, bytes) in
        [(cache, to_fetch), (places.work.as_path(), 2 * unpacked), (&uv, unpacked)]
    {
        let (device, at) = device(folder)?;
        let shared = folder == uv && device == self::device(&places.work)?.0 && device == uv_device;
        let entry = needs.entry(device).or_insert((at, 0));
        entry.1 += if shared { 0 } else { bytes };
    }
    for (folder, bytes) in needs.values() {
        let stat = rustix::fs::statvfs(folder.as_path())
            .map_err(|error| ApplyError::io(folder)(error.into()))?;
        let free = stat.f_bavail * stat.f_frsize;
        if free < *bytes {
            unmet.push(Unmet::new(
                format!("{} are free on the file system of {}, and {} are needed", mib(free), folder.display(), mib(*bytes)),
                "free some; `uv cache clean` gives back what uv keeps, and --cache names another folder for downloads",
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
