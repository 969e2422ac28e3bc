//! A virtual environment as a folder: made by uv, and looked at.

use super::program::{Programs, output};
use super::{ApplyError, places};
use facts::CompactCollect;
use facts::{AppliedPackage, Dist};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The environment's interpreter.
pub(super) fn python(environment: &Path) -> PathBuf {
    environment.join("bin/python")
}

/// Where the environment's interpreter should be and is not: a link whose Python was removed, or nothing.
pub(super) fn lost_python(environment: &Path) -> Option<String> {
    let python = python(environment);
    if python.exists() {
        return None;
    }
    Some(match fs::read_link(&python) {
        Ok(to) => format!("{} leads to {}, which is gone", python.display(), to.display()),
        Err(_) => format!("{} is gone", python.display()),
    })
}

/// Makes an empty environment of this release of Python (`3.12`) that can be moved: it is built in one place and used in
/// another. `prompt` is what a shell shows once it is activated. Gives the interpreter it was made from, which is outside of
/// any environment.
pub(super) fn make(
    environment: &Path,
    release: &str,
    prompt: &str,
    programs: &Programs,
) -> Result<PathBuf, ApplyError> {
    // What a killed apply left may be no environment yet.
    places::remove(environment)?;
    let mut command = programs.uv(&["venv", "--quiet", "--no-project", "--relocatable"])?;
    output(command.args(["--prompt", prompt, "--python", release]).arg(environment))?;
    let link = python(environment);
    fs::canonicalize(&link).map_err(ApplyError::io(link))
}

/// What is installed: version by normalised name, from the names of the dist-info folders.
pub(super) fn installed(environment: &Path) -> BTreeMap<String, String> {
    let sites = fs::read_dir(environment.join("lib")).into_iter().flatten().flatten();
    let entries = sites.filter_map(|entry| fs::read_dir(entry.path().join("site-packages")).ok());
    let names =
        entries.flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter_map(|name| {
            let (name, version) = name.strip_suffix(".dist-info")?.split_once('-')?;
            Some((Dist::normalise(name), version.to_owned()))
        })
        .compact_map()
}

/// Whether these packages in these versions are installed, and no others.
pub(super) fn holds(environment: &Path, packages: &[AppliedPackage]) -> bool {
    let wanted =
        packages.iter().map(|package| (Dist::normalise(&package.name), package.version.clone()));
    installed(environment) == wanted.collect()
}

/// Whether nothing else is installed, nor another version of these: one of them may be gone.
pub(super) fn holds_no_other(environment: &Path, packages: &[AppliedPackage]) -> bool {
    let wanted: BTreeMap<String, &str> = packages
        .iter()
        .map(|package| (Dist::normalise(&package.name), package.version.as_str()))
        .compact_map();
    let there = installed(environment);
    there.iter().all(|(name, version)| wanted.get(name) == Some(&version.as_str()))
}
