//! What earlier runs read, kept in one file so that a second look at an environment costs some milliseconds.
//!
//! The file is written whole and put in place by a rename, so a reader never sees half of one. A file that is torn, of
//! another version or of another layout is no error: everything is read again and the file replaced.

use super::elf::Object;
use super::link::Unresolved;
use super::store::Stamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Raised when what is read of a file, or how, changes.
const VERSION: u32 = 6;
/// Files of environments that are gone drop out once there are this many.
const MOST_FILES: usize = 20_000;

/// Files read earlier.
#[derive(Debug, Default)]
pub(crate) struct Known {
    files: HashMap<PathBuf, Entry>,
}

/// One file of the cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) stamp: Stamp,
    /// `None`: no ELF file.
    pub(crate) object: Option<Object>,
    /// The unresolved symbols, for the set of libraries with this fingerprint.
    pub(crate) linked: Option<(u64, Unresolved)>,
}

impl Known {
    /// Reads the cache file; empty when there is none that can be used.
    pub(crate) fn read(path: &Path) -> Self {
        let files = std::fs::read(path).ok().and_then(|bytes| parse(&bytes));
        Self { files: files.unwrap_or_default() }
    }

    /// Whether it has exactly this of a file.
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

    /// What was read of an unchanged file: `Some(None)` when it is no ELF file.
    pub(crate) fn object(&self, path: &Path, stamp: &Stamp) -> Option<Option<&Object>> {
        let entry = self.files.get(path).filter(|entry| entry.stamp == *stamp)?;
        Some(entry.object.as_ref())
    }

    /// The unresolved symbols of an unchanged file among the same libraries.
    pub(crate) fn linked(&self, path: &Path, stamp: &Stamp, key: u64) -> Option<&Unresolved> {
        let entry = self.files.get(path).filter(|entry| entry.stamp == *stamp)?;
        entry.linked.as_ref().filter(|(known, _)| *known == key).map(|(_, unresolved)| unresolved)
    }

    /// Writes the cache. The files of this run come first, others while there is room.
    ///
    /// # Errors
    /// When the folder or the file cannot be written; nothing is lost then but time.
    pub(crate) fn update(self, path: &Path, fresh: HashMap<PathBuf, Entry>) -> std::io::Result<()> {
        let mut files: BTreeMap<String, Entry> = BTreeMap::new();
        let old = self.files.into_iter().filter(|(path, _)| !fresh.contains_key(path));
        let old: Vec<_> = old.take(MOST_FILES.saturating_sub(fresh.len())).collect();
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
/// When the folder or the file cannot be written.
pub(crate) fn write(path: &Path, cached: &impl Serialize) -> std::io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder)?;
    let body = serde_json::to_vec(cached)?;
    // The process id keeps two runs at once apart; the rename decides whose file stays.
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let written = std::fs::write(&partial, [header(&body).as_bytes(), &body].concat())
        .and_then(|()| std::fs::rename(&partial, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    written
}

/// What a cache's bytes hold; `None` where they are torn or another version's.
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

/// FNV-1a over 8 bytes at a time: a checksum against accidents and a key, the same in every build.
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
