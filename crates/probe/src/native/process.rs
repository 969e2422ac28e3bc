//! Models the loaded files of a Python process: the file of each needed name, in glibc's search order.

use super::elf::machine_name;
use super::search::{Search, expand};
use super::store::{Lib, Store};
use facts::{FoundBy, Needed};
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The loaded files, in load order. Cloning is cheap: an extension is loaded in a copy.
#[derive(Clone, Default)]
pub(crate) struct Process {
    maps: Vec<Arc<Map>>,
    /// Needed entries of each map, with the map of each.
    needs: Vec<Arc<Vec<Need>>>,
    /// Names of a map: its soname and the name by which it was needed.
    names: HashMap<String, usize>,
}

/// One DT_NEEDED entry, with its map.
type Need = (Needed, Option<usize>);

/// One loaded file.
pub(crate) struct Map {
    pub(crate) lib: Arc<Lib>,
    /// The map that needed it; `None` for the program and for files opened by path.
    loader: Option<usize>,
    rpath: Vec<PathBuf>,
    runpath: Vec<PathBuf>,
}

/// The variables that a search may use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variable {
    Honoured,
    Ignored,
}

impl Process {
    pub(crate) fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    pub(crate) fn needs(&self, index: usize) -> &[Need] {
        self.needs.get(index).map_or(&[], |needs| needs.as_slice())
    }

    /// Loads a file by its path with everything it needs, breadth first. `None` if the loader cannot read the file.
    pub(crate) fn open(
        &mut self,
        store: &Store<'_>,
        search: &Search<'_>,
        path: &Path,
    ) -> Option<usize> {
        let lib = store.get(path).filter(|lib| lib.object.readable)?;
        if let Some(index) = self.maps.iter().position(|map| map.lib.stamp.same_file(&lib.stamp)) {
            return Some(index);
        }
        let first = self.add(lib, None, None);
        let mut pending = VecDeque::from([first]);
        while let Some(index) = pending.pop_front() {
            let map = self.maps[index].clone();
            let mut needs = Vec::new();
            for name in &map.lib.object.needed {
                let (needed, target, new) = self.need(store, search, index, name);
                if new {
                    pending.extend(target);
                }
                needs.push((needed, target));
            }
            self.needs[index] = Arc::new(needs);
        }
        Some(first)
    }

    fn add(&mut self, lib: Arc<Lib>, loader: Option<usize>, name: Option<&str>) -> usize {
        let index = self.maps.len();
        let object = &lib.object;
        let machine = machine_name(object.machine);
        let folders = |words: &Option<String>| {
            words.as_deref().map(|words| expand(words, &lib.path, &machine)).unwrap_or_default()
        };
        let runpath = folders(&object.runpath);
        // A file with a RUNPATH has its RPATH ignored.
        let rpath = if object.runpath.is_some() { Vec::new() } else { folders(&object.rpath) };
        for name in object.soname.as_deref().into_iter().chain(name) {
            self.names.entry(name.to_owned()).or_insert(index);
        }
        self.maps.push(Arc::new(Map { lib, loader, rpath, runpath }));
        self.needs.push(Arc::default());
        index
    }

