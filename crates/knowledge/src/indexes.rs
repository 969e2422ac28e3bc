//! Where files come from, and how they are called there.

use crate::packed::table;
use crate::table::rows;
use crate::{Arch, Minor, Source, dotted};
use serde::Deserialize;
use std::sync::LazyLock;

/// One index, or one kind of release page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// What other tables call it.
    pub name: String,
    /// Its address, a [`Named`] pattern.
    pub url: String,
    /// Whether it is a page of links and not an index (PEP 503).
    #[serde(default)]
    pub flat: bool,
    /// The folder its files lie in, a pattern; where it is not, only the index knows their addresses.
    pub files: Option<String>,
    /// The local label of versions there, a pattern.
    pub local: Option<String>,
    /// The platform tag of files there, a pattern.
    pub platform: Option<String>,
    /// The newest glibc its Linux files may ask for.
    pub glibc: Option<String>,
    /// Who stands behind it.
    pub trust: Trust,
    /// Where it was read.
    pub source: Source,
}

/// Who stands behind an index, the nearest to the package first.
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

/// What the patterns of a row stand for.
#[derive(Debug, Clone)]
pub struct Named<'a> {
    /// torch it was compiled against: `2.8.0`.
    pub torch: &'a str,
    /// torch's series.
    pub series: Minor,
    /// CUDA release.
    pub cuda: Minor,
    /// Whether it has the new C++ ABI.
    pub new_abi: bool,
    /// Processor.
    pub arch: Arch,
    /// Tag of the release: `v2.8.3`.
    pub tag: &'a str,
}

impl Named<'_> {
    /// A pattern with everything in its place.
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

/// The row of a name.
///
/// # Panics
/// For a name that is not in the table; a test reads every name that other tables use.
pub fn index(name: &str) -> &'static Index {
    let found = indexes().iter().find(|row| row.name == name);
    found.unwrap_or_else(|| panic!("indexes.toml has no `{name}`"))
}
