//! Finds environments.

use super::ask::{self, Answers};
use super::layout::has_stdlib;
use super::pyenv_shim;
use crate::{ProbeError, Source};
use facts::EnvKind;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// An environment to read.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) root: PathBuf,
    pub(super) kind: EnvKind,
    pub(super) found_by: String,
    /// The interpreter by which it was found, if any.
    pub(super) python: Option<PathBuf>,
    /// The interpreter's answers, if it had to be queried.
    pub(super) answers: Option<Answers>,
    pub(super) problems: Vec<String>,
}

impl Candidate {
    fn new(root: PathBuf, kind: EnvKind, found_by: &str) -> Self {
        Self {
            root,
            kind,
            found_by: found_by.to_string(),
            python: None,
            answers: None,
            problems: Vec::new(),
        }
    }
}

/// All environments in the order of [`super::environments`], each folder once.
pub(super) fn candidates(
    source: &Source,
    venv: Option<&Path>,
) -> Result<Vec<Candidate>, ProbeError> {
    let mut found = Vec::new();
    if let Some(venv) = venv {
        found.push(named(source, venv)?);
    }
    for (variable, kind) in [("VIRTUAL_ENV", EnvKind::Venv), ("CONDA_PREFIX", EnvKind::Conda)] {
        if let Some(root) = source.var(variable) {
            found.push(of_variable(source, variable, Path::new(root), kind));
        }
    }
    let local = source.working_folder().join(".venv");
    if source.exists(local.join("pyvenv.cfg")) {
        found.push(Candidate::new(local, EnvKind::Venv, "./.venv"));
    }
    found.extend(on_path(source));

    let mut seen = BTreeSet::new();
    found.retain(|candidate| {
        seen.insert(source.canonical(&candidate.root).unwrap_or_else(|| candidate.root.clone()))
    });
    Ok(found)
}

/// The environment selected by the user, checked first.
pub(super) fn named(source: &Source, venv: &Path) -> Result<Candidate, ProbeError> {
    let root = source.absolute(venv).into_owned();
    let path = venv.to_path_buf();
    let unreadable =
        |file: PathBuf, reason| ProbeError::VenvUnreadable { path: path.clone(), file, reason };
    if !source.exists(&root) {
        return Err(ProbeError::VenvMissing { path });
    }
    if !source.is_dir(&root) {
        return Err(ProbeError::VenvIsFile { path });
    }
    source.try_list(&root).map_err(|reason| unreadable(root.clone(), reason))?;
    let Some(kind) = kind_of(source, &root) else {
        return Err(ProbeError::NotAnEnvironment { path });
    };
    if kind == EnvKind::Venv {
        let cfg = root.join("pyvenv.cfg");
        source.read(&cfg).map_err(|reason| unreadable(cfg, reason))?;
    }
    Ok(Candidate::new(root, kind, "--venv"))
}

/// The environment in a variable. A stale variable is common and informative: it stays in the list, without packages.
fn of_variable(source: &Source, variable: &str, root: &Path, kind: EnvKind) -> Candidate {
    let mut candidate = Candidate::new(source.absolute(root).into_owned(), kind, variable);
    match kind_of(source, &candidate.root) {
        Some(kind) => candidate.kind = kind,
        None => {
            let why = if source.exists(&candidate.root) {
                "is no python environment"
            } else {
                "does not exist"
            };
            candidate
                .problems
                .push(format!("{variable} names {}, which {why}", candidate.root.display()));
        }
    }
    candidate
}

/// The kind of an environment folder.
pub(super) fn kind_of(source: &Source, root: &Path) -> Option<EnvKind> {
    if source.exists(root.join("pyvenv.cfg")) {
        Some(EnvKind::Venv)
    } else if source.is_dir(root.join("conda-meta")) {
        Some(EnvKind::Conda)
    } else if source.is_file(root.join("bin/python3")) || source.is_file(root.join("bin/python")) {
        has_stdlib(source, root).then_some(EnvKind::System)
    } else {
        None
    }
}

/// The environment of the first Python 3 on PATH.
fn on_path(source: &Source) -> Option<Candidate> {
    ["python", "python3"].iter().find_map(|name| of_executable(source, source.which(name)?))
}

fn of_executable(source: &Source, python: PathBuf) -> Option<Candidate> {
    const FOUND_BY: &str = "python on PATH";
    let candidate = |root: &Path, kind, python: &Path| {
        let mut candidate = Candidate::new(root.to_path_buf(), kind, FOUND_BY);
        candidate.python = Some(python.to_path_buf());
        candidate
    };
    // Python looks for pyvenv.cfg next to the path by which it was started, before following any link.
    let above = |python: &Path| {
        Some(python.parent().filter(|bin| bin.ends_with("bin"))?.parent()?.to_path_buf())
    };
    let behind_shim = pyenv_shim::resolve(source, &python);
    let python = behind_shim.unwrap_or(python);
    if let Some(root) = above(&python)
        && let Some(kind @ (EnvKind::Venv | EnvKind::Conda)) = kind_of(source, &root)
    {
        return Some(candidate(&root, kind, &python));
    }
    let real = source.canonical(&python)?;
    if real.file_name()?.to_str()?.starts_with("python2") {
        return None;
    }
    if let Some(root) = above(&real) {
        let own_stdlib = || has_stdlib(source, &root).then_some(EnvKind::System);
        if let Some(kind) = kind_of(source, &root).or_else(own_stdlib) {
            return Some(candidate(&root, kind, &python));
        }
    }
    // On a Mac without the developer tools this file opens a window that offers to install them.
    const STUB: &str = "/usr/bin/python3";
    if real == Path::new(STUB)
        && source.exists("/usr/bin/xcode-select")
        && !source.is_dir("/Library/Developer/CommandLineTools")
    {
        return None;
    }
    // Another launcher: only its interpreter knows the prefix.
    match ask::ask(source, &python) {
        Ok(answers) => {
            let root = answers.prefix.clone()?;
            let mut found =
                candidate(&root, kind_of(source, &root).unwrap_or(EnvKind::System), &python);
            found.answers = Some(answers);
            Some(found)
        }
        Err(problem) => {
            let mut found = candidate(&above(&real).unwrap_or(real), EnvKind::System, &python);
            found.problems.push(problem);
            Some(found)
        }
    }
}
