//! Creates and inspects virtual environments.

use super::program::{Programs, output};
use super::{ApplyError, places};
use facts::CompactCollect;
use facts::{AppliedPackage, Dist};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The environment's interpreter.
pub(super) fn python(environment: &Path) -> PathBuf {
    environment.join("bin/python")
}

/// The path of the environment's interpreter if it is missing: a link whose Python was removed, or no file.
pub(super) fn lost_python(environment: &Path) -> Option<String> {
    let python = python(environment);
    if python.exists() {
        return None;
    }
    Some(match fs::read_link(&python) {
        Ok(to) => format!("{} points to {}, which is missing", python.display(), to.display()),
        Err(_) => format!("{} is missing", python.display()),
    })
}

/// Creates an empty relocatable environment of this Python release (`3.12`): it is built in one place and used in
/// another. `prompt` is shown by a shell once it is activated. Returns the interpreter it was made from, which is
/// outside of any environment.
pub(super) fn make(
    environment: &Path,
    release: &str,
    prompt: &str,
    programs: &Programs,
) -> Result<PathBuf, ApplyError> {
    let make = |python: &OsStr| {
        // A killed apply may have left an incomplete environment.
        places::remove(environment)?;
        let mut command = programs.uv(&["venv", "--quiet", "--no-project", "--relocatable"])?;
        command.args(["--prompt", prompt, "--python"]).args([python, environment.as_os_str()]);
        output(&mut command).map(drop)
    };
    make(release.as_ref()).or_else(|error| {
        let path = std::env::var_os("PATH");
        let data = crate::python::data_folder();
        let files = crate::python::candidates(release, path.as_deref(), data.as_deref());
        match files.iter().any(|file| make(file.as_os_str()).is_ok()) {
            true => Ok(()),
            false => Err(error),
        }
    })?;
    let link = python(environment);
    fs::canonicalize(&link).map_err(ApplyError::io(link))
}

/// Installed versions by normalized name, from the names of the dist-info folders.
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

/// Whether exactly these packages in these versions are installed.
pub(super) fn holds(environment: &Path, packages: &[AppliedPackage]) -> bool {
    let wanted =
        packages.iter().map(|package| (Dist::normalise(&package.name), package.version.clone()));
    installed(environment) == wanted.collect()
}

/// Whether no other packages or versions are installed; some of these may be missing.
pub(super) fn has_only(environment: &Path, packages: &[AppliedPackage]) -> bool {
    let wanted: BTreeMap<String, &str> = packages
        .iter()
        .map(|package| (Dist::normalise(&package.name), package.version.as_str()))
        .compact_map();
    let there = installed(environment);
    there.iter().all(|(name, version)| wanted.get(name) == Some(&version.as_str()))
}
