//! uv installs files that are here, each held against its hash once more, and nothing else.

use super::program::{Programs, output};
use super::{ApplyError, environment, places};
use facts::AppliedPackage;
use std::fs;
use std::path::{Path, PathBuf};

/// A wheel and where it lies.
#[derive(Debug, Clone)]
pub(super) struct Wheel {
    pub(super) package: AppliedPackage,
    pub(super) path: PathBuf,
}

/// Installs these wheels into an environment, without a network and without asking what they depend on: the plan has
/// decided that.
pub(super) fn run(
    wheels: &[Wheel],
    new: &Path,
    work: &Path,
    programs: &Programs,
) -> Result<(), ApplyError> {
    if wheels.is_empty() {
        return Ok(());
    }
    // uv finds a wheel by its name in a folder; a path in its requirement would be kept in the environment for ever.
    let links = work.join("wheels");
    places::remove(&links)?;
    fs::create_dir_all(&links).map_err(ApplyError::io(&links))?;
    let mut lines = String::new();
    for Wheel { package, path } in wheels {
        let link = links.join(&package.file);
        std::os::unix::fs::symlink(path, &link).map_err(ApplyError::io(&link))?;
        let AppliedPackage { name, version, sha256, .. } = package;
        lines.push_str(&format!("{name}=={version} --hash=sha256:{sha256}\n"));
    }
    let list = work.join("requirements.txt");
    places::write(&list, lines.as_bytes())?;
    let mut command = programs.uv(&[
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-index",
        "--no-deps",
        "--no-build",
        "--require-hashes",
    ])?;
    command.arg("--find-links").arg(&links).arg("--python").arg(environment::python(new));
    output(command.arg("--requirement").arg(&list)).map(drop)
}
