//! Which of the files in trouble an import of their package opens: modules are imported by their names, and a library is
//! opened because a module needs it, or because Python code that runs at the import names it.

use crate::Source;
use crate::env::imports::{self, Reached};
use facts::{Elf, NativeFile, PyEnv};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;

/// Fills in [`Elf::opened_by`] of files that the loader refuses.
pub(super) fn fill(source: &Source, env: &mut PyEnv) {
    let refused = |file: &NativeFile| file.elf.as_ref().is_some_and(in_trouble);
    let doubtful: Vec<&NativeFile> = env.native_files.iter().filter(|file| refused(file)).collect();
    if doubtful.is_empty() {
        return;
    }
    let needed_by = needed_by(&env.native_files);
    let mut opened: HashMap<String, String> = HashMap::new();
    let mut packages: BTreeMap<(&str, &str), Vec<&NativeFile>> = BTreeMap::new();
    for file in doubtful {
        if let Some(asker) = needed_by.get(file.path.as_str()) {
            opened.insert(file.path.clone(), (*asker).to_owned());
        } else if let Some(place) = package_of(env, file) {
            packages.entry(place).or_default().push(file);
        }
    }
    for ((site, package), mut files) in packages {
        imports::walk(source, Path::new(site), package, &mut |reached| {
            files.retain(|file| {
                let takes = takes(reached, file);
                if takes {
                    opened.insert(file.path.clone(), reached.path.display().to_string());
                }
                !takes
            });
            !files.is_empty()
        });
    }
    for file in &mut env.native_files {
        if let (Some(elf), Some(opened_by)) = (file.elf.as_mut(), opened.remove(&file.path)) {
            elf.opened_by = Some(opened_by);
        }
    }
}

fn in_trouble(elf: &Elf) -> bool {
    elf.missing_symbols_total > 0
        || !elf.missing_versions.is_empty()
        || elf.needed.iter().any(|needed| needed.path.is_none())
}

/// Whether an import statement can open it.
fn by_name(file: &NativeFile) -> bool {
    match file.elf.as_ref().and_then(|elf| elf.module) {
        Some(module) => module,
        None => !file.name().starts_with("lib"),
    }
}

/// The files that modules need, and those that these need, each with one that needs it.
fn needed_by(files: &[NativeFile]) -> HashMap<&str, &str> {
    let by_path: HashMap<&str, &NativeFile> =
        files.iter().map(|file| (file.path.as_str(), file)).collect();
    let mut found: HashMap<&str, &str> = HashMap::new();
    let mut pending: VecDeque<&NativeFile> = files.iter().filter(|file| by_name(file)).collect();
    while let Some(file) = pending.pop_front() {
        let needed = file.elf.iter().flat_map(|elf| &elf.needed);
        for path in needed.filter_map(|needed| needed.path.as_deref()) {
            if let Some(next) = by_path.get(path)
                && !found.contains_key(path)
            {
                found.insert(path, &file.path);
                pending.push_back(next);
            }
        }
    }
    found
}

/// The folder of packages that a file lies in, and its package there.
fn package_of<'a>(env: &'a PyEnv, file: &'a NativeFile) -> Option<(&'a str, &'a str)> {
    let site = env.site_packages.iter().find(|site| Path::new(&file.path).starts_with(site))?;
    let rest = file.path.get(site.len()..)?.trim_start_matches('/');
    rest.split_once('/').map(|(package, _)| (site.as_str(), package))
}

/// Whether a Python file imports a module or names a library.
fn takes(reached: &Reached<'_>, file: &NativeFile) -> bool {
    let stem = file.name().split('.').next().unwrap_or_default();
    let path = Path::new(&file.path).with_file_name(stem);
    if reached.targets.contains(&path) {
        return true;
    }
    let begins = |at: usize| reached.text[..at].ends_with(['"', '\'', '/']);
    let named = |name: &str, ends: &[char]| {
        let mut places = reached.text.match_indices(name).map(|(at, _)| at);
        places.any(|at| begins(at) && reached.text[at + name.len()..].starts_with(ends))
    };
    // `f"libtorchcodec_core{major}"`: one of several builds, chosen by number.
    let numbered = stem.trim_end_matches(|c: char| c.is_ascii_digit());
    named(stem, &['"', '\'', '.'])
        || (numbered.len() > 3 && numbered != stem && named(numbered, &['{']))
}
