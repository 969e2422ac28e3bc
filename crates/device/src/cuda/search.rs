//! Search paths of NVIDIA's libraries: Python environments first, then the toolkit.

use facts::CompactSort;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A library and its location in wheels.
#[derive(Debug, Clone, Copy)]
pub(super) struct LibrarySearch {
    /// Environment variable with its path or folder.
    pub(super) variable: &'static str,
    /// File names, the preferred version first.
    pub(super) names: [&'static str; 2],
    /// Folders of the wheels inside site-packages, in the same order.
    pub(super) wheels: [&'static str; 2],
}

impl LibrarySearch {
    /// Candidate files in search order; bare names are for the loader's search paths.
    pub(super) fn candidates(&self) -> Vec<PathBuf> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        self.list(&variable, Path::new("/"))
    }

    fn list(&self, variable: &dyn Fn(&str) -> Option<OsString>, root: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        if let Some(named) = variable(self.variable).map(PathBuf::from) {
            if named.is_dir() {
                found.extend(self.names.map(|name| named.join(name)));
            } else {
                found.push(named);
            }
        }
        let home = variable("HOME").map(|home| PathBuf::from(home).join(".local"));
        let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
            .iter()
            .filter_map(|name| variable(name))
            .map(PathBuf::from)
            .collect();
        // The environment of the first Python on PATH.
        let path = variable("PATH").unwrap_or_default();
        let python = std::env::split_paths(&path).find(|folder| folder.join("python3").exists());
        prefixes.extend(python.and_then(|folder| folder.parent().map(Path::to_path_buf)));
        prefixes.extend(home);
        prefixes.extend([root.join("usr/local"), root.join("usr")]);
        for prefix in prefixes {
            found.extend(self.in_wheels(&prefix.join("lib")));
            // Conda's packages put libraries next to Python.
            let beside = self.names.map(|name| prefix.join("lib").join(name));
            found.extend(beside.into_iter().filter(|path| path.exists()));
        }
        if let Some(toolkit) = variable("CUDA_HOME").or_else(|| variable("CUDA_PATH")) {
            found.extend(self.names.map(|name| PathBuf::from(&toolkit).join("lib64").join(name)));
        }
        for toolkit in ["usr/local/cuda/lib64", "opt/cuda/lib64"] {
            found.extend(self.names.map(|name| root.join(toolkit).join(name)));
        }
        found.extend(self.names.map(PathBuf::from));
        found
    }

    /// The library in the wheels of every Python under a `lib` folder.
    fn in_wheels(&self, lib: &Path) -> Vec<PathBuf> {
        let is_python = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("python"))
        };
        let entries = std::fs::read_dir(lib).into_iter().flatten().flatten();
        let mut pythons: Vec<PathBuf> =
            entries.map(|entry| entry.path()).filter(is_python).collect();
        // The order of a folder's entries differs between file systems.
        pythons.compact_sort();
        let mut found = Vec::new();
        for (wheel, name) in self.wheels.iter().zip(self.names) {
            for python in &pythons {
                for packages in ["site-packages", "dist-packages"] {
                    found.push(python.join(packages).join(wheel).join(name));
                }
            }
        }
        found.retain(|path| path.exists());
        found
    }
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
        let found = crate::cuda::nvrtc::WANTED.list(&variable, root);
        let expect = [PathBuf::from("/x/libnvrtc.so"), venv, newer, user, system];
        assert_eq!(found[..5], expect);
        let rest: Vec<&PathBuf> = found[5..].iter().collect();
        assert_eq!(rest.first(), Some(&&root.join("usr/local/cuda/lib64/libnvrtc.so.12")));
        assert_eq!(rest.last(), Some(&&PathBuf::from("libnvrtc.so.13")));
    }
}
