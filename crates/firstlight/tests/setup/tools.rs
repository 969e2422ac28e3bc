//! uv and virtual environments for tests, kept below the target folder.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use setup::uv::Uv;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// uv, from PATH or installed by pip once.
pub(crate) fn uv() -> &'static Uv {
    static UV: LazyLock<Uv> = LazyLock::new(|| {
        // A wrapper script, such as pyenv's, needs more of PATH than the tests keep.
        let script = |folder: &PathBuf| {
            std::fs::read(folder.join("uv")).is_ok_and(|program| program.starts_with(b"#!"))
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).filter(|folder| !script(folder));
        let path = std::env::join_paths(folders).unwrap();
        let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tools");
        Uv::find(Some(&path), &tools, || ()).unwrap_or_else(|error| panic!("{error}"))
    });
    &UV
}

/// The cache of all tests, so that uv inspects each interpreter of this machine once.
pub(crate) fn uv_cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("uv-cache")
}

/// A command of uv with that cache.
pub(crate) fn uv_command(arguments: &[&str]) -> Command {
    let mut command = uv().command();
    command.env("UV_CACHE_DIR", uv_cache());
    command.args(arguments);
    command
}

/// Runs a command that has to succeed.
pub(crate) fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    output
}

/// The release of the python3 on PATH, `3.11`, with which environments are made.
pub(crate) fn python() -> &'static str {
    static PYTHON: LazyLock<String> = LazyLock::new(|| {
        let program = "import sys; print('%d.%d' % sys.version_info[:2])";
        let said = done(Command::new("python3").args(["-I", "-c", program]));
        String::from_utf8(said.stdout).unwrap().trim().to_owned()
    });
    &PYTHON
}

/// A virtual environment with packages of the Python registry.
pub(crate) fn venv(folder: &Path, packages: &[&str]) -> PathBuf {
    let env = folder.join("env");
    let path = env.to_str().unwrap();
    done(&mut uv_command(&["venv", "--quiet", "--python", "python3", path]));
    if !packages.is_empty() {
        let install = ["pip", "install", "--quiet", "--python", path];
        done(&mut uv_command(&[install.as_slice(), packages].concat()));
    }
    env
}
