//! Locates the modules of an environment as Python does, with cached folder listings.

use super::module::{Module, Python};
use super::reader;
use crate::Source;
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Folders and modules of one environment.
pub(crate) struct Modules<'a> {
    source: &'a Source,
    sites: Vec<PathBuf>,
    python: Python,
    folders: Mutex<HashMap<OsString, Arc<FolderNames>>>,
    known: Mutex<HashMap<Box<str>, Arc<ModuleLocation>>>,
}

/// The contents of a folder.
#[derive(Debug, Default)]
pub(super) struct FolderNames {
    /// Names, and whether each is a folder.
    names: HashMap<String, bool>,
    /// Files of compiled modules by the module's name.
    compiled: HashMap<String, String>,
    /// Modules with a source file, or with one that Python compiled.
    sources: HashSet<String>,
}

impl FolderNames {
    fn new(names: HashMap<String, bool>) -> Self {
        let modules = names.keys().filter_map(|file| Some((compiled_module(file)?, file.clone())));
        let source = |file: &String| {
            Some(file.strip_suffix(".py").or(file.strip_suffix(".pyc"))?.to_owned())
        };
        Self {
            compiled: modules.map(|(module, file)| (module.to_owned(), file)).collect(),
            sources: names.keys().filter_map(source).collect(),
            names,
        }
    }

    /// Whether there are files or a folder of this module.
    fn may_have(&self, module: &str) -> bool {
        self.sources.contains(module)
            || self.compiled.contains_key(module)
            || self.names.get(module) == Some(&true)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &bool)> {
        self.names.iter()
    }
}

/// The location of a module, as Python would find it.
#[derive(Debug)]
pub(crate) enum ModuleLocation {
    /// Python source; a package if it is an `__init__.py`.
    Source { path: PathBuf, package: bool, module: Box<Module> },
    /// Folders without an `__init__.py`.
    Namespace(Vec<PathBuf>),
    /// A compiled module, or one without source.
    Compiled(Option<PathBuf>),
    /// Not in the environment's folders: standard library, elsewhere on the path, or not installed.
    Absent,
}

impl ModuleLocation {
    /// Search folders of its submodules.
    fn search(&self) -> Vec<&Path> {
        match self {
            Self::Source { path, package: true, .. } | Self::Compiled(Some(path)) => {
                path.parent().into_iter().collect()
            }
            Self::Namespace(folders) => folders.iter().map(PathBuf::as_path).collect(),
            _ => Vec::new(),
        }
    }

    pub(super) fn source(&self) -> Option<(&Path, &Module)> {
        match self {
            Self::Source { path, module, .. } => Some((path, module)),
            _ => None,
        }
    }
}

impl<'a> Modules<'a> {
    pub(crate) fn new(source: &'a Source, sites: Vec<PathBuf>, python: Python) -> Self {
        Self { source, sites, python, folders: Mutex::default(), known: Mutex::default() }
    }

