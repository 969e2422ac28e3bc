//! The record of a conversion, written to disk after each file: evidence of the conversion, and the state from which
//! another run resumes.

use super::keys::{CheckpointLayout, KeyMap};
use super::shard::{WrittenFile, sha256};
use crate::ModelError;
use crate::files::write_text;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// The record's file name in the target folder.
pub(super) const RECORD: &str = "firstlight-convert.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Whether every file is written.
    pub(super) complete: bool,
    /// The target layout.
    to: String,
    /// New names by source name.
    renamed: BTreeMap<String, String>,
    /// Tensors of zeros.
    zeros: Vec<String>,
    /// Complete files by name.
    pub(super) files: BTreeMap<String, Entry>,
}

/// A complete file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) bytes: u64,
    pub(super) sha256: String,
    pub(super) source: Source,
}

/// The source of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Source {
    pub(super) sha256: String,
    bytes: u64,
    /// Nanoseconds since 1970. A source modified later counts as another file.
    modified_nanos: u64,
    /// The text of its header, if safetensors' own writers would format it differently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) header: Option<String>,
}

/// Size and modification time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) bytes: u64,
    modified_nanos: u64,
}

impl Stamp {
    pub(super) fn of(path: &Path) -> Result<Self, ModelError> {
        let metadata = path.metadata().map_err(|error| ModelError::file(path, error))?;
        // Without modification times only the length is compared.
        let modified = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let nanos = modified.map_or(0, |since| since.as_nanos());
        Ok(Self { bytes: metadata.len(), modified_nanos: u64::try_from(nanos).unwrap_or(u64::MAX) })
    }
}

impl Entry {
    pub(super) fn new(written: WrittenFile, source: Stamp, header: Option<String>) -> Self {
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

    /// Whether the file exists, has the recorded hash, and was made from the current source.
    pub(super) fn is_proven(&self, path: &Path, source: Stamp) -> bool {
        (self.source.bytes, self.source.modified_nanos) == (source.bytes, source.modified_nanos)
            && path.metadata().is_ok_and(|metadata| metadata.len() == self.bytes)
            && sha256(path).is_ok_and(|sha256| sha256 == self.sha256)
    }
}

impl Record {
    /// The record of a new conversion.
    pub(super) fn new(map: &KeyMap) -> Self {
        Self {
            complete: false,
            to: map.to().name().to_owned(),
            renamed: map.renamed(),
            zeros: map.zeros().iter().map(|zeros| zeros.key.name.clone()).collect(),
            files: BTreeMap::new(),
        }
    }

    /// The record in a folder; `None` if there is none.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        serde_json::from_str(&std::fs::read_to_string(folder.join(RECORD)).ok()?).ok()
    }

    /// Whether this records a conversion to a layout.
    pub(super) fn is_to(&self, layout: CheckpointLayout) -> bool {
        self.to == layout.name()
    }

    /// Whether this records the same conversion, finished or not.
    pub(super) fn is_of(&self, map: &KeyMap) -> bool {
        let begun = Self::new(map);
        (&self.to, &self.renamed, &self.zeros) == (&begun.to, &begun.renamed, &begun.zeros)
    }

    pub(super) fn save(&self, folder: &Path) -> Result<(), ModelError> {
        // Maps of strings and numbers always serialize.
        let text = serde_json::to_string_pretty(self).unwrap_or_default() + "\n";
        write_text(&folder.join(RECORD), &text)
    }
}
