//! What was converted, on the disk after each file: the evidence of a conversion, and what another run goes on from.

use super::keys::{KeyMap, Layout};
use super::shard::{Written, sha256};
use crate::ModelError;
use crate::files::write_text;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// The record's file, in the folder that is written.
pub(super) const RECORD: &str = "firstlight-convert.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Whether every file is written.
    pub(super) complete: bool,
    /// The layout.
    to: String,
    /// Names that changed, by those that were read.
    renamed: BTreeMap<String, String>,
    /// Tensors of fla's layout alone, all zeros.
    zeros: Vec<String>,
    /// Files that are whole, by name.
    pub(super) files: BTreeMap<String, Entry>,
}

/// A whole file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) bytes: u64,
    pub(super) sha256: String,
    pub(super) source: Source,
}

/// What it was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Source {
    pub(super) sha256: String,
    bytes: u64,
    /// Since 1970. A source that was written since is another one.
    modified_nanos: u64,
    /// Its header's text, where safetensors' own writers lay it out otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) header: Option<String>,
}

/// Length and time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) bytes: u64,
    modified_nanos: u64,
}

impl Stamp {
    pub(super) fn of(path: &Path) -> Result<Self, ModelError> {
        let metadata = path.metadata().map_err(|error| ModelError::file(path, error))?;
        // A file system without times tells the length alone.
        let modified = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let nanos = modified.map_or(0, |since| since.as_nanos());
        Ok(Self { bytes: metadata.len(), modified_nanos: u64::try_from(nanos).unwrap_or(u64::MAX) })
    }
}

impl Entry {
    pub(super) fn new(written: Written, source: Stamp, header: Option<String>) -> Self {
        Self {
            bytes: written.bytes,
            sha256: written.sha256,
            source: Source {
                sha256: written.source_sha256,
                bytes: source.bytes,
                modified_nanos: source.modified_nanos,
                header,
            },
        }
    }

    /// Whether the file is there as it was written, by its hash, and made from what the source is now.
    pub(super) fn is_proven(&self, path: &Path, source: Stamp) -> bool {
        (self.source.bytes, self.source.modified_nanos) == (source.bytes, source.modified_nanos)
            && path.metadata().is_ok_and(|metadata| metadata.len() == self.bytes)
            && sha256(path).is_ok_and(|sha256| sha256 == self.sha256)
    }
}

impl Record {
    /// The record of a conversion that begins.
    pub(super) fn new(map: &KeyMap) -> Self {
        Self {
            complete: false,
            to: map.to().name().to_owned(),
            renamed: map.renamed(),
            zeros: map.zeros().iter().map(|zeros| zeros.key.name.clone()).collect(),
            files: BTreeMap::new(),
        }
    }

    /// The record of a folder; none where it has none.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        serde_json::from_str(&std::fs::read_to_string(folder.join(RECORD)).ok()?).ok()
    }

    /// Whether this is of a conversion into a layout.
    pub(super) fn is_to(&self, layout: Layout) -> bool {
        self.to == layout.name()
    }

    /// Whether this is of the same conversion, however far it came.
    pub(super) fn is_of(&self, map: &KeyMap) -> bool {
        let begun = Self::new(map);
        (&self.to, &self.renamed, &self.zeros) == (&begun.to, &begun.renamed, &begun.zeros)
    }

    pub(super) fn save(&self, folder: &Path) -> Result<(), ModelError> {
        // Maps of strings and numbers always serialise.
        let text = serde_json::to_string_pretty(self).unwrap_or_default() + "\n";
        write_text(&folder.join(RECORD), &text)
    }
}
