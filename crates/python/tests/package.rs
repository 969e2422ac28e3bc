//! The package as Python has it: the library that was built beside this test, loaded by a real interpreter.
#![allow(clippy::unwrap_used)] // A test.

use std::path::{Path, PathBuf};
use std::process::Command;

fn library() -> PathBuf {
    let name =
        if cfg!(target_os = "macos") { "libfirstlight_ops.dylib" } else { "libfirstlight_ops.so" };
    std::env::current_exe().unwrap().with_file_name(name)
}

/// Runs a program of Python with the package on its path; what it says, and whether it ended well.
fn python(interpreter: &Path, arguments: &[&str]) -> (String, bool) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ran = Command::new(interpreter)
        .args(["-B", "-s"])
        .args(arguments)
        .current_dir(root.join("tests"))
        .env("PYTHONPATH", root)
        .env("FIRSTLIGHT_LIBRARY", library())
        .output()
        .unwrap();
    let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    (said.concat(), ran.status.success())
}

#[test]
fn the_package_needs_no_other() {
    let (said, good) = python(Path::new("python3"), &["alone.py"]);
    assert!(good, "{said}");
}

/// With numpy, which `cargo xtask test` gets; without it this says so.
#[test]
fn ops_on_arrays_are_those_of_the_formulas() {
    let Some(interpreter) = std::env::var_os("FIRSTLIGHT_ARRAYS_PYTHON") else {
        eprintln!("SKIP: FIRSTLIGHT_ARRAYS_PYTHON names no Python with numpy");
        return;
    };
    let (said, good) = python(Path::new(&interpreter), &["ops.py", "numpy"]);
    assert!(good && said.contains(" passed, 0 failed"), "{said}");
    // Every op has rows of its own.
    for op in
        ["attention", "rms_norm", "conv1d", "ssd", "kda", "gated_delta", "linear", "moe", "nsa"]
    {
        let ran = |line: &str| {
            let name = line.split_whitespace().nth(3).unwrap_or_default();
            line.starts_with("ok ") && name.trim_end_matches(',') == op
        };
        assert!(said.lines().any(ran), "{op}: {said}");
    }
}
