//! Hashes the files that a rank's programs consist of, to compare the nodes of a fleet.
//!
//! Versions are shown next to the hashes and never compared: two files of one version can differ, and such a difference
//! is the one to find.

use crate::hashes;
use crate::own_program::own_program;
use crate::run_folder::RunFolder;
use facts::CompactSort;
use facts::{Dist, DoctorReport, PyEnv, SCHEMA, StackFile, StackReport};
use rayon::prelude::*;
use report::count;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The stack in a rank's run folder; its content is a [`StackReport`] as JSON.
pub(super) const STACK_FILE: &str = "stack.json";

struct ListedFile {
    what: String,
    path: PathBuf,
    version: Option<String>,
}

/// Hashes the files that the doctor found, within a quarter of the remaining time.
pub(super) fn write(
    doctor: &DoctorReport,
    until: Option<Instant>,
    folder: &mut RunFolder,
) -> anyhow::Result<()> {
    let since = Instant::now();
    let until = until.map(|until| since + until.saturating_duration_since(since) / 4);
    let files = files(doctor, until);
    let unread = files.iter().filter(|file| file.sha256.is_none()).count();
    if unread > 0 {
        folder.not_run(
            &format!("{} of the stack", count(unread, "file")),
            "no time remained to read them",
        );
    }
    let outcome = format!("{}, {unread} not read", count(files.len(), "file"));
    let text = serde_json::to_string_pretty(&StackReport { schema: SCHEMA, files })? + "\n";
    folder.artefact(STACK_FILE, "the files of the stack with their hashes", &text)?;
    folder.stage("stack", since, outcome)
}

/// Every file of the stack, with its hash if there was time to read it.
pub(super) fn files(doctor: &DoctorReport, until: Option<Instant>) -> Vec<StackFile> {
    let mut files: Vec<StackFile> =
        named(doctor).into_par_iter().filter_map(|named| hashed(named, until)).collect();
    files.compact_sort_by(|a, b| a.what.cmp(&b.what));
    files
}

/// The files, by names that are the same on every node. The first of several with one name counts.
fn named(doctor: &DoctorReport) -> Vec<ListedFile> {
    let machine = &doctor.machine;
    let mut all: BTreeMap<String, ListedFile> = BTreeMap::new();
    let mut add = |what: String, path: PathBuf, version: Option<String>| {
        all.entry(what.clone()).or_insert(ListedFile { what, path, version });
    };
    if let Some(own) = own_program().and_then(|own| own.canonicalize().ok()) {
        add("firstlight".into(), own, Some(env!("CARGO_PKG_VERSION").to_owned()));
    }
    // Reported by the kernel and the driver, so no package can fake them.
    let kernel = machine.os.kernel.as_ref().map(|kernel| kernel.value.clone());
    add("the kernel".into(), "/proc/version".into(), kernel);
    let driver = machine.driver.as_ref();
    let version = driver.and_then(|driver| driver.version()).map(|version| version.value.clone());
    add("the NVIDIA kernel module".into(), "/proc/driver/nvidia/version".into(), version.clone());
    if let Some(library) = driver.and_then(|driver| driver.cuda_library.as_ref()) {
        add("libcuda".into(), library.value.clone().into(), version);
    }
    for path in loaded() {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        add(format!("loaded: {}", stem(&name.unwrap_or_default())), path, None);
    }
    for library in &machine.libraries {
        let in_env = doctor.envs.iter().any(|env| Path::new(&library.path).starts_with(&env.root));
        if !in_env {
            add(library.name.clone(), library.path.clone().into(), library.version.clone());
        }
    }
    for (at, env) in doctor.envs.iter().enumerate() {
        for file in &env.native_files {
            let path = PathBuf::from(&file.path);
            let path = if path.is_absolute() { path } else { Path::new(&env.root).join(path) };
            let version = file.dist.as_ref().and_then(|name| of_dist(env, name));
            add(format!("environment {}: {}", at + 1, below(env, &path)), path, version);
        }
    }
    all.into_values().collect()
}

fn of_dist(env: &PyEnv, name: &str) -> Option<String> {
    env.dist(name).map(|Dist { name, version, .. }| format!("{name} {version}"))
}

/// A file's path below site-packages, which does not depend on the environment's location.
fn below(env: &PyEnv, path: &Path) -> String {
    let folders = env.site_packages.iter().chain(std::iter::once(&env.root));
    let rest = folders.filter_map(|folder| path.strip_prefix(folder).ok()).next();
    rest.unwrap_or(path).display().to_string()
}

/// The shared libraries that this process has loaded: the C library, and the driver's.
fn loaded() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let paths =
        maps.lines().filter_map(|line| line.split_once('/').map(|(_, path)| format!("/{path}")));
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.contains(".so")).map(PathBuf::from).collect();
    paths.compact_sort();
    paths.dedup();
    paths
}

/// `libc.so.6` of `libc.so.6`, `libcuda.so` of `libcuda.so.580.65.06`: a file with a release in its name has the same
/// name on all nodes.
fn stem(name: &str) -> String {
    match name.split_once(".so") {
        Some((stem, release)) if release.matches('.').count() > 1 => format!("{stem}.so"),
        _ => name.to_owned(),
    }
}

/// The file with its hash; `None` if the file does not exist.
fn hashed(named: ListedFile, until: Option<Instant>) -> Option<StackFile> {
    let ListedFile { what, path, version } = named;
    let file = File::open(&path).ok()?;
    let mut bytes = file.metadata().ok()?.len();
    let sha256 = hashes::until(file, until).ok()?.map(|(hash, read)| {
        // Kernel files have no size until they are read.
        bytes = bytes.max(read);
        hash
    });
    Some(StackFile { what, path: path.display().to_string(), version, bytes, sha256 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_release_and_hashes_are_of_the_bytes() {
        for (name, expect) in
            [("libc.so.6", "libc.so.6"), ("libcuda.so.580.65.06", "libcuda.so"), ("x.so", "x.so")]
        {
            assert_eq!(stem(name), expect);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.so");
        std::fs::write(&path, "abc").unwrap();
        let named = || ListedFile { what: "a".into(), path: path.clone(), version: None };
        let got = hashed(named(), None).unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((got.bytes, got.sha256.as_deref()), (3, Some(abc)));
        // Without time no file is read, and the hash is missing.
        assert_eq!(hashed(named(), Some(Instant::now())).unwrap().sha256, None);
        assert!(loaded().iter().any(|path| path.to_string_lossy().contains("libc.")));
    }
}
