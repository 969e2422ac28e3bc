//! Index data for a planner.

use facts::PlannedFile;
use knowledge::{WheelCode, wheel_code};
use std::collections::BTreeMap;

/// A published release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedRelease {
    /// Its version.
    pub version: String,
    /// `Requires-Python`; empty for any.
    pub python: String,
    /// `Requires-Dist` lines without an extra.
    pub requires: Vec<String>,
    /// Its files.
    pub files: Vec<PlannedFile>,
    /// The source page.
    pub source: String,
}

/// Index data read so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishedReleases {
    releases: BTreeMap<String, Vec<PublishedRelease>>,
    code: BTreeMap<String, WheelCode>,
}

impl PublishedReleases {
    /// The releases of a package.
    pub fn releases(&self, package: &str) -> &[PublishedRelease] {
        self.releases.get(package).map_or(&[], Vec::as_slice)
    }

    /// Whether the index was asked for a package.
    pub fn has(&self, package: &str) -> bool {
        self.releases.contains_key(package)
    }

    /// Adds releases; returns whether one of them is new.
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

    /// The CUDA libraries of a file; `None` if they were not read.
    pub fn code(&self, file: &PlannedFile) -> Option<WheelCode> {
        let sha256 = file.sha256.as_deref()?;
        self.code.get(sha256).or_else(|| wheel_code(sha256)).cloned()
    }

    /// Adds data about a file's libraries.
    pub fn add_code(&mut self, file: &PlannedFile, code: WheelCode) {
        self.code.extend(file.sha256.clone().map(|sha256| (sha256, code)));
    }
}
