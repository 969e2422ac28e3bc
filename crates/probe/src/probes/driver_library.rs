//! The driver's user-space libraries on disk: their version, which differs from the loaded module's after an incomplete
//! upgrade, and the libcuda that programs get, which NVIDIA's compatibility package may replace.

use super::driver_of;
use crate::Source;
use crate::loader::version_of;
use facts::{Fact, Machine};
use std::path::{Path, PathBuf};

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    let found = ["libnvidia-ml.so.1", "libcuda.so.1"].iter().find_map(|name| {
        source.loader().files(source, name).iter().find_map(|file| version(source, file))
    });
    if let Some((version, file)) = found {
        driver_of(machine).user_library = Some(Fact::new(version, file.display().to_string()));
    }
    let libraries = source.loader().find(source, "libcuda");
    let first = libraries.into_iter().find(|found| found.path.ends_with("libcuda.so.1"));
    if let Some((found, real)) =
        first.and_then(|found| Some((found.source, source.canonical(found.path)?)))
    {
        driver_of(machine).cuda_library = Some(Fact::new(real.display().to_string(), found));
    }
}

/// The release in the library's name: `libnvidia-ml.so.1` links to `libnvidia-ml.so.580.159.04`. WSL and some container
/// images copy the file instead of linking it; the release is then in the name of a file next to it, if at all.
fn version(source: &Source, file: &Path) -> Option<(String, PathBuf)> {
    let real = source.canonical(file)?;
    if let Some(version) = release_of(&real) {
        return Some((version, real));
    }
    let stem = file.file_name()?.to_str()?.strip_suffix('1')?;
    let folder = real.parent()?;
    let beside = source.list(folder).into_iter().filter(|name| name.starts_with(stem));
    let mut releases: Vec<_> = beside
        .filter_map(|name| Some((release_of(Path::new(&name))?, folder.join(name))))
        .collect();
    // With two releases, it is not known which of them the copy is.
    if releases.len() == 1 { releases.pop() } else { None }
}

/// Version digits with at least a major and a minor, as in releases; the `.1` of a soname is not one.
fn release_of(path: &Path) -> Option<String> {
    version_of(path).filter(|version| version.contains('.'))
}
