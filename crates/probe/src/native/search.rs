//! The search path of the dynamic loader, in glibc's order (ld.so(8)).

use super::hwcaps;
use crate::Source;
use crate::loader::{STANDARD, parse_cache};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The parts of the search that are the same for every file of the machine.
pub(crate) struct Search<'a> {
    source: &'a Source,
    /// LD_LIBRARY_PATH; an empty entry is the working folder.
    pub(crate) ld_library_path: Vec<PathBuf>,
    cache: HashMap<String, Vec<PathBuf>>,
    defaults: Vec<PathBuf>,
    /// Subfolders of builds for this processor, best first.
    levels: Vec<&'static str>,
    /// Cached folder listings: each folder is read once, instead of being queried for each name. Keyed by the path's
    /// bytes, which are hashed several times as fast as its components.
    listings: Mutex<HashMap<OsString, Arc<HashSet<String>>>>,
}

impl<'a> Search<'a> {
    pub(crate) fn of(source: &'a Source) -> Self {
        let variable = source.var("LD_LIBRARY_PATH").unwrap_or_default();
        // Both `:` and `;` separate folders, as in glibc.
        let folder = |word: &str| source.absolute(Path::new(word)).into_owned();
        let ld_library_path = match variable {
            "" => Vec::new(),
            words => words.split([':', ';']).map(folder).collect(),
        };
        let mut cache: HashMap<String, Vec<PathBuf>> = HashMap::new();
        let bytes = source.read("/etc/ld.so.cache").unwrap_or_default();
        for path in parse_cache(&bytes).into_iter().map(|entry| PathBuf::from(entry.path)) {
            if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
                cache.entry(name.to_owned()).or_default().push(path);
            }
        }
        let levels = hwcaps::of(source);
        for files in cache.values_mut().filter(|files| files.len() > 1) {
            *files = hwcaps::ordered(std::mem::take(files), &levels);
        }
        let defaults = STANDARD.iter().map(PathBuf::from).collect();
        Self { source, ld_library_path, cache, defaults, levels, listings: Mutex::default() }
    }

    /// The files of this name in the folders, in order; builds for this processor before the plain one.
    pub(crate) fn in_folders<'s>(
        &'s self,
        folders: &'s [PathBuf],
        name: &'s str,
    ) -> impl Iterator<Item = PathBuf> + 's {
        folders.iter().flat_map(move |folder| {
            let names = self.listing(folder);
            let special = names.contains(hwcaps::FOLDER);
            let levels = self.levels.iter().filter(move |_| special);
            let special = levels
                .map(move |level| folder.join(hwcaps::FOLDER).join(level))
                .filter(move |folder| self.listing(folder).contains(name));
            let plain = names.contains(name).then(|| folder.clone());
            special.chain(plain).map(move |folder| folder.join(name))
        })
    }

    pub(crate) fn in_cache(&self, name: &str) -> &[PathBuf] {
        self.cache.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn in_defaults(&self, name: &str) -> Vec<PathBuf> {
        self.in_folders(&self.defaults, name).collect()
    }

    fn listing(&self, folder: &Path) -> Arc<HashSet<String>> {
        let lock = || self.listings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(folder.as_os_str()) {
            return known.clone();
        }
        let names: Arc<HashSet<String>> = Arc::new(self.source.list(folder).into_iter().collect());
        lock().insert(folder.into(), names.clone());
        names
    }
}

/// The folders of an RPATH or RUNPATH with `$ORIGIN` and the other tokens expanded.
pub(crate) fn expand(words: &str, file: &Path, machine: &str) -> Vec<PathBuf> {
    let origin = file.parent().unwrap_or(Path::new("/")).display().to_string();
    let expand = |word: &str| {
        let mut out = word.to_owned();
        for (token, value) in [("ORIGIN", origin.as_str()), ("LIB", "lib64"), ("PLATFORM", machine)]
        {
            out = out.replace(&format!("${{{token}}}"), value).replace(&format!("${token}"), value);
        }
        without_dots(Path::new(&out))
    };
    // An empty entry is the working folder of Python's process, which is not a fact of the environment.
    words.split(':').filter(|word| !word.is_empty()).map(expand).collect()
}

/// The path without `..`, assuming no links in between: folders of wheels are not links.
fn without_dots(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                out.pop();
            }
            std::path::Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::expand;
    use std::path::{Path, PathBuf};

    #[test]
    fn origin_is_the_folder_of_the_file() {
        let check = |words: &str, expect: &[&str]| {
            let got = expand(words, Path::new("/v/site/torch/lib/libtorch.so"), "x86_64");
            assert_eq!(got, expect.iter().map(PathBuf::from).collect::<Vec<_>>(), "{words}");
        };
        check(
            "$ORIGIN/../../nvidia/nccl/lib:$ORIGIN",
            &["/v/site/nvidia/nccl/lib", "/v/site/torch/lib"],
        );
        check("${ORIGIN}/../lib", &["/v/site/torch/lib"]);
        check("/opt/cuda/$LIB::", &["/opt/cuda/lib64"]);
        check("", &[]);
    }
}
