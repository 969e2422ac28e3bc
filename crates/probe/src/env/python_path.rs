//! Packages on PYTHONPATH, which precede an environment's own.

use super::record::is_native;
use crate::Source;
use facts::{Dist, PathFolder, PathModule};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Maximum number of packages examined in a folder; a larger folder is not a package folder.
const MAX_PACKAGES: usize = 2000;

/// The folders of PYTHONPATH with packages that have compiled modules, except the environment's own folders.
pub(super) fn read(source: &Source, sites: &[PathBuf]) -> Vec<PathFolder> {
    let folders = source.folders_of_var("PYTHONPATH").into_iter();
    folders
        .filter(|folder| {
            let real = source.canonical(folder);
            !sites.iter().any(|site| source.canonical(site) == real)
        })
        .filter_map(|folder| {
            let modules = modules(source, &folder, sites);
            let folder = folder.display().to_string();
            (!modules.is_empty()).then_some(PathFolder { folder, modules })
        })
        .collect()
}

fn modules(source: &Source, folder: &Path, sites: &[PathBuf]) -> Vec<PathModule> {
    let entries = source.entries(folder);
    let packages = entries.iter().filter(|(name, is_dir)| {
        *is_dir
            && !name.contains(['.', '-'])
            && source.is_file(folder.join(name).join("__init__.py"))
    });
    packages
        .take(MAX_PACKAGES)
        .filter_map(|(name, _)| {
            let module = module(source, folder, name.clone(), sites)?;
            Some(PathModule { version: version(&entries, name), ..module })
        })
        .collect()
}

/// The release in the name of a package's dist-info: `2.2.6` of `numpy-2.2.6.dist-info`.
fn version(entries: &[(String, bool)], package: &str) -> Option<String> {
    entries.iter().find_map(|(entry, _)| {
        let (name, version) = entry.strip_suffix(".dist-info")?.split_once('-')?;
        Dist::same_name(name, package).then(|| version.to_owned())
    })
}

/// The compiled modules of one package and of its direct subfolders, where they usually are.
fn module(source: &Source, folder: &Path, name: String, sites: &[PathBuf]) -> Option<PathModule> {
    let package = folder.join(&name);
    let mut releases = BTreeSet::new();
    let (mut for_any, mut example) = (false, None);
    let below = source.entries(&package).into_iter().filter(|(_, is_dir)| *is_dir);
    let folders = below.map(|(name, _)| package.join(name)).chain([package.clone()]);
    for folder in folders {
        for (file, _) in
            source.entries(&folder).into_iter().filter(|(file, is_dir)| !is_dir && is_native(file))
        {
            match file.split_once(".cpython-").and_then(|(_, rest)| rest.split(['-', '.']).next()) {
                Some(release) => {
                    releases.insert(release.to_owned());
                    example.get_or_insert_with(|| folder.join(&file).display().to_string());
                }
                None if !file.starts_with("lib") => for_any = true,
                None => {}
            }
        }
    }
    let hides = sites.iter().any(|site| source.is_dir(site.join(&name)));
    Some(PathModule {
        name,
        hides,
        releases: if for_any { Vec::new() } else { releases.into_iter().collect() },
        example: example?,
        version: None,
    })
}
