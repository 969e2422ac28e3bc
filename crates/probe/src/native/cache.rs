//! Caches results of earlier runs in one file, so that a second run of an environment takes milliseconds.
//!
//! The file is written completely and renamed into place, so a reader never sees a partial one. A damaged file, or one
//! of another version, is not an error: everything is read again and the file is replaced.

use super::elf::Object;
use super::link::Unresolved;
use super::store::Stamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Incremented when the cached data or its computation changes.
const VERSION: u32 = 7;
/// Files of removed environments are dropped beyond this number.
const MAX_FILES: usize = 20_000;

/// Files read in earlier runs.
#[derive(Debug, Default)]
pub(crate) struct CachedFiles {
    files: HashMap<PathBuf, Entry>,
}

/// One file of the cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) stamp: Stamp,
    /// `None`: not an ELF file.
    pub(crate) object: Option<Object>,
    /// The unresolved symbols, for the set of libraries with this fingerprint.
    pub(crate) linked: Option<(u64, Unresolved)>,
}

impl CachedFiles {
    /// Reads the cache file; empty if it is not usable.
    pub(crate) fn read(path: &Path) -> Self {
        let files = std::fs::read(path).ok().and_then(|bytes| parse(&bytes));
        Self { files: files.unwrap_or_default() }
    }

    /// Whether it has exactly this data of a file.
    pub(crate) fn has(
        &self,
        path: &Path,
        stamp: &Stamp,
        object: Option<&Object>,
        linked: Option<&(u64, Unresolved)>,
    ) -> bool {
        let entry = self.files.get(path).filter(|entry| entry.stamp == *stamp);
        entry.is_some_and(|it| it.object.as_ref() == object && it.linked.as_ref() == linked)
    }

    /// The data of an unchanged file: `Some(None)` if it is not an ELF file.
    pub(crate) fn object(&self, path: &Path, stamp: &Stamp) -> Option<Option<&Object>> {
        let entry = self.files.get(path).filter(|entry| entry.stamp == *stamp)?;
        Some(entry.object.as_ref())
    }

    /// The unresolved symbols of an unchanged file with the same libraries.
    pub(crate) fn linked(&self, path: &Path, stamp: &Stamp, key: u64) -> Option<&Unresolved> {
        let entry = self.files.get(path).filter(|entry| entry.stamp == *stamp)?;
        entry.linked.as_ref().filter(|(known, _)| *known == key).map(|(_, unresolved)| unresolved)
    }

    /// Writes the cache. The files of this run come first, others while there is room.
    ///
    /// # Errors
    /// The folder or the file cannot be written, which only costs time.
    pub(crate) fn update(self, path: &Path, fresh: HashMap<PathBuf, Entry>) -> std::io::Result<()> {
        let mut files: BTreeMap<String, Entry> = BTreeMap::new();
        let old = self.files.into_iter().filter(|(path, _)| !fresh.contains_key(path));
        let old: Vec<_> = old.take(MAX_FILES.saturating_sub(fresh.len())).collect();
        for (path, entry) in old.into_iter().chain(fresh) {
            if let Some(path) = path.to_str() {
                files.insert(path.to_owned(), entry);
            }
        }
        write(path, &files)
    }
}

/// Writes a cache: a header line with version and checksum, then JSON.
///
/// # Errors
/// The folder or the file cannot be written.
pub(crate) fn write(path: &Path, cached: &impl Serialize) -> std::io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder)?;
    let body = serde_json::to_vec(cached)?;
    // The process id separates concurrent runs; the last rename wins.
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let written = std::fs::write(&partial, [header(&body).as_bytes(), &body].concat())
        .and_then(|()| std::fs::rename(&partial, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    written
}

/// The content of a cache; `None` if it is damaged or has another version.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let end = bytes.iter().position(|byte| *byte == b'\n')? + 1;
    let (head, body) = bytes.split_at(end);
    (head == header(body).as_bytes()).then(|| serde_json::from_slice(body).ok())?
}

pub(super) fn header(body: &[u8]) -> String {
    let mut sum = Fnv::default();
    sum.write(body);
    format!("firstlight native cache {VERSION} {} {:016x}\n", env!("CARGO_PKG_VERSION"), sum.0)
}

/// FNV-1a over 8 bytes at a time: a checksum against accidental damage and a key, the same in every build.
pub(crate) struct Fnv(pub(crate) u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    pub(crate) fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        self.0 ^= self.0 >> 29;
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
        self.word(bytes.len() as u64);
    }
}
