//! Package indexes and release pages, and the file names that they use.

use crate::packed::table;
use crate::table::rows;
use crate::{Arch, Citation, Minor, dotted};
use serde::Deserialize;
use std::sync::LazyLock;

/// One index, or one kind of release page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// Its name in other tables.
    pub name: String,
    /// Its address, a [`WheelVariables`] pattern.
    pub url: String,
    /// Whether it is a flat page of links (`--find-links`) and not an index (PEP 503).
    #[serde(default)]
    pub flat: bool,
    /// The address of the folder with its files, a pattern; `None` if only the index has their addresses.
    pub files: Option<String>,
    /// The local version label of its files, a pattern.
    pub local: Option<String>,
    /// The platform tag of its files, a pattern.
    pub platform: Option<String>,
    /// The newest glibc that its Linux files may require.
    pub glibc: Option<String>,
    /// Its publisher.
    pub trust: Trust,
    /// Source of the row.
    pub source: Citation,
}

/// The publisher of an index, the most trusted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// The Python Package Index, where projects publish themselves.
    Registry,
    /// The people who make the package.
    Project,
    /// A company that builds others' packages.
    Publisher,
    /// One person's builds.
    Community,
}

/// The values of the placeholders in an index's patterns.
#[derive(Debug, Clone)]
pub struct WheelVariables<'a> {
    /// The torch release it was compiled against: `2.8.0`.
    pub torch: &'a str,
    /// The torch series.
    pub series: Minor,
    /// The CUDA release.
    pub cuda: Minor,
    /// Whether it has the new C++ ABI.
    pub new_abi: bool,
    /// The processor.
    pub arch: Arch,
    /// Tag of the release: `v2.8.3`.
    pub tag: &'a str,
}

impl WheelVariables<'_> {
    /// Replaces the placeholders of a pattern.
    pub fn fill(&self, pattern: &str) -> String {
        pattern
            .replace("{torch}", self.torch)
            .replace("{series}", &dotted(self.series))
            .replace("{cuda}", &dotted(self.cuda))
            .replace("{digits}", &format!("{}{}", self.cuda.0, self.cuda.1))
            .replace("{major}", &self.cuda.0.to_string())
            .replace("{abi}", crate::abi::label(self.new_abi))
            .replace("{arch}", self.arch.as_str())
            .replace("{tag}", self.tag)
    }
}

static INDEXES: LazyLock<Vec<Index>> = LazyLock::new(|| rows(table!("indexes.toml"), "index"));

/// Every index.
pub fn indexes() -> &'static [Index] {
    &INDEXES
}

/// The index with this name.
///
/// # Panics
/// If the table has no such name; a test reads every name that other tables use.
pub fn index(name: &str) -> &'static Index {
    let found = indexes().iter().find(|row| row.name == name);
    found.unwrap_or_else(|| panic!("indexes.toml has no `{name}`"))
}
