//! Python environments, read from their files.

use crate::{ProbeError, Source, native};
use facts::{CompactCollect, CompactSort};
use facts::{Dist, NativeFile, PyEnv};
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(crate) mod answers;
mod ask;
mod audit;
mod companions;
mod discover;
mod editable;
pub(crate) mod egg_info;
pub(crate) mod imports;
mod layout;
mod manager;
pub(crate) mod metadata;
mod pyenv_shim;
mod python_path;
pub(crate) mod pyvenv_cfg;
pub(crate) mod record;
mod site;
#[cfg(test)]
mod tests;
pub(crate) mod torch_version;
pub(crate) mod wheel;

use discover::Candidate;
pub use imports::ImportSearch;
use layout::Layout;

/// Options of [`environments`].
#[derive(Debug, Clone)]
pub struct EnvOptions {
    /// The machine.
    pub source: Source,
    /// The environment selected by the user, read first.
    pub venv: Option<PathBuf>,
    /// The cache of facts about compiled files; `None` reads all of them.
    pub cache: Option<PathBuf>,
    /// Whether the contents of every installed file are compared with RECORD, which reads them all.
    pub verify_files: bool,
}

/// Reads the environments of a machine: the selected one, then VIRTUAL_ENV, CONDA_PREFIX, ./.venv and the python on
/// PATH, each folder once.
///
/// # Errors
/// Only the selected environment can fail: it is missing, unreadable, or not an environment. Problems of the others,
/// and of single packages in any of them, are listed in [`PyEnv::problems`].
pub fn environments(options: &EnvOptions) -> Result<Vec<PyEnv>, ProbeError> {
    let candidates = discover::candidates(&options.source, options.venv.as_deref())?;
    let (mut envs, earlier): (Vec<PyEnv>, _) = rayon::join(
        || candidates.into_par_iter().map(|candidate| read(options, candidate)).collect(),
        || native::CachedResults::read(options.cache.as_deref()),
    );
    native::inspect(&options.source, earlier, &mut envs);
    Ok(envs)
}

/// Reads a single environment.
pub(crate) fn environment(
    source: &Source,
    folder: &Path,
    cache: Option<&Path>,
) -> Result<PyEnv, ProbeError> {
    let options = EnvOptions {
        source: source.clone(),
        venv: None,
        cache: cache.map(Path::to_path_buf),
        verify_files: false,
    };
    let mut env = read(&options, discover::named(source, folder)?);
    native::inspect(source, native::CachedResults::read(cache), std::slice::from_mut(&mut env));
    Ok(env)
}

fn read(options: &EnvOptions, candidate: Candidate) -> PyEnv {
    let source = &options.source;
    let layout = Layout::of(source, &candidate);
    let mut problems = candidate.problems;
    problems.extend(layout.problems);

    let sites: Vec<site::Site> = layout
        .site_packages
        .par_iter()
        .map(|folder| site::read(source, folder, options.verify_files))
        .collect();
    let conda = manager::conda_packages(source, &candidate.root);
    let mut dists: Vec<Dist> = Vec::new();
    let mut native_files: Vec<NativeFile> = Vec::new();
    let mut seen = BTreeSet::new();
    for site in sites {
        problems.extend(site.problems);
        native_files.extend(site.native_files);
        // Python imports a package from the first folder that has it; the same name in a later folder is not visible.
        let names: BTreeSet<String> =
            site.dists.iter().map(|dist| Dist::normalise(&dist.name)).compact_set();
        dists.extend(
            site.dists.into_iter().filter(|dist| !seen.contains(&Dist::normalise(&dist.name))),
        );
        seen.extend(names);
    }
    for dist in dists.iter_mut().filter(|dist| dist.installer.is_none()) {
        if conda.contains(&Dist::normalise(&dist.name)) {
            dist.installer = Some("conda".to_string());
        }
    }
    dists.compact_sort_by_key(|dist| Dist::normalise(&dist.name));
    native_files.compact_sort_by(|a, b| a.path.cmp(&b.path));
    native_files.dedup_by(|a, b| a.path == b.path);

    let torch = layout.site_packages.iter().find_map(|folder| torch_version::read(source, folder));
    let torch = match torch {
        Some(Ok(torch)) => Some(torch),
        Some(Err(problem)) => {
            problems.push(problem);
            None
        }
        None => {
            if let Some(dist) = dists.iter().find(|dist| Dist::normalise(&dist.name) == "torch") {
                problems.push(format!("{} exists, but torch/version.py does not", dist.path));
            }
            None
        }
    };
    PyEnv {
        manager: manager::manager(candidate.kind, &candidate.root, layout.uv.as_deref(), &dists),
        root: candidate.root.display().to_string(),
        kind: candidate.kind,
        found_by: candidate.found_by,
        interpreter: layout.interpreter,
        site_packages: layout
            .site_packages
            .iter()
            .map(|folder| folder.display().to_string())
            .collect(),
        dists,
        torch,
        native_files,
        ptxas: Vec::new(),
        companions: companions::read(source, &layout.site_packages),
        in_front: python_path::read(source, &layout.site_packages),
        unmet_imports: Vec::new(),
        missing_names: Vec::new(),
        problems,
    }
}
