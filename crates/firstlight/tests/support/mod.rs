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

/// The built command in `folder`, without variables of the caller's shell that change its behaviour.
pub fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firstlight"));
    command.current_dir(folder).args(arguments);
    // Results of reading compiled files are cached, and the tests must not use the user's cache.
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    // Tests use no registry that they did not start; uv's variable keeps doctor offline.
    if arguments.first() == Some(&"doctor") {
        command.env("UV_OFFLINE", "1");
    }
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX", "COLUMNS", "NO_COLOR"] {
        command.env_remove(name);
    }
    command
}

/// Runs the command and waits for it.
pub fn run(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().unwrap()
}

/// Runs the command, asserts its exit status, and returns standard output and standard error.
pub fn expect(folder: &Path, arguments: &[&str], status: i32) -> (String, String) {
    let output = run(folder, arguments);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{arguments:?}\n{out}\n{err}");
    (out, err)
}

/// The text with its lines joined: where a line is wrapped depends on the lengths of the paths in it.
pub fn unbroken(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs the command with `--json` and parses its output.
pub fn json(folder: &Path, arguments: &[&str], status: i32) -> serde_json::Value {
    let (out, _) = expect(folder, &[arguments, &["--json"]].concat(), status);
    serde_json::from_str(&out).unwrap()
}

/// Asserts exit 2 and a one-line error that contains each of `words`, followed by a hint.
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

/// A virtual environment written without running an interpreter.
pub fn environment(folder: &Path, dists: &[(&str, &str)]) -> PathBuf {
    let venv = folder.join("venv");
    let site = venv.join("lib/python3.12/site-packages");
    std::fs::create_dir_all(&site).unwrap();
    std::fs::create_dir_all(venv.join("bin")).unwrap();
    // The interpreter exists and is never started, because doctor reads only pyvenv.cfg.
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
