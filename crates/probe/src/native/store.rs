//! The ELF files of one run, each read once: from the cache of earlier runs if it is unchanged.

use super::cache::CachedFiles;
use super::elf::{self, Object};
use super::symbols::{self, Symbols};
use crate::Source;
use object::read::ReadCache;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Identifies the state of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Stamp {
    pub(crate) bytes: u64,
    pub(crate) mtime_seconds: i64,
    pub(crate) mtime_nanos: i64,
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl Stamp {
    /// Whether both are the same file, by any path.
    pub(crate) fn same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// One ELF file.
#[derive(Debug)]
pub(crate) struct Lib {
    pub(crate) path: PathBuf,
    pub(crate) stamp: Stamp,
    pub(crate) object: Object,
    symbols: OnceLock<Result<Symbols, String>>,
}

/// The files of one run.
pub(crate) struct Store<'a> {
    source: &'a Source,
    known: &'a CachedFiles,
    /// Keyed by the path as a string, which hashes several times faster than a `Path`.
    files: Mutex<HashMap<OsString, Option<Arc<Lib>>>>,
}

impl<'a> Store<'a> {
    pub(crate) fn new(source: &'a Source, known: &'a CachedFiles) -> Self {
        Self { source, known, files: Mutex::default() }
    }

    /// The ELF file at a path; `None` when there is none.
    pub(crate) fn get(&self, path: &Path) -> Option<Arc<Lib>> {
        let lock = || self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = lock().get(path.as_os_str()) {
            return read.clone();
        }
        // Two threads may read one file at once, with equal results.
        let read = self.read(path).map(Arc::new);
        lock().entry(path.into()).or_insert(read).clone()
    }

    fn read(&self, path: &Path) -> Option<Lib> {
        let stamp = self.source.stamp(path)?;
        let object = match self.known.object(path, &stamp) {
            Some(object) => object?.clone(),
            None => {
                let file = self.source.open(path).ok()?;
                elf::parse(&ReadCache::new(file))?
            }
        };
        Some(Lib { path: path.to_path_buf(), stamp, object, symbols: OnceLock::new() })
    }

    /// The symbols of a file, read on first use.
    pub(crate) fn symbols<'l>(&self, lib: &'l Lib) -> Result<&'l Symbols, &'l str> {
        let read = || {
            let file: File = self.source.open(&lib.path).map_err(|reason| reason.to_string())?;
            symbols::read(&ReadCache::new(file)).map_err(str::to_owned)
        };
        lib.symbols.get_or_init(read).as_ref().map_err(String::as_str)
    }

    /// Every file that was read, by path.
    pub(crate) fn into_files(self) -> Vec<(PathBuf, Option<Arc<Lib>>)> {
        let files = self.files.into_inner().unwrap_or_else(PoisonError::into_inner);
        files.into_iter().map(|(path, lib)| (path.into(), lib)).collect()
    }
}
