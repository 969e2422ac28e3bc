//! One site-packages folder.

use super::metadata::{self, Metadata};
use super::record::{Record, is_native};
use super::{audit, editable, egg_info, wheel};
use crate::Source;
use facts::{Dist, NativeFile};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// The content of a site-packages folder.
#[derive(Debug, Default)]
pub(super) struct Site {
    pub(super) dists: Vec<Dist>,
    pub(super) native_files: Vec<NativeFile>,
    pub(super) problems: Vec<String>,
}

/// One dist-info or egg-info entry.
#[derive(Debug, Default)]
struct Entry {
    dist: Option<Dist>,
    native_files: Vec<NativeFile>,
    top_level: Vec<String>,
    /// The text of RECORD.
    record: Option<String>,
    problems: Vec<String>,
}

/// Reads a site-packages folder; `verify` compares the contents of every file with its RECORD.
pub(super) fn read(source: &Source, folder: &Path, verify: bool) -> Site {
    let names = match source.try_list(folder) {
        Ok(names) => names,
        Err(reason) => {
            let problem = format!("{} cannot be read: {reason}", folder.display());
            return Site { problems: vec![problem], ..Site::default() };
        }
    };
    let is_info = |name: &&String| {
        [".dist-info", ".egg-info", ".egg-link"].iter().any(|ending| name.ends_with(ending))
    };
    let mut entries: Vec<Entry> =
        names.par_iter().filter(is_info).map(|name| entry(source, folder, name)).collect();
    compare_with_records(source, folder, &mut entries, verify);

    let mut site = Site::default();
    let mut owned = BTreeSet::new();
    for entry in entries {
        site.dists.extend(entry.dist);
        site.native_files.extend(entry.native_files);
        site.problems.extend(entry.problems);
        owned.extend(entry.top_level);
    }
    site.problems.extend(twice(&site.dists));
    // Packages without a RECORD (conda, Debian, manual copies) have their compiled files found in the file system.
    let strays: Vec<&String> = names
        .iter()
        .filter(|name| {
            !is_info(name)
                && !owned.contains(*name)
                && !name.starts_with('~')
                && *name != "__pycache__"
        })
        .collect();
    site.native_files.par_extend(
        strays
            .par_iter()
            .flat_map_iter(|name| walk(source, folder.join(name.as_str()), &is_package)),
    );
    site
}

/// Records differences between the files and the RECORDs.
fn compare_with_records(source: &Source, folder: &Path, entries: &mut [Entry], verify: bool) {
    let listed = entries.iter().filter_map(|entry| {
        let dist = entry.dist.as_ref()?;
        let installer = dist.installer.as_deref();
        let text = entry.record.as_deref()?;
        let written = source.about(Path::new(&dist.path).join("RECORD")).map(|it| it.changed);
        Some(audit::RecordText { dist: &dist.name, installer, text, written })
    });
    let audits = audit::run(source, folder, &listed.collect::<Vec<_>>(), verify);
    let with_record = entries.iter_mut().filter(|entry| entry.record.is_some());
    let dists = with_record.filter_map(|entry| entry.dist.as_mut());
    for (dist, audit) in dists.zip(audits) {
        (dist.altered, dist.altered_total) = (audit.altered, audit.total);
    }
}

/// Two versions of one package in one folder: a failed upgrade, of which Python may use either.
fn twice(dists: &[Dist]) -> Vec<String> {
    let mut versions: BTreeMap<String, Vec<&Dist>> = BTreeMap::new();
    for dist in dists {
        versions.entry(Dist::normalise(&dist.name)).or_default().push(dist);
    }
    versions
        .into_iter()
        // Debian's packages may have both a dist-info and an egg-info of one version.
        .filter(|(_, dists)| dists.iter().any(|dist| dist.version != dists[0].version))
        .map(|(name, dists)| {
            let paths: Vec<&str> = dists.iter().map(|dist| dist.path.as_str()).collect();
            format!("{name} is installed {} times: {}", dists.len(), paths.join(", "))
        })
        .collect()
}

