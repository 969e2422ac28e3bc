//! Profiles: named sets of packages that teams reported as installed together.

use crate::packed::table;
use crate::table::{optional_minor, rows};
use crate::{Citation, Minor};
use serde::Deserialize;
use std::sync::LazyLock;

/// A stored set of packages for one task.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name: `granite-a10`.
    pub name: String,
    /// A one-line description.
    pub about: String,
    /// The machine of the report, one of [`crate::machines`].
    pub machine: String,
    /// The Python version, if the report names it.
    #[serde(default, deserialize_with = "optional_minor")]
    pub python: Option<Minor>,
    /// The CUDA release of the torch build, if the report names it.
    #[serde(default, deserialize_with = "optional_minor")]
    pub cuda: Option<Minor>,
    /// Requirements (PEP 508), in the order of the report.
    pub wants: Vec<String>,
    /// Requirements that are left out with a warning if no release fits; a marker may exclude a platform.
    #[serde(default)]
    pub optional: Vec<String>,
    /// Packages that may be built from source.
    #[serde(default)]
    pub build: Vec<String>,
    /// Settings of the program that runs on the stack.
    #[serde(default)]
    pub options: Vec<ProfileOption>,
    /// Source of the row.
    pub source: Citation,
}

/// A setting of the program of a profile.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileOption {
    /// Its name: `triton_sel_force`.
    pub name: String,
    /// Its value as text.
    pub value: String,
    /// The permitted use: `anyone` or `testing only`.
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
