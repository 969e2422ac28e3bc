//! What an index said, as a planner takes it.

use facts::PlannedFile;
use knowledge::{WheelCode, wheel_code};
use std::collections::BTreeMap;

/// One release that an index has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedRelease {
    /// Its version.
    pub version: String,
    /// `Requires-Python`; empty for any.
    pub python: String,
    /// `Requires-Dist` lines that hold without an extra.
    pub requires: Vec<String>,
    /// Its files.
    pub files: Vec<PlannedFile>,
    /// The page it was read from.
    pub source: String,
}

/// What was read of an index so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Published {
    releases: BTreeMap<String, Vec<PublishedRelease>>,
    code: BTreeMap<String, WheelCode>,
}

impl Published {
    /// The releases of a package.
    pub fn releases(&self, package: &str) -> &[PublishedRelease] {
        self.releases.get(package).map_or(&[], Vec::as_slice)
    }

    /// Whether the index was asked for a package.
    pub fn has(&self, package: &str) -> bool {
        self.releases.contains_key(package)
    }

    /// Adds releases, and tells whether one of them is new.
    pub fn add(&mut self, package: &str, releases: Vec<PublishedRelease>) -> bool {
        let all = self.releases.entry(package.to_owned()).or_default();
        let before = all.len();
        for release in releases {
            if !all.iter().any(|other| other.version == release.version) {
                all.push(release);
            }
        }
        all.len() > before
    }

    /// The CUDA libraries of a file; `None` where they were not read.
    pub fn code(&self, file: &PlannedFile) -> Option<WheelCode> {
        let sha256 = file.sha256.as_deref()?;
        self.code.get(sha256).or_else(|| wheel_code(sha256)).cloned()
    }

    /// Adds what was read of a file's libraries.
    pub fn add_code(&mut self, file: &PlannedFile, code: WheelCode) {
        self.code.extend(file.sha256.clone().map(|sha256| (sha256, code)));
    }
}
