//! A plan in the words of other tools.

mod formats;
mod head;
mod target;
mod toml_text;

use crate::build::Source;
use facts::{PackageOrigin, Plan, PlannedPackage};
pub use formats::plan_toml::{PlanFileError, read_plan};
pub(crate) use formats::pylock;
pub(crate) use formats::pyproject;
pub use formats::{FORMATS, Format};
pub(crate) use target::python_platform;

/// Why a plan cannot be written in a format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// There is no such format.
    #[error("no format `{name}`")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The format promises hashes, and the plan has none yet.
    #[error("{format} holds the hash of every file, and this plan has none for `{package}`")]
    Unlocked {
        /// The format.
        format: &'static str,
        /// The first package without a file and its hash.
        package: String,
    },
    /// The plan holds something that the format cannot say.
    #[error("{format} cannot hold this plan: {reason}")]
    Unfit {
        /// The format.
        format: &'static str,
        /// What it cannot say.
        reason: String,
        /// Which format or plan to take.
        hint: String,
    },
}

impl EmitError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { .. } => format!("the formats are {}", names()),
            Self::Unlocked { .. } => {
                "lock the plan first (`--lock`), which asks the indexes for them".to_owned()
            }
            Self::Unfit { hint, .. } => hint.clone(),
        }
    }
}

fn names() -> String {
    FORMATS.iter().map(|format| format.name).collect::<Vec<_>>().join(", ")
}

/// Writes a plan in the format of this name. The text begins with a comment of what made it and how to renew it.
///
/// # Errors
/// Where there is no such format, or it cannot hold this plan.
pub fn emit(plan: &Plan, format: &str) -> Result<String, EmitError> {
    let format = FORMATS
        .iter()
        .find(|known| known.name == format)
        .ok_or_else(|| EmitError::Unknown { name: format.to_owned() })?;
    let body = (format.write)(plan)?;
    Ok(head::head(plan, format) + &body)
}

/// Whether a package is built from a source that is cloned, which has no file and no hash.
pub(crate) fn is_cloned(package: &PlannedPackage) -> bool {
    matches!(&package.origin, PackageOrigin::Build(recipe) if Source::git(&recipe.requirement).is_some())
}

/// Whether a package can be installed without asking an index what its files are.
pub(crate) fn has_hashes(package: &PlannedPackage) -> bool {
    let hashed =
        !package.files.is_empty() && package.files.iter().all(|file| file.sha256.is_some());
    hashed || is_cloned(package)
}
