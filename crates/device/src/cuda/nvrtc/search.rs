//! Where NVRTC may lie: the environments people install it into, then the toolkit.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Library names, the bundle's own version first: it supports every driver that firstlight does.
const NAMES: [&str; 2] = ["libnvrtc.so.12", "libnvrtc.so.13"];
/// Folders of the wheels inside site-packages.
const WHEELS: [&str; 2] = ["nvidia/cuda_nvrtc/lib", "nvidia/cu13/lib"];

/// Every file that may be NVRTC, in the order to try; plain names are for the loader's own paths.
pub(super) fn candidates() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    list(&variable, Path::new("/"))
}

fn list(variable: &dyn Fn(&str) -> Option<OsString>, root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Some(named) = variable("FIRSTLIGHT_NVRTC").map(PathBuf::from) {
        if named.is_dir() {
            found.extend(NAMES.map(|name| named.join(name)));
        } else {
            found.push(named);
        }
    }
    let home = variable("HOME").map(|home| PathBuf::from(home).join(".local"));
    let prefixes = [
        variable("VIRTUAL_ENV").map(PathBuf::from),
        variable("CONDA_PREFIX").map(PathBuf::from),
        home,
        Some(root.join("usr/local")),
        Some(root.join("usr")),
    ];
    for prefix in prefixes.into_iter().flatten() {
        found.extend(in_wheels(&prefix.join("lib")));
        // Conda's own packages put libraries beside Python.
        found.extend(
            NAMES
                .map(|name| prefix.join("lib").join(name))
                .into_iter()
                .filter(|path| path.exists()),
        );
    }
    if let Some(toolkit) = variable("CUDA_HOME").or_else(|| variable("CUDA_PATH")) {
        found.extend(NAMES.map(|name| PathBuf::from(&toolkit).join("lib64").join(name)));
    }
    for toolkit in ["usr/local/cuda/lib64", "opt/cuda/lib64"] {
        found.extend(NAMES.map(|name| root.join(toolkit).join(name)));
    }
    found.extend(NAMES.map(PathBuf::from));
    found
}

/// NVRTC in the wheels of every Python under a `lib` folder.
fn in_wheels(lib: &Path) -> Vec<PathBuf> {
    let mut pythons: Vec<PathBuf> = std::fs::read_dir(lib)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name.starts_with("python"))
        })
        .collect();
    // The order of a folder's entries differs between file systems.
    pythons.sort();
    let mut found = Vec::new();
    for (wheel, name) in WHEELS.iter().zip(NAMES) {
        for python in &pythons {
            for packages in ["site-packages", "dist-packages"] {
                found.push(python.join(packages).join(wheel).join(name));
            }
        }
    }
    found.retain(|path| path.exists());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environments_come_before_the_toolkit_and_the_named_one_first() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let make = |path: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path
        };
        let venv = make("venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
        let newer = make("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
        let user =
            make("me/.local/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
        let system = make("usr/lib/python3/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
        let set = [
            ("FIRSTLIGHT_NVRTC", "/x/libnvrtc.so".into()),
            ("VIRTUAL_ENV", root.join("venv")),
            ("HOME", root.join("me")),
        ];
        let variable = |name: &str| {
            set.iter().find(|(known, _)| *known == name).map(|(_, path)| path.clone().into())
        };
        let found = list(&variable, root);
        let expect = [PathBuf::from("/x/libnvrtc.so"), venv, newer, user, system];
        assert_eq!(found[..5], expect);
        let rest: Vec<&PathBuf> = found[5..].iter().collect();
        assert_eq!(rest.first(), Some(&&root.join("usr/local/cuda/lib64/libnvrtc.so.12")));
        assert_eq!(rest.last(), Some(&&PathBuf::from("libnvrtc.so.13")));
    }
}
