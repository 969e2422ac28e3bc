//! `pylock.toml` (PEP 751), which uv and pip install without resolving.

use super::Format;
use crate::emit::target::environment;
use crate::emit::{EmitError, has_hashes};
use facts::{InstallPlan, PackageOrigin, PlannedFile, PlannedPackage};
use serde::{Deserialize, Serialize};

pub(super) const FORMAT: Format = Format {
    name: "pylock.toml",
    about: "a PEP 751 lock file; `uv pip sync pylock.toml` makes an environment equal to it.",
    write,
};

/// The parts of the document that a plan needs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Document {
    pub(crate) lock_version: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) environments: Vec<String>,
    pub(crate) requires_python: Option<String>,
    pub(crate) created_by: String,
    #[serde(default)]
    pub(crate) packages: Vec<Package>,
}

/// One package with all files that the machine may install.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: Option<String>,
    pub(crate) marker: Option<String>,
    pub(crate) index: Option<String>,
    pub(crate) sdist: Option<File>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) wheels: Vec<File>,
}

/// A wheel or a source archive.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct File {
    pub(crate) name: Option<String>,
    pub(crate) url: Option<String>,
    pub(crate) size: Option<u64>,
    pub(crate) hashes: Hashes,
}

/// Hashes of a file, by algorithm.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hashes {
    pub(crate) sha256: Option<String>,
}

fn write(plan: &InstallPlan) -> Result<String, EmitError> {
    let unfit = |reason: String, hint: &str| EmitError::Unfit {
        format: FORMAT.name,
        reason,
        hint: hint.to_owned(),
    };
    let mut packages = Vec::new();
    for package in &plan.packages {
        // The format cannot represent a build's switches, without which an installer would build something else or use
        // a prebuilt wheel.
        if matches!(package.origin, PackageOrigin::Build(_)) {
            return Err(unfit(
                format!(
                    "`{}` is built from source with variables that this format cannot express",
                    package.name
                ),
                "use plan.toml or pyproject.toml",
            ));
        }
        if !has_hashes(package) {
            return Err(EmitError::Unlocked { format: FORMAT.name, package: package.name.clone() });
        }
        packages.push(entry(plan, package));
    }
    let document = Document {
        lock_version: "1.0".to_owned(),
        environments: vec![environment(&plan.target)],
        requires_python: Some(format!("=={}.*", plan.python)),
        created_by: "firstlight".to_owned(),
        packages,
    };
    toml::to_string(&document).map_err(|error| {
        unfit(error.to_string(), "please report it: every locked plan should be valid")
    })
}

fn entry(plan: &InstallPlan, package: &PlannedPackage) -> Package {
    let index = plan.indexes.iter().find(|index| index.name == package.index);
    Package {
        name: package.name.clone(),
        version: Some(package.version.clone()),
        marker: package.marker.clone(),
        // The key is the address of a simple index, which a page of files is not.
        index: index.filter(|index| !index.flat).map(|index| index.url.clone()),
        sdist: None,
        wheels: package.files.iter().map(file).collect(),
    }
}

fn file(file: &PlannedFile) -> File {
    File {
        name: Some(file.name.clone()),
        url: file.url.clone(),
        size: file.bytes,
        hashes: Hashes { sha256: file.sha256.clone() },
    }
}
