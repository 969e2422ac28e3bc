//! Running the built command and looking at what it did.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)] // Test support; each test file uses its part.

#[cfg(target_os = "linux")]
pub mod fake_driver;
#[cfg(target_os = "linux")]
pub mod library;
#[cfg(target_os = "linux")]
pub mod processes;
pub mod scripted;
#[cfg(target_os = "linux")]
pub mod slurm;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The built command in `folder`, with an environment that no shell of ours leaks into.
pub fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firstlight"));
    command.current_dir(folder).args(arguments);
    // What is read of compiled files is kept in a cache, which must not be the one of whoever runs the tests.
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    // No test depends on a registry that it did not start; uv's own variable keeps doctor from asking one.
    if arguments.first() == Some(&"doctor") {
        command.env("UV_OFFLINE", "1");
    }
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX", "COLUMNS", "NO_COLOR"] {
        command.env_remove(name);
    }
    command
}

/// Runs it to its end.
pub fn run(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().unwrap()
}

/// Runs it, expects this exit status, and gives standard output and standard error.
pub fn expect(folder: &Path, arguments: &[&str], status: i32) -> (String, String) {
    let output = run(folder, arguments);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{arguments:?}\n{out}\n{err}");
    (out, err)
}

/// Runs it with `--json` and parses what it prints.
pub fn json(folder: &Path, arguments: &[&str], status: i32) -> serde_json::Value {
    let (out, _) = expect(folder, &[arguments, &["--json"]].concat(), status);
    serde_json::from_str(&out).unwrap()
}

/// Expects exit 2 and one sentence on standard error that contains every one of `words`, with a hint below it.
pub fn refuses(folder: &Path, arguments: &[&str], words: &[&str]) {
    let (out, err) = expect(folder, arguments, 2);
    assert!(out.is_empty(), "{arguments:?} printed {out}");
    let mut lines = err.lines();
    let sentence = lines.next().unwrap_or_default();
    assert!(sentence.starts_with("error: "), "{err}");
    for word in words {
        assert!(sentence.contains(word), "{arguments:?}: no `{word}` in {err}");
    }
    assert!(
        lines.next().is_some_and(|line| line.starts_with("hint: ")),
        "{arguments:?}: no hint in {err}"
    );
    assert_eq!(lines.next(), None, "{err}");
}

/// A virtual environment laid out by hand: no interpreter is needed to read it.
pub fn environment(folder: &Path, dists: &[(&str, &str)]) -> PathBuf {
    let venv = folder.join("venv");
    let site = venv.join("lib/python3.12/site-packages");
    std::fs::create_dir_all(&site).unwrap();
    std::fs::create_dir_all(venv.join("bin")).unwrap();
    // An interpreter that is there and is never started: pyvenv.cfg tells all that doctor asks.
    std::fs::copy(std::env::current_exe().unwrap(), venv.join("bin/python")).unwrap();
    std::fs::write(venv.join("pyvenv.cfg"), "home = /usr/bin\nversion = 3.12.3\n").unwrap();
    for (name, version) in dists {
        let info = site.join(format!("{name}-{version}.dist-info"));
        std::fs::create_dir_all(&info).unwrap();
        let metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n");
        std::fs::write(info.join("METADATA"), metadata).unwrap();
        std::fs::write(info.join("WHEEL"), "Wheel-Version: 1.0\nTag: py3-none-any\n").unwrap();
        std::fs::write(info.join("RECORD"), format!("{name}/__init__.py,,\n")).unwrap();
    }
    venv
}
