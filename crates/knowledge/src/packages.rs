//! Packages with special requirements: installation order, minimum GPU, alternatives.

use crate::packed::table;
use crate::table::{minors, optional_minor, rows};
use crate::{Citation, Minor, Sm};
use serde::Deserialize;
use std::sync::LazyLock;

/// One package.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// Normalised name.
    pub name: String,
    /// Packages with a lower number are installed first.
    pub order: u32,
    /// `cuda` if the published files that plans use need an NVIDIA GPU.
    pub needs: Option<Needs>,
    /// The minimum compute capability.
    #[serde(default, deserialize_with = "optional_minor")]
    pub oldest_gpu: Option<Sm>,
    /// Whether installing it from source compiles GPU code.
    #[serde(default = "yes")]
    pub compiles: bool,
    /// The feature that is missing without the package.
    pub lost: Option<String>,
    /// The alternative to the package.
    pub instead: Option<String>,
    /// Files for machines without an NVIDIA GPU that are published outside of the indexes, if `needs` is `cuda`.
    pub elsewhere: Option<String>,
    /// Source of the row.
    pub source: Citation,
}

/// Hardware that a package needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Needs {
    /// An NVIDIA GPU.
    Cuda,
}

impl Package {
    /// Why a plan cannot have it on a machine without an NVIDIA GPU.
    pub fn needs_gpu(&self) -> String {
        let elsewhere = self.elsewhere.iter().map(|text| format!("; {text}"));
        let name = &self.name;
        let rest: String = elsewhere.collect();
        format!(
            "firstlight plans {name} only for NVIDIA GPUs, which its files on package indexes need{rest}"
        )
    }
}

fn yes() -> bool {
    true
}

/// Requirements that a package needs but declares under an extra only.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MissingRequirements {
    /// Normalised name.
    pub package: String,
    /// The releases that need them, as PEP 440 specifiers.
    pub versions: String,
    /// The requirements (PEP 508).
    pub requires: Vec<String>,
    /// Source of the row.
    pub source: Citation,
}

/// The CUDA releases for which a release of a package contains a compiled library.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Libraries {
    /// Normalised name.
    pub package: String,
    /// The package's version.
    pub version: String,
    /// CUDA releases, in ascending order.
    #[serde(deserialize_with = "minors")]
    pub cuda: Vec<Minor>,
    /// Source of the row.
    pub source: Citation,
}

static PACKAGES: LazyLock<Vec<Package>> =
    LazyLock::new(|| rows(table!("packages.toml"), "package"));
static UNDECLARED: LazyLock<Vec<MissingRequirements>> =
    LazyLock::new(|| rows(table!("packages.toml"), "requires"));
static LIBRARIES: LazyLock<Vec<Libraries>> =
    LazyLock::new(|| rows(table!("packages.toml"), "libraries"));

/// Every package of the table.
pub fn packages() -> &'static [Package] {
    &PACKAGES
}

/// The row of a package; `None` if it has no special requirements.
pub fn package(name: &str) -> Option<&'static Package> {
    packages().iter().find(|row| row.name == name)
}

/// Requirements that a package needs but declares under an extra only.
pub fn undeclared_requirements(
    package: &str,
) -> impl Iterator<Item = &'static MissingRequirements> {
    UNDECLARED.iter().filter(move |row| row.package == package)
}

/// The bundled libraries of a release; `None` if it has no row.
pub fn libraries(package: &str, version: &str) -> Option<&'static Libraries> {
    LIBRARIES.iter().find(|row| row.package == package && row.version == version)
}
