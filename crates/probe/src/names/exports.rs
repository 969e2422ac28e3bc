//! Whether a module has a name. "No" only where every way by which it could have one was looked at.

use super::locate::{Located, Modules, absolute};
use super::module::{Alias, Dynamic, Module};
use memchr::memmem::Finder;
use rayon::prelude::*;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Whether a module has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// A statement of the module binds it, in some branch at least.
    Bound,
    /// It is a submodule that no statement of the module binds.
    Submodule,
    /// Nothing gives it.
    Absent,
    /// It cannot be decided.
    Unknown,
}

/// The names of an environment's modules.
pub(crate) struct Exports<'a> {
    modules: &'a Modules<'a>,
    /// Attributes and objects that any module read sets attributes on.
    patched: HashSet<Box<str>>,
    patched_objects: HashSet<Box<str>>,
    known: RefCell<HashMap<(String, String), Presence>>,
    texts: RefCell<HashMap<String, Rc<Vec<Vec<u8>>>>>,
}

/// The largest compiled file whose bytes are searched for a name.
const LARGEST: u64 = 64 << 20;

impl<'a> Exports<'a> {
    /// `read`: the modules that the imports of the environment run.
    pub(crate) fn new<'m>(
        modules: &'a Modules<'a>,
        read: impl Iterator<Item = &'m Module>,
    ) -> Self {
        let (mut patched, mut patched_objects) = (HashSet::new(), HashSet::new());
        for module in read {
            patched.extend(module.patched.iter().cloned());
            patched_objects.extend(module.patched_objects.iter().cloned());
        }
        let (known, texts) = Default::default();
        Self { modules, patched, patched_objects, known, texts }
    }

    pub(crate) fn presence(&self, module: &str, name: &str) -> Presence {
        let key = (module.to_owned(), name.to_owned());
        if let Some(known) = self.known.borrow().get(&key) {
            return *known;
        }
        let presence = self.look(module, name, &mut HashSet::new());
        self.known.borrow_mut().insert(key, presence);
        presence
    }

    fn look(&self, module: &str, name: &str, seen: &mut HashSet<String>) -> Presence {
        if name.starts_with("__") || !seen.insert(module.to_owned()) {
            return Presence::Unknown;
        }
        let located = self.modules.get(module);
        let (package, source) = match &*located {
            Located::Absent | Located::Compiled(_) => return Presence::Unknown,
            Located::Namespace(folders) => {
                return match &*self.modules.get(&format!("{module}.{name}")) {
                    Located::Absent if self.is_closed(module, folders) => Presence::Absent,
                    Located::Absent => Presence::Unknown,
                    _ => Presence::Submodule,
                };
            }
            Located::Source { package, module, .. } => (*package, module),
        };
        let child = format!("{module}.{name}");
        if source.bound.contains_key(name) {
            // `from . import a` in the package's own file binds the submodule that it loads.
            let itself = matches!(source.aliases.get(name), Some(Alias::Member(origin, member))
                if **member == *name
                    && absolute(module, package, origin.level, &origin.module).as_deref() == Some(module));
            return match itself && !matches!(&*self.modules.get(&child), Located::Absent) {
                true => Presence::Submodule,
                false => Presence::Bound,
            };
        }
        if package && !matches!(&*self.modules.get(&child), Located::Absent) {
            return Presence::Submodule;
        }
        for star in &source.stars {
            let Some(origin) = absolute(module, package, star.level, &star.module) else {
                return Presence::Unknown;
            };
            // The names of a module that is already being looked at are looked at there.
            if !seen.contains(&origin) && self.look(&origin, name, seen) != Presence::Absent {
                return Presence::Unknown;
            }
        }
        let leaf = module.rsplit('.').next().unwrap_or(module);
        let set = self.patched.contains(name) || self.patched_objects.contains(leaf);
        let lists = source.dynamic == Dynamic::Listed;
        let elsewhere = || package && !lists && self.submodule(module, name) == Presence::Unknown;
        if set || source.dynamic == Dynamic::Open || elsewhere() {
            return Presence::Unknown;
        }
        if lists && self.mentions(module, name) {
            return Presence::Unknown;
        }
        // A compiled module of the package may set names of its Python modules.
        match self.mentioned_in_compiled(module, name) {
            true => Presence::Unknown,
            false => Presence::Absent,
        }
    }

    /// Whether a package has a submodule that its folders do not show.
    pub(crate) fn submodule(&self, parent: &str, leaf: &str) -> Presence {
        let ends = parent.match_indices('.').map(|(at, _)| at).chain([parent.len()]);
        for end in ends {
            let around = &parent[..end];
            if let Located::Source { module, .. } = &*self.modules.get(around)
                && module.changes_path
            {
                return Presence::Unknown;
            }
        }
        match &*self.modules.get(parent) {
            Located::Absent | Located::Compiled(_) => Presence::Unknown,
            Located::Namespace(folders) if !self.is_closed(parent, folders) => Presence::Unknown,
            // `sys.modules["a.b"] = ..` in any file of the package.
            _ if self.is_registered(parent, leaf) => Presence::Unknown,
            _ => Presence::Absent,
        }
    }

    /// Whether a namespace package has no other folders than those found: none that a .pth file or an editable install adds.
    fn is_closed(&self, module: &str, folders: &[PathBuf]) -> bool {
        let top = module.split('.').next().unwrap_or(module);
        // A folder of data or of type stubs is no package at all.
        let has_code = |folder: &PathBuf| {
            let listing = self.modules.listing(folder);
            listing
                .iter()
                .any(|(name, is_dir)| *is_dir || name.ends_with(".py") || name.ends_with(".so"))
        };
        folders.iter().any(has_code)
            && !self.modules.sites().iter().any(|site| {
                self.modules.listing(site).keys().any(|name| {
                    name.ends_with("-nspkg.pth") && name.replace('-', "_").contains(top)
                        || name.starts_with("__editable__")
                })
            })
    }

    /// The Python files of a top-level package.
    fn texts(&self, module: &str) -> Rc<Vec<Vec<u8>>> {
        let top = module.split('.').next().unwrap_or(module);
        if let Some(known) = self.texts.borrow().get(top) {
            return known.clone();
        }
        let mut files = Vec::new();
        for site in self.modules.sites() {
            self.collect(&site.join(top), &mut files);
            files.push(site.join(format!("{top}.py")));
        }
        let source = self.modules.files();
        let texts: Vec<Vec<u8>> =
            files.par_iter().filter_map(|file| source.read(file).ok()).collect();
        let texts = Rc::new(texts);
        self.texts.borrow_mut().insert(top.to_owned(), texts.clone());
        texts
    }

    fn collect(&self, folder: &Path, files: &mut Vec<PathBuf>) {
        for (name, is_dir) in self.modules.listing(folder).iter() {
            if *is_dir {
                if name != "__pycache__" {
                    self.collect(&folder.join(name), files);
                }
            } else if [".py", ".pyi", ".json"].iter().any(|ending| name.ends_with(ending)) {
                files.push(folder.join(name));
            }
        }
    }

    /// Whether a file of the package has a name as a word.
    fn mentions(&self, module: &str, name: &str) -> bool {
        let finder = Finder::new(name);
        // The module's own file is the usual place, and the only one where the list is written out in it.
        if let Some((path, _)) = self.modules.get(module).source()
            && let Ok(own) = self.modules.files().read(path)
        {
            let has = |word: &str| Finder::new(word).find(&own).is_some();
            let lazy = has("_LazyModule") && !has("define_import_structure");
            let attached = has("submod_attrs") && !has("attach_stub");
            if has_word(&own, &finder, name.len()) || lazy || attached {
                return has_word(&own, &finder, name.len());
            }
        }
        self.texts(module).par_iter().any(|text| has_word(text, &finder, name.len()))
    }

    /// Whether a file of the package that changes `sys.modules` has the name.
    fn is_registered(&self, module: &str, leaf: &str) -> bool {
        let (finder, modules) = (Finder::new(leaf), Finder::new("sys.modules"));
        self.texts(module)
            .par_iter()
            .any(|text| modules.find(text).is_some() && has_word(text, &finder, leaf.len()))
    }

    /// Whether a compiled file of the package has the name among its bytes.
    fn mentioned_in_compiled(&self, module: &str, name: &str) -> bool {
        let top = module.split('.').next().unwrap_or(module);
        let mut files = Vec::new();
        for site in self.modules.sites() {
            self.compiled(&site.join(top), &mut files);
        }
        let finder = Finder::new(name);
        let source = self.modules.files();
        files.par_iter().any(|file| {
            let small = source.file_size(file).is_some_and(|bytes| bytes <= LARGEST);
            // A module that is too large to search may have it; libraries of kernels have no names of Python.
            let library =
                file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"lib"));
            match small {
                true => source.read(file).is_ok_and(|bytes| finder.find(&bytes).is_some()),
                false => !library,
            }
        })
    }

    fn compiled(&self, folder: &Path, files: &mut Vec<PathBuf>) {
        for (name, is_dir) in self.modules.listing(folder).iter() {
            if *is_dir {
                self.compiled(&folder.join(name), files);
            } else if name.ends_with(".so") || name.ends_with(".pyd") {
                files.push(folder.join(name));
            }
        }
    }
}

/// Whether a text has a word: no letter of a name before or after it.
fn has_word(text: &[u8], finder: &Finder<'_>, length: usize) -> bool {
    let is_letter = |at: Option<usize>| {
        at.and_then(|at| text.get(at)).is_some_and(|it| it.is_ascii_alphanumeric() || *it == b'_')
    };
    finder.find_iter(text).any(|at| !is_letter(at.checked_sub(1)) && !is_letter(Some(at + length)))
}
