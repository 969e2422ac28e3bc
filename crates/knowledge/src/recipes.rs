//! How packages are built from source: settings, requirements, time and memory.

use crate::packed::table;
use crate::table::{minors, rows};
use crate::{Citation, Sm};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The build of one package.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Normalised name.
    pub package: String,
    /// The requirement passed to pip or uv, with `{version}`.
    pub requirement: String,
    /// Environment variables of the build.
    pub env: BTreeMap<String, String>,
    /// The environment variable for the compute capabilities to compile for.
    pub arch: Option<String>,
    /// The compute capabilities that the variable accepts; empty if it accepts any.
    #[serde(default, deserialize_with = "minors")]
    pub of: Vec<Sm>,
    /// Packages to install before the build.
    pub build_requires: Vec<String>,
    /// System programs and headers that the build needs.
    pub system_requires: Vec<String>,
    /// Requirements of the built package (PEP 508) that its source does not declare statically.
    pub requires: Vec<String>,
    /// Releases that are in the package's repository and not on PyPI.
    #[serde(default)]
    pub only: Vec<String>,
    /// Shortest and longest observed build, in minutes.
    pub minutes: (u32, u32),
    /// Memory of one compile job, in units of 10^9 bytes.
    pub job_gb: u64,
    /// Source of the row.
    pub source: Citation,
}

static RECIPES: LazyLock<Vec<Recipe>> = LazyLock::new(|| rows(table!("recipes.toml"), "recipe"));

/// Every recipe.
pub fn recipes() -> &'static [Recipe] {
    &RECIPES
}

/// The recipe of a package.
pub fn recipe(package: &str) -> Option<&'static Recipe> {
    recipes().iter().find(|row| row.package == package)
}
