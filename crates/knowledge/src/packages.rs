//! Packages that are more than a name and a version: their order, the GPUs they start at, what takes their place.

use crate::packed::table;
use crate::table::{minors, optional_minor, rows};
use crate::{Minor, Sm, Source};
use serde::Deserialize;
use std::sync::LazyLock;

/// One package.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// Normalised name.
    pub name: String,
    /// Packages of a lower number are installed before it.
    pub order: u32,
    /// `cuda` where it is of no use without an NVIDIA GPU.
    pub needs: Option<Needs>,
    /// The oldest compute capability it runs on.
    #[serde(default, deserialize_with = "optional_minor")]
    pub oldest_gpu: Option<Sm>,
    /// Whether installing it from source compiles GPU code.
    #[serde(default = "yes")]
    pub compiles: bool,
    /// What is missing where the package is not.
    pub lost: Option<String>,
    /// What takes its place there.
    pub instead: Option<String>,
    /// Where it was read.
    pub source: Source,
}

/// What a package is of no use without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Needs {
    /// An NVIDIA GPU.
    Cuda,
}

fn yes() -> bool {
    true
}

/// Requirements that a package states under an extra only.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unstated {
    /// Normalised name.
    pub package: String,
    /// Which releases, as PEP 440 specifiers.
    pub versions: String,
    /// The requirements (PEP 508).
    pub requires: Vec<String>,
    /// Where it was read.
    pub source: Source,
}

/// The CUDA releases a package brings a library for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Libraries {
    /// Normalised name.
    pub package: String,
    /// The release.
    pub version: String,
    /// CUDA releases, rising.
    #[serde(deserialize_with = "minors")]
    pub cuda: Vec<Minor>,
    /// Where it was read.
    pub source: Source,
}

static PACKAGES: LazyLock<Vec<Package>> =
    LazyLock::new(|| rows(table!("packages.toml"), "package"));
static UNSTATED: LazyLock<Vec<Unstated>> =
    LazyLock::new(|| rows(table!("packages.toml"), "requires"));
static LIBRARIES: LazyLock<Vec<Libraries>> =
    LazyLock::new(|| rows(table!("packages.toml"), "libraries"));

/// Every package of the table.
pub fn packages() -> &'static [Package] {
    &PACKAGES
}

/// The row of a package; `None` for one that is only a name and a version.
pub fn package(name: &str) -> Option<&'static Package> {
    packages().iter().find(|row| row.name == name)
}

/// Requirements of a package that its METADATA does not state without an extra.
pub fn unstated(package: &str) -> impl Iterator<Item = &'static Unstated> {
    UNSTATED.iter().filter(move |row| row.package == package)
}

/// The libraries inside a release; `None` for one that does not bring a library for each CUDA release.
pub fn libraries(package: &str, version: &str) -> Option<&'static Libraries> {
    LIBRARIES.iter().find(|row| row.package == package && row.version == version)
}
