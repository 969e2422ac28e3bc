//! Reads every compiled file of an environment and simulates the dynamic loader for it. No file is loaded or run.
//!
//! The model is glibc's loader for a process that starts the environment's interpreter, imports torch if it is
//! installed, and then opens the file. A package that opens libraries itself before importing its extension can provide
//! more names than this model; a name that exists in the environment is therefore distinguished from one that does not
//! exist anywhere ([`facts::Needed::other`]).

pub(crate) mod cache;
mod damage;
mod demangle;
pub(crate) mod elf;
pub(crate) mod fatbin;
mod hwcaps;
mod link;
mod numpy;
mod opened;
mod optional;
mod process;
mod search;
mod store;
pub(crate) mod symbols;
#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests;

use crate::Source;
use crate::env::answers::Answers;
pub(crate) use cache::Fnv;
use cache::{CachedFiles, Entry};
use facts::CompactSort;
use facts::{Elf, Needed, Ptxas, PyEnv};
use link::Unresolved;
use process::Process;
use rayon::prelude::*;
use search::Search;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
pub(crate) use store::Stamp;
use store::{Lib, Store};

/// The unresolved symbols of a file, with the fingerprint of the process in which they were looked up.
type Linked = (u64, Unresolved);

/// Cached results of earlier runs.
pub(crate) struct CachedResults<'a> {
    cache: Option<&'a Path>,
    known: CachedFiles,
    answers: Answers,
}

impl<'a> CachedResults<'a> {
    /// Reads `cache`, the cache of compiled files, and the one next to it.
    pub(crate) fn read(cache: Option<&'a Path>) -> Self {
        let known = cache.map(CachedFiles::read).unwrap_or_default();
        Self { cache, known, answers: Answers::open(cache) }
    }
}

/// Fills in [`facts::NativeFile::elf`] of every environment, and updates the cache. A cache that cannot be written only
/// costs time in the next run.
pub(crate) fn inspect(source: &Source, earlier: CachedResults<'_>, envs: &mut [PyEnv]) {
    let CachedResults { cache, known, mut answers } = earlier;
    let store = Store::new(source, &known);
    let search = Search::of(source);
    let mut linked: HashMap<PathBuf, Linked> = HashMap::new();
    for env in envs {
        env.ptxas = ptxas(source, &store, env);
        linked.extend(inspect_env(&store, &search, &known, env));
        opened::fill(source, &mut answers, env);
        optional::fill(source, &mut answers, env);
    }
    answers.keep();
    let Some(cache) = cache else { return };
    let files = store.into_files();
    let is_kept = |(path, lib): &(PathBuf, Option<Arc<Lib>>)| match lib {
        Some(lib) => known.has(path, &lib.stamp, Some(&lib.object), linked.get(path)),
        None => source.stamp(path).is_none_or(|stamp| known.has(path, &stamp, None, None)),
    };
    if files.iter().all(is_kept) {
        return;
    }
    let fresh: HashMap<PathBuf, Entry> = files
        .into_iter()
        .filter_map(|(path, lib)| {
            let (stamp, object) = match lib {
                Some(lib) => (lib.stamp, Some(lib.object.clone())),
                None => (source.stamp(&path)?, None),
            };
            let linked = linked.remove(&path);
            Some((path, Entry { stamp, object, linked }))
        })
        .collect();
    let _ = known.update(cache, fresh);
}

/// The ptxas programs of Triton, sorted by name: one, or two if it has a separate one for Blackwell.
fn ptxas(source: &Source, store: &Store<'_>, env: &PyEnv) -> Vec<Ptxas> {
    let folders =
        env.site_packages.iter().map(|site| Path::new(site).join("triton/backends/nvidia/bin"));
    let programs = folders.flat_map(|folder| {
        let names = source.list(&folder).into_iter().filter(|name| name.starts_with("ptxas"));
        names.map(|name| folder.join(name)).collect::<Vec<_>>()
    });
    let read = |path: PathBuf| {
        let lib = store.get(&path)?;
        let (release, targets) =
            (lib.object.cuda_release.clone()?, lib.object.ptxas_targets.clone());
        Some(Ptxas { release, targets, source: path.display().to_string() })
    };
    programs.filter_map(read).collect()
}

/// The results for one file.
#[derive(Default)]
struct FileResult {
    elf: Option<Elf>,
    damage: Option<String>,
    linked: Option<Linked>,
}