fn entry(source: &Source, site: &Path, name: &str) -> Entry {
    let path = site.join(name);
    if name.starts_with('~') {
        // pip renames packages that it removes to `~orch`, and leaves them if it is interrupted.
        let problem = format!("{} is a remnant of an interrupted pip", path.display());
        return Entry { problems: vec![problem], ..Entry::default() };
    }
    if name.ends_with(".dist-info") {
        dist_info(source, site, &path)
    } else if name.ends_with(".egg-link") {
        egg_link(source, &path)
    } else {
        egg(source, site, &path)
    }
}

fn dist_info(source: &Source, site: &Path, path: &Path) -> Entry {
    let mut entry = Entry::default();
    let Some(mut dist) = named(source, path, &path.join("METADATA"), &mut entry.problems) else {
        return entry;
    };
    dist.tags =
        source.text(path.join("WHEEL")).map(|text| wheel::parse_tags(&text)).unwrap_or_default();
    dist.installer = source.word(path.join("INSTALLER"));
    if let Some(text) = source.text(path.join("RECORD")) {
        let record = Record::parse(&text);
        dist.record_files = Some(record.files);
        entry.top_level = record.top_level;
        let paths = record.native.into_iter().map(|(relative, _)| site.join(relative));
        entry.add_native(source, &dist, &path.join("RECORD"), paths);
        entry.record = Some(text);
    }
    let folder = source.text(path.join("direct_url.json")).and_then(|text| editable::parse(&text));
    if let Some(folder) = folder {
        entry.add_source(source, &dist, path, &folder);
    }
    entry.dist = Some(dist);
    entry
}

fn egg(source: &Source, site: &Path, path: &Path) -> Entry {
    let mut entry = Entry::default();
    // distutils wrote a single file instead of setuptools's folder.
    let folder = source.is_dir(path);
    let file = if folder { path.join("PKG-INFO") } else { path.to_path_buf() };
    let Some(mut dist) = named(source, path, &file, &mut entry.problems) else { return entry };
    if folder {
        if let Some(text) = source.text(path.join("requires.txt")) {
            dist.requires.extend(egg_info::parse_requires(&text));
        }
        dist.installer = source.word(path.join("INSTALLER"));
        entry.top_level = source
            .text(path.join("top_level.txt"))
            .map(|text| text.split_whitespace().map(str::to_string).collect())
            .unwrap_or_default();
        match source.text(path.join("installed-files.txt")) {
            Some(text) => {
                let (files, native) = egg_info::parse_installed_files(&text);
                dist.record_files = Some(files);
                let paths = native.into_iter().map(|relative| path.join(relative));
                entry.add_native(source, &dist, &path.join("installed-files.txt"), paths);
            }
            None => {
                // Without a list of files, its top-level packages are attributed to it.
                let tops: Vec<PathBuf> = entry.top_level.iter().map(|top| site.join(top)).collect();
                for top in tops {
                    let files = walk(source, top, &is_package);
                    entry.native_files.extend(
                        files.map(|file| NativeFile { dist: Some(dist.name.clone()), ..file }),
                    );
                }
            }
        }
    }
    entry.dist = Some(dist);
    entry
}

/// A package installed in development mode: the link file's first line is the source folder with its egg-info.
fn egg_link(source: &Source, path: &Path) -> Entry {
    let text = source.text(path).unwrap_or_default();
    let target = PathBuf::from(text.lines().next().unwrap_or_default().trim());
    let name = source.list(&target).into_iter().find(|name| name.ends_with(".egg-info"));
    match name {
        Some(name) if target.is_absolute() => egg(source, &target, &target.join(name)),
        _ => Entry {
            problems: vec![format!(
                "{} points to no egg-info ({})",
                path.display(),
                target.display()
            )],
            ..Entry::default()
        },
    }
}

