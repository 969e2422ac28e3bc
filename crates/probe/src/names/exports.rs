//! Decides whether a module has a name. "No" only if every possible source was checked.

use super::calls::{self, Parameters};
use super::lazy::Lists;
use super::locate::{ModuleLocation, Modules, absolute};
use super::module::{Alias, Dynamic, Module};
use memchr::memmem::Finder;
use rayon::prelude::*;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Whether a module has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// A statement of the module binds it, at least in some branch.
    Bound,
    /// It is a submodule that no statement of the module binds.
    Submodule,
    /// It does not exist.
    Absent,
    /// It cannot be decided.
    Unknown,
}

/// The names of an environment's modules.
pub(crate) struct Exports<'a> {
    pub(super) modules: &'a Modules<'a>,
    patches: RefCell<Patches>,
    known: RefCell<HashMap<(String, String), Presence>>,
    texts: RefCell<HashMap<String, Rc<Texts>>>,
    parameters: RefCell<HashMap<(String, String), Option<Parameters>>>,
    pub(super) lists: RefCell<HashMap<String, Rc<Lists>>>,
    /// Files that were searched for names.
    searched: RefCell<HashMap<PathBuf, Rc<Vec<u8>>>>,
    compiled: RefCell<HashMap<String, Rc<CompiledFiles>>>,
    /// Whether the compiled files of a top-level package contain a name.
    in_compiled: RefCell<HashMap<(String, String), bool>>,
}

/// Files to search for a name that no statement binds. A search reads whole packages, so that it is the last step.
#[derive(Default)]
struct FileSearches {
    /// Modules whose names are listed in their file or in those of their package.
    listed: Vec<String>,
    /// Packages of which a file may set `sys.modules["package.name"]`.
    registered: Vec<String>,
    /// Top-level packages whose compiled files may set names of their Python modules.
    compiled: BTreeSet<String>,
}

/// The compiled files of a package.
struct CompiledFiles {
    bytes: Vec<Vec<u8>>,
    /// Whether there is an extension module that is too large to search.
    unsearched: bool,
}

/// Attributes that modules set on other objects, and objects with computed attributes.
#[derive(Default)]
struct Patches {
    names: HashSet<Box<str>>,
    objects: HashSet<Box<str>>,
    /// Top-level packages with a module that registers a loader.
    loaders: HashSet<Box<str>>,
}

/// The files of a package with their bytes.
type Texts = Vec<(PathBuf, Vec<u8>)>;

/// Maximum size of a compiled file that is searched for a name.
const LARGEST: u64 = 64 << 20;

