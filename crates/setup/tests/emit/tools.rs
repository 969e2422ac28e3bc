//! The target tools of emitted files, installed by pip into a folder of the tests and kept there.

use setup::uv::Uv;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{LazyLock, Mutex, PoisonError};

static MAKING: Mutex<()> = Mutex::new(());

static UV: LazyLock<Uv> = LazyLock::new(|| {
    let path = std::env::var_os("PATH");
    Uv::find(path.as_deref(), &folder().join("tools"), || ()).expect("uv, from PATH or by pip")
});

pub(crate) fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

pub(crate) fn uv() -> &'static Uv {
    &UV
}

/// uv in a project's folder, as a user runs it: configured by the project.
pub(crate) fn uv_in(project: &Path) -> Command {
    let mut command = uv().command();
    command.current_dir(project).env_remove("UV_NO_CONFIG");
    command
}

/// The release of the local Python, `3.11`, for tests that install packages.
pub(crate) fn python_here() -> String {
    let says = "import sys; print('%d.%d' % sys.version_info[:2])";
    output(Command::new("python3").args(["-c", says])).trim().to_owned()
}

/// Runs a command and returns its output; panics with its message if it fails.
pub(crate) fn output(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// Runs a command that has to fail and returns its message.
pub(crate) fn failure(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert!(!status.success(), "{command:?}");
    String::from_utf8(stderr).unwrap()
}

/// A folder with these files.
pub(crate) fn folder_with(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let path = folder.path().to_owned();
    (folder, path)
}

/// The Python of an environment with one real package, created once and kept under this name.
pub(crate) fn python_with(name: &str, requirement: &str) -> PathBuf {
    let environment = folder().join(name);
    let python = environment.join("bin/python");
    // Tests that need the same environment wait for the first one to create it.
    let _alone = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if !python.exists() {
        let mut venv = uv().command();
        output(venv.args(["venv", "--quiet", "--clear", "--python", "python3"]).arg(&environment));
    }
    let mut install = uv().command();
    output(install.args(["pip", "install", "--quiet", requirement, "--python"]).arg(&python));
    python
}