/// Name, version and requirements from the metadata file, or from the folder's name if that file is missing or corrupt.
fn named(source: &Source, path: &Path, file: &Path, problems: &mut Vec<String>) -> Option<Dist> {
    let parsed = match source.read(file) {
        Ok(bytes) => Metadata::parse(&String::from_utf8_lossy(&bytes)).map_err(str::to_string),
        Err(reason) => Err(format!("cannot be read: {reason}")),
    };
    let metadata = match parsed {
        Ok(metadata) => metadata,
        Err(reason) => {
            problems.push(format!("{} {reason}", file.display()));
            let (name, version) = metadata::of_folder_name(path.file_name()?.to_str()?)?;
            Metadata { name, version, ..Metadata::default() }
        }
    };
    Some(Dist {
        name: metadata.name,
        version: metadata.version,
        path: path.display().to_string(),
        requires: metadata.requires,
        requires_python: metadata.requires_python,
        ..Dist::default()
    })
}

impl Entry {
    /// Adds the compiled files of an editable install, which are in its source folder.
    fn add_source(&mut self, source: &Source, dist: &Dist, info: &Path, folder: &Path) {
        let Some(real) = source.canonical(folder) else {
            let problem = format!(
                "{}/direct_url.json points to no folder ({})",
                info.display(),
                folder.display()
            );
            self.problems.push(problem);
            return;
        };
        let files = walk(source, real, &|folder| editable::is_source(source, folder));
        self.native_files
            .extend(files.map(|file| NativeFile { dist: Some(dist.name.clone()), ..file }));
    }

    /// Adds existing compiled files with their sizes, and reports missing ones.
    fn add_native(
        &mut self,
        source: &Source,
        dist: &Dist,
        list: &Path,
        paths: impl Iterator<Item = PathBuf>,
    ) {
        let mut missing: Vec<PathBuf> = Vec::new();
        for path in paths.map(|path| without_dots(&path)) {
            match source.file_size(&path) {
                Some(bytes) => self.native_files.push(NativeFile {
                    path: path.display().to_string(),
                    dist: Some(dist.name.clone()),
                    bytes: Some(bytes),
                    ..NativeFile::default()
                }),
                None => missing.push(path),
            }
        }
        if let Some(first) = missing.first() {
            let list = list.display();
            self.problems.push(match missing.len() {
                1 => format!("{list} lists {}, which does not exist", first.display()),
                count => format!(
                    "{list} lists {count} missing compiled files, {} first",
                    first.display()
                ),
            });
        }
    }
}

/// Whether a folder of site-packages can contain importable compiled files.
fn is_package(folder: &Path) -> bool {
    folder.file_name().is_none_or(|name| name != "__pycache__")
}

/// Compiled files at or below a path that belong to no distribution, in accepted folders. Links to folders are not
/// followed.
fn walk(
    source: &Source,
    path: PathBuf,
    wanted: &dyn Fn(&Path) -> bool,
) -> std::vec::IntoIter<NativeFile> {
    let mut found = Vec::new();
    let mut pending = vec![path];
    while let Some(path) = pending.pop() {
        if source.is_dir(&path) && !source.is_link(&path) {
            for (name, is_dir) in source.entries(&path) {
                if is_dir {
                    pending.extend(Some(path.join(name)).filter(|folder| wanted(folder)));
                } else if is_native(&name) {
                    found.push(path.join(name));
                }
            }
        } else if path.to_str().is_some_and(is_native) {
            found.push(path);
        }
    }
    let files = found.into_iter().filter_map(|path| {
        let bytes = source.file_size(&path)?;
        Some(NativeFile {
            path: path.display().to_string(),
            bytes: Some(bytes),
            ..NativeFile::default()
        })
    });
    files.collect::<Vec<_>>().into_iter()
}

/// The path without `..`: RECORD has files outside site-packages as `../../../bin/x`.
pub(super) fn without_dots(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}
