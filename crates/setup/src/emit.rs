//! Writes a plan in the formats of other tools.

mod formats;
mod head;
mod target;
mod toml_text;

use crate::build::BuildSource;
use facts::{InstallPlan, PackageOrigin, PlannedPackage};
pub use formats::plan_toml::{PlanFileError, read_plan};
pub(crate) use formats::pylock;
pub(crate) use formats::pyproject;
pub use formats::{FORMATS, Format};
pub(crate) use target::python_platform;

/// Why a plan cannot be written in a format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// Unknown format.
    #[error("no format `{name}`")]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// The format requires hashes, which the plan does not have yet.
    #[error("{format} needs the hash of every file, and this plan has none for `{package}`")]
    Unlocked {
        /// The format.
        format: &'static str,
        /// The first package without a file and its hash.
        package: String,
    },
    /// The plan contains something that the format cannot represent.
    #[error("{format} cannot express this plan: {reason}")]
    Unfit {
        /// The format.
        format: &'static str,
        /// The part of the plan that it cannot represent.
        reason: String,
        /// Another format or plan to use.
        hint: String,
    },
}

impl EmitError {
    /// The remedy.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { .. } => format!("the formats are {}", names()),
            Self::Unlocked { .. } => {
                "lock the plan first (`--lock`), which queries the indexes for them".to_owned()
            }
            Self::Unfit { hint, .. } => hint.clone(),
        }
    }
}

fn names() -> String {
    FORMATS.iter().map(|format| format.name).collect::<Vec<_>>().join(", ")
}

/// Writes a plan in the format of this name. The text starts with a comment that says what made it and how to update
/// it.
///
/// # Errors
/// If the format is unknown, or cannot represent this plan.
pub fn emit(plan: &InstallPlan, format: &str) -> Result<String, EmitError> {
    let format = FORMATS
        .iter()
        .find(|known| known.name == format)
        .ok_or_else(|| EmitError::Unknown { name: format.to_owned() })?;
    let body = (format.write)(plan)?;
    Ok(head::head(plan, format) + &body)
}

/// Whether a package is built from a cloned source, which has no file and no hash.
pub(crate) fn is_cloned(package: &PlannedPackage) -> bool {
    matches!(&package.origin, PackageOrigin::Build(recipe) if BuildSource::git(&recipe.requirement).is_some())
}

/// Whether a package can be installed without asking an index for its files.
pub(crate) fn has_hashes(package: &PlannedPackage) -> bool {
    let hashed =
        !package.files.is_empty() && package.files.iter().all(|file| file.sha256.is_some());
    hashed || is_cloned(package)
}