fn inspect_env(
    store: &Store<'_>,
    search: &Search<'_>,
    known: &CachedFiles,
    env: &mut PyEnv,
) -> Vec<(PathBuf, Linked)> {
    let paths: Vec<PathBuf> =
        env.native_files.iter().map(|file| PathBuf::from(&file.path)).collect();
    // The order of processing, not of the results: the largest files take longest and go first.
    let mut by_size: Vec<usize> = (0..paths.len()).collect();
    by_size.compact_sort_by_key(|index| std::cmp::Reverse(env.native_files[*index].bytes));
    by_size.par_iter().with_max_len(1).for_each(|index| drop(store.get(&paths[*index])));

    let mut plain = Process::default();
    if let Some(python) = &env.interpreter.resolved {
        plain.open(store, search, Path::new(python));
    }
    let torch = with_torch(store, search, &plain, &paths);
    let here = names_here(store, &paths);
    let results: Vec<FileResult> = paths
        .par_iter()
        .map(|path| {
            let Some(lib) = store.get(path) else { return FileResult::default() };
            // Modules for other systems have other names and formats.
            let damage = lib.object.damage.clone().filter(|_| is_for_this_loader(path));
            if !lib.object.is_elf() {
                return FileResult { damage, ..FileResult::default() };
            }
            let mut elf = described(&lib.object);
            if !lib.object.readable {
                return FileResult { elf: Some(elf), damage, linked: None };
            }
            let (process, root) = place(store, search, &plain, torch.as_ref(), path);
            let Some(root) = root else {
                return FileResult { elf: Some(elf), damage, linked: None };
            };
            elf.needed = process.needs(root).iter().map(|(needed, _)| needed.clone()).collect();
            for needed in elf.needed.iter_mut().filter(|needed| needed.path.is_none()) {
                needed.other = here.get(&needed.name).cloned();
            }
            elf.missing_versions = link::missing_versions(&process, root);
            let (key, unresolved) = link::unresolved(store, known, &process, root);
            elf.missing_symbols.clone_from(&unresolved.symbols);
            elf.missing_symbols_total = unresolved.total;
            elf.module = unresolved.module;
            elf.problems.extend(unresolved.problems.iter().cloned());
            FileResult { elf: Some(elf), damage, linked: Some((key, unresolved)) }
        })
        .collect();
    let mut linked = Vec::new();
    for ((file, path), found) in env.native_files.iter_mut().zip(paths).zip(results) {
        file.elf = found.elf;
        file.damage = found.damage;
        linked.extend(found.linked.map(|link| (path, link)));
    }
    linked
}

/// Whether this loader can be asked for a file of this name.
fn is_for_this_loader(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.contains(".so"))
}

/// The process after `import torch`: its global dependencies, then its extension.
fn with_torch(
    store: &Store<'_>,
    search: &Search<'_>,
    plain: &Process,
    paths: &[PathBuf],
) -> Option<Process> {
    let ends =
        |path: &&PathBuf, wanted: &str| path.to_str().is_some_and(|path| path.ends_with(wanted));
    let extension = paths.iter().find(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        path.parent().is_some_and(|folder| folder.ends_with("torch"))
            && name.starts_with("_C.")
            && name.ends_with(".so")
    })?;
    let mut process = plain.clone();
    if let Some(global) = paths.iter().find(|path| ends(path, "/torch/lib/libtorch_global_deps.so"))
    {
        process.open(store, search, global);
    }
    process.open(store, search, extension)?;
    Some(process)
}

/// Opens a file in a separate process model; with torch imported if the file needs it.
fn place(
    store: &Store<'_>,
    search: &Search<'_>,
    plain: &Process,
    torch: Option<&Process>,
    path: &Path,
) -> (Process, Option<usize>) {
    // torch's libraries depend on each other without declaring it, and are only loaded together.
    if let (Some(torch), Some(lib)) = (torch, store.get(path))
        && let Some(root) = torch.maps().iter().position(|map| map.lib.stamp.same_file(&lib.stamp))
    {
        return (torch.clone(), Some(root));
    }
    let mut process = plain.clone();
    let root = process.open(store, search, path);
    let Some(torch) = torch else { return (process, root) };
    let whole = root.is_some_and(|root| {
        process.scope(root).iter().all(|map| {
            process
                .needs(*map)
                .iter()
                .all(|(needed, target)| target.is_some() && !is_torch_library(needed))
        })
    });
    if whole {
        return (process, root);
    }
    let mut process = torch.clone();
    let root = process.open(store, search, path);
    (process, root)
}

fn is_torch_library(needed: &Needed) -> bool {
    ["libtorch", "libc10"].iter().any(|stem| needed.name.starts_with(stem))
}

/// Files of the environment by the names under which they could be needed.
fn names_here(store: &Store<'_>, paths: &[PathBuf]) -> HashMap<String, String> {
    let mut names = HashMap::new();
    for path in paths {
        let soname = store.get(path).and_then(|lib| lib.object.soname.clone());
        let name = path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        for name in soname.into_iter().chain(name) {
            names.entry(name).or_insert_with(|| path.display().to_string());
        }
    }
    names
}

/// Facts of the file itself.
fn described(object: &elf::Object) -> Elf {
    let search = object.runpath.as_ref().or(object.rpath.as_ref());
    Elf {
        machine: elf::machine_name(object.machine),
        soname: object.soname.clone(),
        search: search
            .map(|words| words.split(':').map(str::to_owned).collect())
            .unwrap_or_default(),
        gpu_code: object.gpu_code.clone(),
        numpy: object.numpy.clone(),
        executable_stack: object.executable_stack,
        problems: object.problems.clone(),
        ..Elf::default()
    }
}
