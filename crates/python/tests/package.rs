//! Tests of the Python package with real interpreters, which load the library that was built with this test.
#![allow(clippy::unwrap_used)] // A test.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

fn library() -> PathBuf {
    let name =
        if cfg!(target_os = "macos") { "libfirstlight_ops.dylib" } else { "libfirstlight_ops.so" };
    std::env::current_exe().unwrap().with_file_name(name)
}

/// Runs a Python program with the package on its path. Returns its output and whether it succeeded.
fn python(interpreter: &Path, arguments: &[&str]) -> (String, bool) {
    python_with(interpreter, arguments, None)
}

/// Like [`python`], with another folder on the path.
fn python_with(interpreter: &Path, arguments: &[&str], other: Option<OsString>) -> (String, bool) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = [root.to_owned()].into_iter().chain(other.map(PathBuf::from));
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let ran = Command::new(interpreter)
        .arg("-s")
        .args(arguments)
        .current_dir(root.join("tests"))
        .env("PYTHONPATH", std::env::join_paths(path).unwrap())
        .env("FIRSTLIGHT_LIBRARY", library())
        // Compiling torch and transformers to bytecode takes a minute, so it is cached, outside the sources.
        .env("PYTHONPYCACHEPREFIX", kept.join("byte-code"))
        .env_remove("PYTHONDONTWRITEBYTECODE")
        .env("TORCHINDUCTOR_CACHE_DIR", kept.join("inductor"))
        // Several of these run in parallel.
        .env("OMP_NUM_THREADS", "1")
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    (said.concat(), ran.status.success())
}

#[test]
fn the_package_needs_no_other_package() {
    let (said, good) = python(Path::new("python3"), &["alone.py"]);
    assert!(good, "{said}");
}

#[test]
fn every_public_function_is_documented() {
    let (said, good) = python(Path::new("python3"), &["documented.py"]);
    assert!(good && said.contains(" passed, 0 failed"), "{said}");
}

/// Requires numpy and ml_dtypes, which `cargo xtask test` installs; skipped without them.
#[test]
fn ops_take_arrays_of_other_libraries() {
    let Some(interpreter) = std::env::var_os("FIRSTLIGHT_ARRAYS_PYTHON") else {
        eprintln!("SKIP: FIRSTLIGHT_ARRAYS_PYTHON names no Python with numpy");
        return;
    };
    let (said, good) = python(Path::new(&interpreter), &["foreign.py"]);
    assert!(good && said.contains(" passed, 0 failed"), "{said}");
}

/// Requires numpy, which `cargo xtask test` installs; skipped without it.
#[test]
fn ops_on_arrays_are_those_of_the_formulas() {
    let Some(interpreter) = std::env::var_os("FIRSTLIGHT_ARRAYS_PYTHON") else {
        eprintln!("SKIP: FIRSTLIGHT_ARRAYS_PYTHON names no Python with numpy");
        return;
    };
    let (said, good) = python(Path::new(&interpreter), &["ops.py", "numpy"]);
    assert!(good && said.contains(" passed, 0 failed"), "{said}");
    // Every op has cases.
    for op in [
        "attention",
        "rms_norm",
        "conv1d",
        "ssd",
        "selective_scan",
        "kda",
        "gated_delta",
        "linear",
        "moe",
        "nsa",
    ] {
        let ran = |line: &str| {
            let name = line.split_whitespace().nth(3).unwrap_or_default();
            line.starts_with("ok ") && name.trim_end_matches(',') == op
        };
        assert!(said.lines().any(ran), "{op}: {said}");
    }
}

/// Requires mypy and pyright, which `cargo xtask test` installs; skipped without them.
#[test]
fn type_checkers_know_every_public_name() {
    let Some(interpreter) = std::env::var_os("FIRSTLIGHT_TYPES_PYTHON") else {
        eprintln!("SKIP: FIRSTLIGHT_TYPES_PYTHON names no Python with mypy and pyright");
        return;
    };
    let (said, good) = python(Path::new(&interpreter), &["typed/check.py"]);
    assert!(good && said.contains(" passed, 0 failed"), "{said}");
}

/// Requires torch and the package `kernels`, which `cargo xtask test` installs; skipped without them.
#[test]
fn hub_kernels_run_models_without_a_network() {
    let variables = ["FIRSTLIGHT_HUB_KERNELS_PYTHON", "FIRSTLIGHT_HUB_KERNELS"];
    let [Some(interpreter), Some(packages)] = variables.map(std::env::var_os) else {
        eprintln!("SKIP: FIRSTLIGHT_HUB_KERNELS_PYTHON names no Python with torch");
        return;
    };
    let words = ["hub_kernels.py", PAGE];
    let (said, good) = python_with(Path::new(&interpreter), &words, Some(packages));
    assert!(good && said.contains(" passed, 0 failed"), "{said}");
}

/// The book's page about the package. Two of the tests run its programs.
const PAGE: &str = "../../../docs/book/src/python.md";

/// Programs that run with a recent torch, the longest first, and whether they also run with an older one.
const WITH_TORCH: &[(&[&str], bool)] = &[
    (&["models.py"], true),
    (&["drop_in.py"], true),
    (&["sweep/sweep.py", "--sample", "8"], false),
    (&["patching.py"], false),
    (&["page.py", PAGE], false),
    (&["training.py"], false),
    (&["learning.py", "12"], false),
    (&["gradients.py", "sample"], false),
    (&["tracing.py"], true),
    (&["ops.py", "cpu"], true),
    (&["safety.py"], true),
    (&["fast.py"], false),
    (&["quantized.py"], true),
    (&["replacements.py"], true),
];

/// Requires a recent and an older torch, which `cargo xtask test` installs; skipped without them.
#[test]
fn every_torch_has_the_same_ops() {
    let Some(stacks) = std::env::var_os("FIRSTLIGHT_TORCH_PYTHONS") else {
        eprintln!("SKIP: FIRSTLIGHT_TORCH_PYTHONS names no Pythons with torch");
        return;
    };
    let stacks: Vec<PathBuf> = std::env::split_paths(&stacks).collect();
    assert_eq!(stacks.len(), 2);
    let tasks = WITH_TORCH.iter().flat_map(|(words, both)| {
        let stacks = if *both { &stacks[..] } else { &stacks[..1] };
        stacks.iter().map(move |stack| (stack, *words))
    });
    let (tasks, failed) = (Mutex::new(tasks), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let next = tasks.lock().unwrap().next();
            let Some((stack, words)) = next else { return };
            let start = Instant::now();
            let (said, good) = python(stack, words);
            let line = said.lines().rev().find(|line| line.contains(" passed, "));
            let (name, took) = (words.join(" "), start.elapsed().as_secs_f64());
            println!("{took:6.1} s  {name} with {}: {line:?}", stack.display());
            let passed = line.is_some_and(|line| line.ends_with(" passed, 0 failed"));
            if !good || !passed {
                failed.lock().unwrap().push(format!("{name} with {}: {said}", stack.display()));
            }
        }
    };
    // Each program uses one thread; the machine is assumed to have at least two.
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
