//! How packages are built from source, and what that takes.

use crate::packed::table;
use crate::table::{minors, rows};
use crate::{Sm, Source};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// One package's build.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Normalised name.
    pub package: String,
    /// What pip or uv is given, with `{version}`.
    pub requirement: String,
    /// Switches of the environment.
    pub env: BTreeMap<String, String>,
    /// The variable that says which GPUs to compile for.
    pub arch: Option<String>,
    /// The architectures that variable may name; empty where any may stand there.
    #[serde(default, deserialize_with = "minors")]
    pub of: Vec<Sm>,
    /// Packages that have to be there before.
    pub build_requires: Vec<String>,
    /// Programs and headers of the system it needs.
    pub system_requires: Vec<String>,
    /// What the built package needs (PEP 508), where its source does not say.
    pub requires: Vec<String>,
    /// Releases that are not on PyPI but in the package's repository alone.
    #[serde(default)]
    pub only: Vec<String>,
    /// Least and most minutes that builds were seen to take.
    pub minutes: (u32, u32),
    /// Memory of one compile job in units of 10^9 bytes.
    pub job_gb: u64,
    /// Where it was read.
    pub source: Source,
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
