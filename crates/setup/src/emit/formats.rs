//! The formats. A new one is a file under `formats/` and a line in [`FORMATS`].

mod conftest;
mod dockerfile;
mod dockerfile_arm64_cuda;
mod makefile;
pub(crate) mod plan_toml;
mod profile_yaml;
pub(crate) mod pylock;
pub(crate) mod pyproject;
mod requirements;

use super::EmitError;
use facts::InstallPlan;

/// Every format, firstlight's own first.
pub const FORMATS: &[Format] = &[
    plan_toml::FORMAT,
    pyproject::FORMAT,
    requirements::FORMAT,
    pylock::FORMAT,
    dockerfile::FORMAT,
    dockerfile_arm64_cuda::FORMAT,
    makefile::FORMAT,
    profile_yaml::FORMAT,
    conftest::FORMAT,
];

/// A file format of plans. All of them use `#` for comments.
pub struct Format {
    /// Its name, which is also the usual name of the file.
    pub name: &'static str,
    /// Its readers and use.
    pub about: &'static str,
    /// Writes everything after the head.
    pub(super) write: fn(&InstallPlan) -> Result<String, EmitError>,
}