    /// One DT_NEEDED entry: the fact, its map, and whether that map is new.
    fn need(
        &mut self,
        store: &Store<'_>,
        search: &Search<'_>,
        asker: usize,
        name: &str,
    ) -> (Needed, Option<usize>, bool) {
        let words = |lib: &Lib| lib.path.display().to_string();
        // A file for another processor is opened by another process: files loaded here do not serve it.
        let machine = self.maps[asker].lib.object.machine;
        let loaded = self.names.get(name).copied();
        if let Some(index) = loaded.filter(|index| self.maps[*index].lib.object.machine == machine)
        {
            let loaded = &self.maps[index].lib;
            let own = self.find(store, search, asker, name, Variable::Honoured);
            let other = own.filter(|(lib, _)| !lib.stamp.same_file(&loaded.stamp));
            let needed = Needed {
                name: name.to_owned(),
                path: Some(words(loaded)),
                found_by: Some(FoundBy::Loaded),
                other: other.map(|(lib, _)| words(&lib)),
            };
            return (needed, Some(index), false);
        }
        let Some((lib, found_by)) = self.find(store, search, asker, name, Variable::Honoured)
        else {
            let name = name.to_owned();
            return (Needed { name, path: None, found_by: None, other: None }, None, false);
        };
        let shadowed = (found_by == FoundBy::LdLibraryPath)
            .then(|| self.find(store, search, asker, name, Variable::Ignored))
            .flatten()
            .filter(|(other, _)| !other.stamp.same_file(&lib.stamp));
        let needed = Needed {
            name: name.to_owned(),
            path: Some(words(&lib)),
            found_by: Some(found_by),
            other: shadowed.map(|(lib, _)| words(&lib)),
        };
        // A file that is loaded under another name is not loaded twice.
        let known = self.maps.iter().position(|map| map.lib.stamp.same_file(&lib.stamp));
        match known {
            Some(index) => {
                self.names.insert(name.to_owned(), index);
                (needed, Some(index), false)
            }
            None => (needed, Some(self.add(lib, Some(asker), Some(name))), true),
        }
    }

    /// The file that the loader takes for a name that is not loaded yet, and the search step that finds it.
    fn find(
        &self,
        store: &Store<'_>,
        search: &Search<'_>,
        asker: usize,
        name: &str,
        variable: Variable,
    ) -> Option<(Arc<Lib>, FoundBy)> {
        let map = &self.maps[asker];
        let machine = map.lib.object.machine;
        // The loader silently skips files for other processors.
        let fits = |path: &Path| store.get(path).filter(|lib| lib.object.ends_search(machine));
        let first = |folders: &[PathBuf], by| {
            search.in_folders(folders, name).find_map(|path| fits(&path)).map(|lib| (lib, by))
        };
        if name.contains('/') {
            return fits(Path::new(name)).map(|lib| (lib, FoundBy::Path));
        }
        if map.runpath.is_empty()
            && let Some(found) = self.rpaths(asker).find_map(|rpath| first(rpath, FoundBy::Rpath))
        {
            return Some(found);
        }
        let variable = match variable {
            Variable::Honoured => search.ld_library_path.as_slice(),
            Variable::Ignored => &[],
        };
        first(variable, FoundBy::LdLibraryPath)
            .or_else(|| first(&map.runpath, FoundBy::Runpath))
            .or_else(|| {
                let cached = search.in_cache(name).iter().filter(|_| !map.lib.object.no_default);
                cached.into_iter().find_map(|p| fits(p)).map(|lib| (lib, FoundBy::LdSoCache))
            })
            .or_else(|| {
                let paths = search.in_defaults(name).into_iter();
                paths
                    .filter(|_| !map.lib.object.no_default)
                    .find_map(|path| fits(&path))
                    .map(|lib| (lib, FoundBy::Default))
            })
    }

    /// RPATHs in order: the file's own, those of what loaded it, the program's.
    fn rpaths(&self, asker: usize) -> impl Iterator<Item = &[PathBuf]> {
        let chain = std::iter::successors(Some(asker), |index| self.maps[*index].loader);
        // Map 0 is the program if the interpreter could be read; it comes last, and duplicates are harmless.
        chain.chain([0]).map(|index| self.maps[index].rpath.as_slice())
    }

    /// A map and what it needs, breadth first: the lookup order of symbols.
    pub(crate) fn scope(&self, root: usize) -> Vec<usize> {
        let mut scope = vec![root];
        let mut next = 0;
        while let Some(index) = scope.get(next).copied() {
            for target in self.needs(index).iter().filter_map(|(_, target)| *target) {
                if !scope.contains(&target) {
                    scope.push(target);
                }
            }
            next += 1;
        }
        scope
    }
}
