//! Search paths of the dynamic loader: LD_LIBRARY_PATH, /etc/ld.so.cache, the standard folders; and the folders of
//! NVIDIA's installers that the loader may not search.

use crate::Source;
use std::path::{Path, PathBuf};

mod cache;
pub(crate) use cache::parse_cache;

/// Folders in the loader's order, with the description of each in facts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loader {
    places: Vec<SearchPlace>,
}

#[derive(Debug, Clone)]
struct SearchPlace {
    source: String,
    files: Vec<PathBuf>,
}

/// A library that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundLibrary {
    pub(crate) path: PathBuf,
    pub(crate) source: String,
}

/// The loader's default folders.
pub(crate) const STANDARD: &[&str] = &[
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// Container toolkit, WSL, Jetson, Debian's alternatives and NixOS, in this order.
const NVIDIA: &[&str] = &[
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/usr/lib/aarch64-linux-gnu/tegra",
    "/usr/lib/aarch64-linux-gnu/nvidia",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/nvidia",
    "/run/opengl-driver/lib",
];

impl Loader {
    pub(crate) fn of(source: &Source) -> Self {
        let mut places = Vec::new();
        for folder in source.folders_of_var("LD_LIBRARY_PATH") {
            places.push(SearchPlace::folder(
                source,
                &folder,
                format!("LD_LIBRARY_PATH {}", folder.display()),
            ));
        }
        let cache =
            source.read("/etc/ld.so.cache").map(|bytes| parse_cache(&bytes)).unwrap_or_default();
        places.push(SearchPlace {
            source: "/etc/ld.so.cache".to_string(),
            files: cache.into_iter().map(|entry| PathBuf::from(entry.path)).collect(),
        });
        for folder in STANDARD.iter().chain(NVIDIA) {
            places.push(SearchPlace::folder(source, Path::new(folder), (*folder).to_string()));
        }
        Self { places }
    }

    /// Every existing library of this stem, such as `libnvrtc`, in the loader's order. One file may occur more than
    /// once.
    pub(crate) fn find(&self, source: &Source, stem: &str) -> Vec<FoundLibrary> {
        let mut found = Vec::new();
        for place in &self.places {
            for path in place.files.iter().filter(|path| is_library(path, stem)) {
                // The cache has the state of the last ldconfig run.
                if source.is_file(path) {
                    found.push(FoundLibrary { path: path.clone(), source: place.source.clone() });
                }
            }
        }
        found
    }

    /// Files of exactly this name, in the loader's order.
    pub(crate) fn files(&self, source: &Source, name: &str) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self
            .places
            .iter()
            .flat_map(|place| &place.files)
            .filter(|path| {
                path.file_name().is_some_and(|file| file == name) && source.is_file(path)
            })
            .cloned()
            .collect();
        let mut seen = std::collections::BTreeSet::new();
        files.retain(|path| seen.insert(source.canonical(path)));
        files
    }
}

impl SearchPlace {
    fn folder(source: &Source, folder: &Path, words: String) -> Self {
        let files = libraries_in(source, folder);
        Self { source: words, files }
    }
}

/// Shared libraries of a folder.
pub(crate) fn libraries_in(source: &Source, folder: &Path) -> Vec<PathBuf> {
    let names = source.list(folder).into_iter();
    names
        .filter(|name| name.starts_with("lib") && name.contains(".so"))
        .map(|name| folder.join(name))
        .collect()
}

/// Whether a file is a library of this stem: `libnvrtc.so.12`, but not `libnvrtc-builtins.so.12.8`. Wheels of CUDA 11
/// insert a hash: `libnvrtc-672ee683.so.11.2`.
pub(crate) fn is_library(path: &Path, stem: &str) -> bool {
    let rest = || path.file_name()?.to_str()?.strip_prefix(stem);
    let Some(mut rest) = rest() else { return false };
    if let Some((hash, tail)) = rest.strip_prefix('-').and_then(|tail| tail.split_at_checked(8))
        && hash.bytes().all(|b| b.is_ascii_hexdigit())
    {
        rest = tail;
    }
    rest.strip_prefix(".so").is_some_and(|version| {
        version.is_empty() || version.strip_prefix('.').is_some_and(crate::text::is_dotted_number)
    })
}

/// Version digits in a library's file name: `9.14.0` of `libcudnn.so.9.14.0`.
pub(crate) fn version_of(path: &Path) -> Option<String> {
    let (_, version) = path.file_name()?.to_str()?.split_once(".so.")?;
    crate::text::is_dotted_number(version).then(|| version.to_string())
}

#[cfg(test)]
mod tests {
    use super::{is_library, version_of};
    use std::path::Path;

    #[test]
    fn file_names() {
        let check = |name: &str, stem: &str, is: bool, version: Option<&str>| {
            assert_eq!(is_library(Path::new(name), stem), is, "{name}");
            assert_eq!(version_of(Path::new(name)).as_deref(), version, "{name}");
        };
        check("/x/libnvrtc.so.12", "libnvrtc", true, Some("12"));
        check("/x/libnvrtc.so.12.8.93", "libnvrtc", true, Some("12.8.93"));
        check("/x/libnvrtc.so", "libnvrtc", true, None);
        check("/x/libnvrtc-672ee683.so.11.2", "libnvrtc", true, Some("11.2"));
        check("/x/libnvrtc-builtins.so.12.8", "libnvrtc", false, Some("12.8"));
        check("/x/libnvrtc.alt.so.13", "libnvrtc", false, Some("13"));
        check("/x/libnvrtc.so.conf", "libnvrtc", false, None);
        check("/x/libnvrtc-é2ee683.so", "libnvrtc", false, None);
        check("/x/libcublasLt.so.13", "libcublas", false, Some("13"));
    }
}
