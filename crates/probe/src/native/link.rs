//! Finds the symbol versions and symbols of one file that the loader would miss.

use super::cache::{CachedFiles, Fnv};
use super::demangle::{demangle, overloads};
use super::process::Process;
use super::store::Store;
use super::symbols::Undefined;
use facts::{Exported, MissingSymbol, MissingVersion, NativeFile};
use serde::{Deserialize, Serialize};

/// Symbols that a file needs and that no loaded library has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unresolved {
    pub(crate) symbols: Vec<MissingSymbol>,
    pub(crate) total: u32,
    /// Whether it exports Python's init function for a module of its name.
    pub(crate) module: Option<bool>,
    /// Why the symbols of some library could not be read.
    pub(crate) problems: Vec<String>,
}

/// Maximum number of listed symbols; a file built for another torch can miss thousands.
const MAX_SYMBOLS: usize = 12;
/// Maximum number of similar exports shown.
const MAX_INSTEAD: usize = 4;

/// Missing versions of needed libraries, which the loader checks before any symbol.
pub(crate) fn missing_versions(process: &Process, root: usize) -> Vec<MissingVersion> {
    let map = &process.maps()[root];
    let mut missing = Vec::new();
    if map.lib.object.damage.is_some() {
        return missing;
    }
    for requires in &map.lib.object.requires {
        let needs = process.needs(root);
        let target = needs.iter().find(|(needed, _)| needed.name == requires.library);
        let Some(index) = target.and_then(|(_, target)| *target) else { continue };
        let provider = &process.maps()[index].lib;
        // The loader only warns about a library without any versions.
        if provider.object.defines.is_empty() {
            continue;
        }
        for version in requires.versions.iter().filter(|v| !provider.object.defines.contains(v)) {
            missing.push(MissingVersion {
                version: version.clone(),
                library: requires.library.clone(),
                path: provider.path.display().to_string(),
                newest: newest_like(version, &provider.object.defines),
            });
        }
    }
    missing
}

/// The newest version of the same family: `GLIBC_2.31` of all that begin with `GLIBC_`.
fn newest_like(version: &str, defined: &[String]) -> Option<String> {
    let (family, _) = version.split_once('_')?;
    let numbers = |name: &str| -> Option<Vec<u32>> {
        let rest = name.strip_prefix(family)?.strip_prefix('_')?;
        rest.split('.').map(|part| part.parse().ok()).collect()
    };
    let known = defined.iter().filter_map(|name| Some((numbers(name)?, name)));
    known.max().map(|(_, name)| name.clone())
}

/// A hash that changes when any file of the process does.
pub(crate) fn fingerprint(process: &Process, root: usize) -> u64 {
    let mut key = Fnv::default();
    key.word(root as u64);
    for map in process.maps() {
        key.write(map.lib.path.as_os_str().as_encoded_bytes());
        let stamp = &map.lib.stamp;
        for word in [stamp.bytes, stamp.mtime_seconds as u64, stamp.mtime_nanos as u64, stamp.inode]
        {
            key.word(word);
        }
    }
    key.0
}

/// The symbols of one file that no loaded file exports; from the cache if all files are unchanged.
pub(crate) fn unresolved(
    store: &Store<'_>,
    known: &CachedFiles,
    process: &Process,
    root: usize,
) -> (u64, Unresolved) {
    let lib = &process.maps()[root].lib;
    let key = fingerprint(process, root);
    if let Some(unresolved) = known.linked(&lib.path, &lib.stamp, key) {
        return (key, unresolved.clone());
    }
    let mut found = Unresolved::default();
    let symbols = match store.symbols(lib) {
        Ok(symbols) => symbols,
        Err(problem) => {
            found.problems.push(problem.to_owned());
            return (key, found);
        }
    };
    // For MPI.mpich.cpython-312-x86_64-linux-gnu.so this is MPI.mpich: no import statement finds it, only code that
    // selects it.
    let file = NativeFile { path: lib.path.display().to_string(), ..NativeFile::default() };
    found.module = Some(symbols.exports_function(format!("PyInit_{}", file.stem()).as_bytes()));
    // The exports of a damaged library are not known, and every file that needs it would be reported.
    if let Some(damaged) = process.maps().iter().find(|map| map.lib.object.damage.is_some()) {
        let damage = damaged.lib.object.damage.as_deref().unwrap_or_default();
        found.problems.push(format!("{} {damage}", damaged.lib.path.display()));
        return (key, found);
    }
    // The file's own scope first, which has nearly all symbols; then the rest of the process, because libraries opened
    // with RTLD_GLOBAL are searched too, and packages decide which those are.
    let mut order = process.scope(root);
    order.extend(
        (0..process.maps().len()).filter(|index| !order.contains(index)).collect::<Vec<_>>(),
    );
    let mut providers = Vec::new();
    for index in order {
        let provider = &process.maps()[index].lib;
        match store.symbols(provider) {
            Ok(symbols) => providers.push((provider, symbols)),
            Err(problem) => {
                found.problems.push(format!("{} {problem}", provider.path.display()));
            }
        }
    }
    for wanted in symbols.undefined() {
        if providers.iter().any(|(_, symbols)| symbols.provides(&wanted)) {
            continue;
        }
        found.total = found.total.saturating_add(1);
        if found.symbols.len() < MAX_SYMBOLS {
            found.symbols.push(missing(&wanted, |prefix| {
                let exports = providers.iter().flat_map(|(lib, symbols)| {
                    let names = symbols.beginning_with(prefix.as_bytes(), MAX_INSTEAD).into_iter();
                    names.map(|name| (lib.path.display().to_string(), text(name)))
                });
                exports.take(MAX_INSTEAD).collect()
            }));
        }
    }
    (key, found)
}

fn missing(
    wanted: &Undefined<'_>,
    like: impl FnOnce(&str) -> Vec<(String, String)>,
) -> MissingSymbol {
    let symbol = text(wanted.name);
    let instead = overloads(&symbol).map(like).unwrap_or_default();
    MissingSymbol {
        demangled: demangle(&symbol),
        version: wanted.version.map(|(version, _)| version.to_owned()),
        library: wanted.version.map(|(_, library)| library.to_owned()),
        instead: instead
            .into_iter()
            .map(|(path, symbol)| Exported { demangled: demangle(&symbol), symbol, path })
            .collect(),
        symbol,
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
