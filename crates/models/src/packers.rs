//! Checkpoints written by the libraries of quantization formats, with the values that these libraries read.

use crate::Checkpoint;
use facts::CompactSort;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::{TempDir, tempdir};

/// The output of a script that uses the libraries, which `cargo xtask test` installs; `None` without them, after a
/// message.
pub(crate) fn written(script: &str) -> Option<TempDir> {
    let Some(python) = std::env::var_os("FIRSTLIGHT_PACKERS_PYTHON") else {
        eprintln!("SKIP: FIRSTLIGHT_PACKERS_PYTHON names no Python with the formats' libraries");
        return None;
    };
    let (modules, folder) = (tempdir().unwrap(), tempdir().unwrap());
    let shared = include_str!("packers/written.py");
    std::fs::write(modules.path().join("written.py"), shared).unwrap();
    let packers = std::env::var_os("FIRSTLIGHT_PACKERS").unwrap_or_default();
    let paths = std::env::split_paths(&packers).chain([modules.path().to_owned()]);
    let ran = Command::new(python)
        .args(["-s", "-c", script])
        .arg(folder.path())
        .env("PYTHONPATH", std::env::join_paths(paths).unwrap())
        .env("OMP_NUM_THREADS", "1")
        // Compiling with torch takes minutes and changes no value.
        .env("TORCHDYNAMO_DISABLE", "1")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    println!("{}", String::from_utf8_lossy(&ran.stdout));
    Some(folder)
}

/// The written folders by name.
pub(crate) fn folders(of: &TempDir) -> Vec<(String, PathBuf)> {
    let path = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().path();
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let all = std::fs::read_dir(of.path()).unwrap().map(path);
    let mut all: Vec<_> = all.map(|path| (name(&path), path)).collect();
    all.compact_sort();
    all
}

/// Checks each tensor of a checkpoint against the expected tensor of the same name, and the parameter count; returns
/// the number of tensors.
pub(crate) fn hold(path: &Path, check: impl Fn(&str, &Checkpoint, &TensorView<'_>)) -> usize {
    let checkpoint = Checkpoint::open(path).unwrap();
    let bytes = std::fs::read(path.join("want/want.safetensors")).unwrap();
    let want = SafeTensors::deserialize(&bytes).unwrap();
    let mut parameters = 0;
    for (name, want) in want.tensors() {
        check(&name, &checkpoint, &want);
        parameters += want.shape().iter().product::<usize>() as u64;
    }
    assert_eq!(checkpoint.parameters(), parameters, "{}", path.display());
    want.len()
}