    pub(super) fn files(&self) -> &'a Source {
        self.source
    }

    pub(super) fn python(&self) -> Python {
        self.python
    }

    pub(super) fn sites(&self) -> &[PathBuf] {
        &self.sites
    }

    /// The names in a folder.
    pub(super) fn listing(&self, folder: &Path) -> Arc<FolderNames> {
        let lock = || self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(folder.as_os_str()) {
            return known.clone();
        }
        let names = self
            .source
            .entries(folder)
            .into_iter()
            // Python treats a link to a folder as a folder.
            .map(|(name, is_dir)| {
                let is_dir =
                    is_dir || !name.contains('.') && self.source.is_dir(folder.join(&name));
                (name, is_dir)
            })
            .collect();
        let listing = Arc::new(FolderNames::new(names));
        lock().entry(folder.into()).or_insert(listing).clone()
    }

    /// The module of this absolute name.
    pub(crate) fn get(&self, name: &str) -> Arc<ModuleLocation> {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(name) {
            return known.clone();
        }
        let located = Arc::new(self.find(name));
        lock().entry(name.into()).or_insert(located).clone()
    }

    /// Every module read so far, by name.
    pub(super) fn all(&self) -> Vec<(Box<str>, Arc<ModuleLocation>)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|(name, located)| (name.clone(), located.clone())).collect()
    }

    /// Reads modules and their imports recursively, in parallel.
    pub(super) fn read_all(&self, names: Vec<String>) {
        let mut seen: HashSet<String> = names.iter().cloned().collect();
        let mut new = |names: Vec<String>| -> Vec<String> {
            let mut is_new = |name: &String| !seen.contains(name) && seen.insert(name.clone());
            names.into_iter().filter(|name| is_new(name)).collect()
        };
        let mut pending = names;
        while !pending.is_empty() {
            let targets = pending.par_iter().flat_map_iter(|name| match &*self.get(name) {
                ModuleLocation::Source { package, module, .. } => module.targets(name, *package),
                _ => Vec::new(),
            });
            let mut next = new(targets.collect());
            next.par_iter().for_each(|name| drop(self.get(name)));
            let members = pending.par_iter().flat_map_iter(|name| self.submodules_in(name));
            next.extend(new(members.collect()));
            pending = next;
        }
    }

    /// The submodules among the names that a module imports from others.
    fn submodules_in(&self, name: &str) -> Vec<String> {
        let located = self.get(name);
        let ModuleLocation::Source { package, module, .. } = &*located else { return Vec::new() };
        let mut found = Vec::new();
        module.members(name, *package, |base, names| {
            let located = self.get(base);
            for listing in located.search().iter().map(|folder| self.listing(folder)) {
                let modules = names.iter().filter(|name| listing.may_have(name));
                found.extend(modules.map(|name| format!("{base}.{name}")));
            }
        });
        found
    }

    fn find(&self, name: &str) -> ModuleLocation {
        match name.rsplit_once('.') {
            None if super::standard::is_standard(name) => ModuleLocation::Absent,
            None => self.search(self.sites.iter().map(PathBuf::as_path), name),
            Some((parent, leaf)) => self.search(self.get(parent).search(), leaf),
        }
    }

    /// Python's order: a package, a compiled module, a source file, a file without source; a namespace package if no
    /// folder has one of these.
    fn search<'p>(
        &self,
        folders: impl IntoIterator<Item = &'p Path>,
        name: &str,
    ) -> ModuleLocation {
        let mut namespace = Vec::new();
        for folder in folders {
            let listing = self.listing(folder);
            if listing.names.get(name) == Some(&true) {
                let inner = folder.join(name);
                let files = self.listing(&inner);
                if let Some(compiled) = files.compiled.get("__init__") {
                    return ModuleLocation::Compiled(Some(inner.join(compiled)));
                }
                if files.names.get("__init__.py") == Some(&false) {
                    return self.read(inner.join("__init__.py"), true);
                }
                if files.names.contains_key("__init__.pyc") {
                    return ModuleLocation::Compiled(Some(inner.join("__init__.pyc")));
                }
                namespace.push(inner);
            }
            if listing.compiled.contains_key(name) {
                return ModuleLocation::Compiled(None);
            }
            if !listing.sources.contains(name) {
                continue;
            }
            let file = format!("{name}.py");
            if listing.names.contains_key(&file) {
                return self.read(folder.join(file), false);
            }
            return ModuleLocation::Compiled(None);
        }
        match namespace.is_empty() {
            true => ModuleLocation::Absent,
            false => ModuleLocation::Namespace(namespace),
        }
    }

    fn read(&self, path: PathBuf, package: bool) -> ModuleLocation {
        let module = self.source.with_text(&path, |text| reader::read(text, self.python));
        match module.map(Box::new) {
            Some(module) => ModuleLocation::Source { path, package, module },
            None => ModuleLocation::Compiled(None),
        }
    }
}

/// The module of a compiled file: `x.so`, `x.abi3.so`, `x.cpython-312-x86_64-linux-gnu.so`.
fn compiled_module(file: &str) -> Option<&str> {
    let (module, rest) = file.split_once('.')?;
    let is_library = |ending: &str| matches!(ending, "so" | "pyd");
    let only = match rest.split_once('.') {
        Some((_tag, ending)) => is_library(ending),
        None => is_library(rest),
    };
    only.then_some(module)
}

/// The absolute name of a `from` statement's module; `None` beyond the top-level package.
pub(super) fn absolute(from: &str, package: bool, level: u32, module: &str) -> Option<String> {
    if level == 0 {
        return Some(module.to_owned());
    }
    // One dot is the package itself, for its own file, and the parent package for a module.
    let mut base = from;
    for _ in 0..level - u32::from(package) {
        base = base.rsplit_once('.')?.0;
    }
    Some(match module {
        "" => base.to_owned(),
        module => format!("{base}.{module}"),
    })
}
