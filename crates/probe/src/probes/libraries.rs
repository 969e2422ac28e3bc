//! Libraries that accelerator stacks load at run time, in all locations.

use crate::Source;
use crate::loader::{FoundLibrary, is_library, libraries_in, version_of};
use facts::CompactCollect;
use facts::{AcceleratorLibrary, Machine, Platform};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Name in the facts and stem of the file.
const WANTED: &[(&str, &str)] = &[
    ("nvrtc", "libnvrtc"),
    ("cublasLt", "libcublasLt"),
    ("cudnn", "libcudnn"),
    ("nccl", "libnccl"),
];

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    if !matches!(machine.platform, Platform::LinuxX86_64 | Platform::LinuxAarch64) {
        return;
    }
    let mut folders = Vec::new();
    for toolkit in &machine.toolkits {
        let root = Path::new(&toolkit.root);
        // The libraries of a toolkit in /usr are among the loader's.
        if root == Path::new("/usr") {
            continue;
        }
        let mut inside = vec![root.join("lib64"), root.join("lib")];
        let targets = root.join("targets");
        inside.extend(
            source.list(&targets).into_iter().map(|target| targets.join(target).join("lib")),
        );
        folders
            .extend(inside.into_iter().map(|folder| (folder, format!("toolkit {}", toolkit.root))));
    }
    for (name, stem) in WANTED {
        let found = source.loader().find(source, stem);
        add(source, &mut machine.libraries, name, found);
    }
    search(source, &mut machine.libraries, &folders);
}

/// Libraries of Python packages: `nvidia/*/lib` of the CUDA wheels, and `torch/lib` of older torch wheels.
pub(crate) fn in_site_packages(
    source: &Source,
    libraries: &mut Vec<AcceleratorLibrary>,
    folders: &[PathBuf],
) {
    let mut inside = Vec::new();
    for site in folders {
        let words = site.display().to_string();
        let nvidia = site.join("nvidia");
        inside.extend(
            source
                .list(&nvidia)
                .into_iter()
                .map(|part| (nvidia.join(part).join("lib"), words.clone())),
        );
        inside.push((site.join("torch/lib"), words.clone()));
        // conda installs C libraries into the environment's lib, two folders above its site-packages.
        let lib = site.parent().and_then(Path::parent).filter(|lib| lib.ends_with("lib"));
        if let Some((lib, root)) = lib.and_then(|lib| Some((lib, lib.parent()?)))
            && source.is_dir(root.join("conda-meta"))
        {
            inside.push((lib.to_path_buf(), format!("conda environment {}", root.display())));
        }
    }
    search(source, libraries, &inside);
}

fn search(source: &Source, libraries: &mut Vec<AcceleratorLibrary>, folders: &[(PathBuf, String)]) {
    for (folder, words) in folders {
        let files = libraries_in(source, folder);
        for (name, stem) in WANTED {
            let found = files.iter().filter(|path| is_library(path, stem) && source.is_file(path));
            let found = found
                .map(|path| FoundLibrary { path: path.clone(), source: words.clone() })
                .collect();
            add(source, libraries, name, found);
        }
    }
}

/// Adds each file once after resolving links; the first path is kept.
fn add(
    source: &Source,
    libraries: &mut Vec<AcceleratorLibrary>,
    name: &str,
    found: Vec<FoundLibrary>,
) {
    let mut seen: BTreeSet<String> =
        libraries.iter().map(|library| library.path.clone()).compact_set();
    for FoundLibrary { path, source: words } in found {
        let real = source.canonical(&path).unwrap_or_else(|| path.clone());
        if seen.insert(real.display().to_string()) {
            libraries.push(AcceleratorLibrary {
                name: name.to_string(),
                // Programs load the link `libcudnn.so.9`, the file that it links to has all digits.
                version: version_of(&real).or_else(|| version_of(&path)),
                path: real.display().to_string(),
                source: words,
            });
        }
    }
}
