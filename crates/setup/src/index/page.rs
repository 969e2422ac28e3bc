//! A package's page of an index (PEP 691).

use super::PublishedRelease;
use crate::wheel::WheelName;
use facts::PlannedFile;
use pep440_rs::{Version, VersionSpecifiers};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
pub(super) struct Page {
    files: Vec<File>,
}

#[derive(Debug, Deserialize)]
struct File {
    filename: String,
    url: String,
    #[serde(default)]
    hashes: BTreeMap<String, String>,
    #[serde(rename = "requires-python")]
    requires_python: Option<String>,
    size: Option<u64>,
    #[serde(default)]
    yanked: serde_json::Value,
}

/// One release and its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PageRelease {
    version: Version,
    python: String,
    files: Vec<PlannedFile>,
}

impl PageRelease {
    pub(super) fn version(&self) -> &Version {
        &self.version
    }

    pub(super) fn has_source(&self) -> bool {
        self.files.iter().any(|file| !file.name.ends_with(".whl"))
    }

    pub(super) fn wheels(&self) -> impl Iterator<Item = WheelName> {
        self.files.iter().filter_map(|file| WheelName::parse(&file.name).ok())
    }

    /// A wheel whose METADATA represents the release: the smallest, for Linux if there are several.
    pub(super) fn wheel(&self) -> Option<&PlannedFile> {
        let wheels = self.files.iter().filter(|file| file.name.ends_with(".whl"));
        let linux =
            |file: &&PlannedFile| !(file.name.contains("linux") || file.name.ends_with("-any.whl"));
        wheels.min_by_key(|file| (linux(file), file.bytes))
    }

    pub(super) fn published(self, requires: Vec<String>, source: String) -> PublishedRelease {
        let Self { version, python, files } = self;
        PublishedRelease { version: version.to_string(), python, requires, files, source }
    }
}

impl Page {
    /// Reads the JSON form.
    ///
    /// # Errors
    /// If it is not a page of files.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| format!("not a page of PEP 691: {error}"))
    }

    /// The releases within these versions, newest first; the newest release of all if there is none, so that a planner
    /// can report it.
    pub(super) fn releases(&self, specifiers: &VersionSpecifiers) -> Vec<PageRelease> {
        let mut all: BTreeMap<Version, PageRelease> = BTreeMap::new();
        for file in self.files.iter().filter(|file| !file.is_yanked()) {
            let Some(version) = file.version() else { continue };
            let release = all.entry(version.clone()).or_insert_with(|| PageRelease {
                version,
                python: file.requires_python.clone().unwrap_or_default(),
                files: Vec::new(),
            });
            release.files.push(file.planned());
        }
        let newest_first: Vec<PageRelease> = all.into_values().rev().collect();
        let pre = specifiers.iter().any(|one| one.version().any_prerelease());
        let finals = newest_first.iter().any(|release| !release.version.any_prerelease());
        let meant = |release: &&PageRelease| {
            (pre || !finals || !release.version.any_prerelease())
                && specifiers.contains(&release.version)
        };
        let within: Vec<PageRelease> = newest_first.iter().filter(meant).cloned().collect();
        match within.is_empty() {
            true => newest_first
                .into_iter()
                .find(|release| !finals || !release.version.any_prerelease())
                .into_iter()
                .collect(),
            false => within,
        }
    }
}

impl File {
    fn is_yanked(&self) -> bool {
        !matches!(self.yanked, serde_json::Value::Null | serde_json::Value::Bool(false))
    }

    fn version(&self) -> Option<Version> {
        if let Ok(name) = WheelName::parse(&self.filename) {
            return name.version.parse().ok();
        }
        let stem = self.filename.strip_suffix(".tar.gz").or(self.filename.strip_suffix(".zip"))?;
        stem.rsplit_once('-')?.1.parse().ok()
    }

    fn planned(&self) -> PlannedFile {
        PlannedFile {
            name: self.filename.clone(),
            url: Some(self.url.clone()),
            sha256: self.hashes.get("sha256").cloned(),
            bytes: self.size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        let file = |name: &str, yanked: &str| {
            format!(
                r#"{{"filename": "{name}", "url": "https://files.example/{name}", "size": 10,
                   "hashes": {{"sha256": "{}"}}, "requires-python": ">=3.10", "yanked": {yanked}}}"#,
                "0".repeat(64)
            )
        };
        let files = [
            file("x-1.0-py3-none-any.whl", "false"),
            file("x-1.10-cp312-cp312-manylinux_2_28_x86_64.whl", "false"),
            file("x-1.10.tar.gz", "false"),
            file("x-1.9-py3-none-any.whl", "\"broken\""),
            file("x-2.0rc1-py3-none-any.whl", "false"),
            file("x-not.a.version.tar.gz", "false"),
        ];
        Page::parse(&format!(r#"{{"files": [{}]}}"#, files.join(","))).expect("a page")
    }

    #[test]
    fn releases_are_newest_first_without_yanked_files_and_prereleases() {
        let versions = |specifiers: &str| -> Vec<String> {
            let releases = page().releases(&specifiers.parse().expect(specifiers));
            releases.iter().map(|release| release.version.to_string()).collect()
        };
        assert_eq!(versions(""), ["1.10", "1.0"]);
        assert_eq!(versions("<1.10"), ["1.0"]);
        assert_eq!(versions(">=2.0rc1"), ["2.0rc1"]);
        // None is within the range: the newest one is returned.
        assert_eq!(versions(">=99"), ["1.10"]);
    }

    #[test]
    fn files_of_a_release_have_address_hash_and_size() {
        let releases = page().releases(&"==1.10".parse().expect("specifiers"));
        assert_eq!(releases[0].files.len(), 2);
        let wheel = releases[0].wheel().expect("a wheel");
        assert!(wheel.url.as_deref().is_some_and(|url| url.ends_with("x86_64.whl")), "{wheel:?}");
        assert_eq!((wheel.bytes, wheel.sha256.as_ref().map(String::len)), (Some(10), Some(64)));
        assert_eq!(releases[0].python, ">=3.10");
    }
}
