//! What teams in the field installed, by name.

use crate::packed::table;
use crate::table::{optional_minor, rows};
use crate::{Minor, Source};
use serde::Deserialize;
use std::sync::LazyLock;

/// A stored choice of packages for one job.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What it is called: `granite-a10`.
    pub name: String,
    /// One line about it.
    pub about: String,
    /// The machine it was reported from, one of [`crate::machines`].
    pub machine: String,
    /// Python, where the report names it.
    #[serde(default, deserialize_with = "optional_minor")]
    pub python: Option<Minor>,
    /// The CUDA release of torch's build, where the report names it.
    #[serde(default, deserialize_with = "optional_minor")]
    pub cuda: Option<Minor>,
    /// Requirements (PEP 508), in the order of the report.
    pub wants: Vec<String>,
    /// Requirements that are left out where nothing fits, with a warning; a marker may keep them off a platform.
    #[serde(default)]
    pub optional: Vec<String>,
    /// Packages that may be built from source.
    #[serde(default)]
    pub build: Vec<String>,
    /// Settings of the program that is run on the stack.
    #[serde(default)]
    pub options: Vec<ProfileOption>,
    /// Where it was read.
    pub source: Source,
}

/// A setting that a profile carries along.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileOption {
    /// Its name: `triton_sel_force`.
    pub name: String,
    /// Its value as text.
    pub value: String,
    /// Who may set it: `anyone` or `testing only`.
    pub who: String,
}

static PROFILES: LazyLock<Vec<Profile>> =
    LazyLock::new(|| rows(table!("profiles.toml"), "profile"));

/// Every profile.
pub fn profiles() -> &'static [Profile] {
    &PROFILES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_names_a_known_machine() {
        for profile in profiles() {
            let known = crate::machines::machines().iter().any(|row| row.name == profile.machine);
            assert!(known, "{}: {}", profile.name, profile.machine);
        }
    }
}