impl<'a> Exports<'a> {
    /// `read`: the modules that the environment's imports run.
    pub(crate) fn new<'m>(
        modules: &'a Modules<'a>,
        read: impl Iterator<Item = (&'m str, &'m Module)>,
    ) -> Self {
        let exports = Self {
            modules,
            patches: RefCell::default(),
            known: RefCell::default(),
            texts: RefCell::default(),
            parameters: RefCell::default(),
            lists: RefCell::default(),
            searched: RefCell::default(),
            compiled: RefCell::default(),
            in_compiled: RefCell::default(),
        };
        read.for_each(|(name, module)| exports.note_patches(name, module));
        exports
    }

    /// Records the attributes that a module sets on other objects.
    pub(super) fn note_patches(&self, name: &str, module: &Module) {
        if module.patched.is_empty()
            && module.patched_objects.is_empty()
            && !module.registers_loader
        {
            return;
        }
        let mut patches = self.patches.borrow_mut();
        if module.registers_loader {
            patches.loaders.insert(top_level(name).into());
        }
        patches.names.extend(module.patched.iter().cloned());
        patches.objects.extend(module.patched_objects.iter().cloned());
    }

    /// Whether a module may set this name on another.
    fn is_patched(&self, module: &str, name: &str) -> bool {
        let patches = self.patches.borrow();
        let leaf = module.rsplit('.').next().unwrap_or(module);
        let top = top_level(module);
        patches.names.contains(name)
            || patches.objects.contains(leaf)
            || patches.loaders.contains(top)
    }

    /// The parameters of a function or class, if they are certain: no other module replaces it.
    pub(super) fn parameters(&self, module: &str, name: &str) -> Option<Parameters> {
        if self.is_patched(module, name) {
            return None;
        }
        let key = (module.to_owned(), name.to_owned());
        if let Some(known) = self.parameters.borrow().get(&key) {
            return known.clone();
        }
        let located = self.modules.get(module);
        let text = located.source().and_then(|(path, _)| self.modules.files().text(path));
        let found = text.and_then(|text| calls::parameters(&text, name));
        self.parameters.borrow_mut().insert(key, found.clone());
        found
    }

    pub(crate) fn presence(&self, module: &str, name: &str) -> Presence {
        let key = (module.to_owned(), name.to_owned());
        if let Some(known) = self.known.borrow().get(&key) {
            return *known;
        }
        let mut searches = FileSearches::default();
        let presence = match self.find_name(module, name, &mut HashSet::new(), &mut searches) {
            Presence::Absent if self.files_have(&searches, name) => Presence::Unknown,
            presence => presence,
        };
        self.known.borrow_mut().insert(key, presence);
        presence
    }

    /// Looks for a name in the statements of a module. If none binds it, it is absent unless one of the files in
    /// `searches` has it.
    fn find_name(
        &self,
        module: &str,
        name: &str,
        seen: &mut HashSet<String>,
        searches: &mut FileSearches,
    ) -> Presence {
        if name.starts_with("__") || !seen.insert(module.to_owned()) {
            return Presence::Unknown;
        }
        let located = self.modules.get(module);
        let (package, source) = match &*located {
            ModuleLocation::Absent | ModuleLocation::Compiled(_) => return Presence::Unknown,
            ModuleLocation::Namespace(folders) => {
                return match &*self.modules.get(&format!("{module}.{name}")) {
                    ModuleLocation::Absent if self.is_closed(module, folders) => Presence::Absent,
                    ModuleLocation::Absent => Presence::Unknown,
                    _ => Presence::Submodule,
                };
            }
            ModuleLocation::Source { package, module, .. } => (*package, module),
        };
        let child = format!("{module}.{name}");
        if source.bound.contains(name) {
            // `from . import a` in the package's `__init__.py` binds the submodule that it loads.
            let itself = matches!(source.aliases.get(name), Some(Alias::Member(origin, member))
                if **member == *name
                    && absolute(module, package, origin.level, &origin.module).as_deref() == Some(module));
            return match itself && !matches!(&*self.modules.get(&child), ModuleLocation::Absent) {
                true => Presence::Submodule,
                false => Presence::Bound,
            };
        }
        if package && !matches!(&*self.modules.get(&child), ModuleLocation::Absent) {
            return Presence::Submodule;
        }
        for star in &source.stars {
            let Some(origin) = absolute(module, package, star.level, &star.module) else {
                return Presence::Unknown;
            };
            // The names of a module in progress are checked there.
            if !seen.contains(&origin)
                && self.find_name(&origin, name, seen, searches) != Presence::Absent
            {
                return Presence::Unknown;
            }
        }
        let lists = source.dynamic == Dynamic::Listed;
        let elsewhere = package && !lists && self.has_open_path(module);
        if self.is_patched(module, name) || source.dynamic == Dynamic::Open || elsewhere {
            return Presence::Unknown;
        }
        if lists {
            searches.listed.push(module.to_owned());
        } else if package {
            searches.registered.push(module.to_owned());
        }
        searches.compiled.insert(top_level(module).to_owned());
        Presence::Absent
    }

    /// Whether one of the files contains the name.
    fn files_have(&self, searches: &FileSearches, name: &str) -> bool {
        searches.listed.iter().any(|module| self.mentions(module, name))
            || searches.compiled.iter().any(|top| self.mentioned_in_compiled(top, name))
            || searches.registered.iter().any(|package| self.is_registered(package, name))
    }

    /// Whether a package has a submodule that is not in its folders.
    pub(crate) fn submodule(&self, parent: &str, leaf: &str) -> Presence {
        match self.has_open_path(parent) || self.is_registered(parent, leaf) {
            true => Presence::Unknown,
            false => Presence::Absent,
        }
    }

    /// Whether the folders of a package's submodules are not all known.
    fn has_open_path(&self, package: &str) -> bool {
        let mut ends = package.match_indices('.').map(|(at, _)| at).chain([package.len()]);
        let changed = ends.any(|end| match &*self.modules.get(&package[..end]) {
            ModuleLocation::Source { module, .. } => module.changes_path,
            _ => false,
        });
        changed
            || match &*self.modules.get(package) {
                ModuleLocation::Absent | ModuleLocation::Compiled(_) => true,
                ModuleLocation::Namespace(folders) => !self.is_closed(package, folders),
                ModuleLocation::Source { .. } => false,
            }
    }

    /// Whether all folders of a namespace package are known: no .pth file or editable install adds another one.
    fn is_closed(&self, module: &str, folders: &[PathBuf]) -> bool {
        let top = top_level(module);
        // A folder of data or type stubs is not a package.
        let has_code = |folder: &PathBuf| {
            let listing = self.modules.listing(folder);
            listing
                .iter()
                .any(|(name, is_dir)| *is_dir || name.ends_with(".py") || name.ends_with(".so"))
        };
        folders.iter().any(has_code)
            && !self.modules.sites().iter().any(|site| {
                self.modules.listing(site).iter().any(|(name, _)| {
                    name.ends_with("-nspkg.pth") && name.replace('-', "_").contains(top)
                        || name.starts_with("__editable__")
                })
            })
    }

    /// The Python files of a top-level package.
    pub(super) fn texts(&self, module: &str) -> Rc<Texts> {
        let top = top_level(module);
        if let Some(known) = self.texts.borrow().get(top) {
            return known.clone();
        }
        let mut files = Vec::new();
        for site in self.modules.sites() {
            self.collect(&site.join(top), &mut files);
            files.push(site.join(format!("{top}.py")));
        }
        let source = self.modules.files();
        let read = |file: PathBuf| Some((file.clone(), source.read(file).ok()?));
        let texts: Rc<Texts> = Rc::new(files.into_par_iter().filter_map(read).collect());
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

    /// Whether a file of the package contains a name as a word.
    fn mentions(&self, module: &str, name: &str) -> bool {
        let finder = Finder::new(name);
        // The module's own file usually has it, and is the only one if the list is a literal.
        if let Some((path, _)) = self.modules.get(module).source() {
            let own = self.searched(path);
            let has = |word: &str| Finder::new(word).find(&own).is_some();
            let lazy = has("_LazyModule") && !has("define_import_structure");
            let attached = has("submod_attrs") && !has("attach_stub");
            if has_word(&own, &finder, name.len()) || lazy || attached {
                return has_word(&own, &finder, name.len());
            }
        }
        self.texts(module).par_iter().any(|(_, text)| has_word(text, &finder, name.len()))
    }

    /// A file's bytes, read once; empty if it cannot be read.
    fn searched(&self, path: &Path) -> Rc<Vec<u8>> {
        if let Some(known) = self.searched.borrow().get(path) {
            return known.clone();
        }
        let bytes = Rc::new(self.modules.files().read(path).unwrap_or_default());
        self.searched.borrow_mut().insert(path.to_owned(), bytes.clone());
        bytes
    }

    /// Whether a file of the package may set `sys.modules["a.leaf"]`: it changes `sys.modules` and contains the name.
    fn is_registered(&self, module: &str, leaf: &str) -> bool {
        let (finder, modules) = (Finder::new(leaf), Finder::new("sys.modules"));
        self.texts(module)
            .par_iter()
            .any(|(_, text)| modules.find(text).is_some() && has_word(text, &finder, leaf.len()))
    }

    /// Whether a compiled file of a top-level package contains the name.
    fn mentioned_in_compiled(&self, top: &str, name: &str) -> bool {
        let key = (top.to_owned(), name.to_owned());
        if let Some(known) = self.in_compiled.borrow().get(&key) {
            return *known;
        }
        let finder = Finder::new(name);
        let compiled = self.compiled_files(top);
        let has = |bytes: &Vec<u8>| finder.find(bytes).is_some();
        let found = compiled.unsearched || compiled.bytes.par_iter().any(has);
        self.in_compiled.borrow_mut().insert(key, found);
        found
    }

    /// The compiled files of a top-level package, read once: many names are searched in the same ones.
    fn compiled_files(&self, top: &str) -> Rc<CompiledFiles> {
        if let Some(known) = self.compiled.borrow().get(top) {
            return known.clone();
        }
        let mut files = Vec::new();
        for site in self.modules.sites() {
            self.collect_compiled(&site.join(top), &mut files);
        }
        let source = self.modules.files();
        let small = |file: &PathBuf| source.file_size(file).is_some_and(|bytes| bytes <= LARGEST);
        let (small, large): (Vec<PathBuf>, Vec<PathBuf>) = files.into_iter().partition(small);
        // A module that is too large to search may have it; kernel libraries contain no Python names.
        let is_library = |file: &PathBuf| {
            file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"lib"))
        };
        let compiled = Rc::new(CompiledFiles {
            bytes: small.par_iter().filter_map(|file| source.read(file).ok()).collect(),
            unsearched: large.iter().any(|file| !is_library(file)),
        });
        self.compiled.borrow_mut().insert(top.to_owned(), compiled.clone());
        compiled
    }

    fn collect_compiled(&self, folder: &Path, files: &mut Vec<PathBuf>) {
        for (name, is_dir) in self.modules.listing(folder).iter() {
            if *is_dir {
                self.collect_compiled(&folder.join(name), files);
            } else if name.ends_with(".so") || name.ends_with(".pyd") {
                files.push(folder.join(name));
            }
        }
    }
}

/// Whether a text contains a word.
fn has_word(text: &[u8], finder: &Finder<'_>, length: usize) -> bool {
    let is_letter = |at: Option<usize>| {
        at.and_then(|at| text.get(at)).is_some_and(|it| it.is_ascii_alphanumeric() || *it == b'_')
    };
    finder.find_iter(text).any(|at| !is_letter(at.checked_sub(1)) && !is_letter(Some(at + length)))
}

fn top_level(module: &str) -> &str {
    module.split('.').next().unwrap_or(module)
}
