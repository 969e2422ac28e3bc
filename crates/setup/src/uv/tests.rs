#![cfg(unix)]

use super::{OLDEST, Uv, UvError, UvVersion, parse_version};
use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// One machine at a time: a program cannot be started while the fork of another test still holds it open for writing.
static ONE: Mutex<()> = Mutex::new(());

/// A machine whose PATH has these programs, each a shell script, in one folder each.
struct Machine {
    root: TempDir,
    path: Vec<PathBuf>,
    /// How often an installation was announced.
    told: Cell<u32>,
    _alone: MutexGuard<'static, ()>,
}

impl Machine {
    fn new() -> Self {
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        Self { root: TempDir::new().unwrap(), path: Vec::new(), told: Cell::new(0), _alone: alone }
    }

    fn with(mut self, name: &str, script: &str) -> Self {
        let folder = self.root.path().join(format!("path{}", self.path.len()));
        write(&folder.join(name), script);
        self.path.push(folder);
        self
    }

    fn tools(&self) -> PathBuf {
        self.root.path().join("cache/tools")
    }

    fn find(&self) -> Result<Uv, UvError> {
        let path: OsString = std::env::join_paths(&self.path).unwrap();
        Uv::find(Some(&path), &self.tools(), || self.told.set(self.told.get() + 1))
    }

    /// The contents of the tool folder, including hidden files.
    fn kept(&self) -> Vec<String> {
        let entries = fs::read_dir(self.tools()).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn write(file: &Path, script: &str) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A Python whose pip installs this uv: the word after `--target` is the folder.
fn pip_installs(uv: &str) -> String {
    format!(
        r#"while [ "$1" != --target ]; do shift; done
/bin/mkdir -p "$2/bin"; printf '#!/bin/sh\n{uv}\n' > "$2/bin/uv"; /bin/chmod +x "$2/bin/uv""#
    )
}

#[test]
fn versions_are_read_and_ordered() {
    let check = |text, expect| assert_eq!(parse_version(text), expect, "{text}");
    check("0.13.9 (x86_64-unknown-linux-gnu)", Some(UvVersion(0, 13, 9)));
    check("0.9.0rc1", Some(UvVersion(0, 9, 0)));
    check("1.0", None);
    check("", None);
    assert!(UvVersion(0, 13, 9) > UvVersion(0, 9, 15));
    assert!(UvVersion(0, 8, 24) < OLDEST);
}

#[test]
fn first_working_uv_on_path_is_used() {
    let machine = Machine::new()
        .with("uv", "echo \"pyenv: uv: command not found\" >&2; exit 127")
        .with("uv", "echo uv 0.5.0")
        .with("uv", "echo uv 0.12.1 '(a build)'");
    let uv = machine.find().unwrap();
    assert_eq!(uv.version, UvVersion(0, 12, 1));
    assert!(uv.program.starts_with(&machine.path[2]), "{uv:?}");
    assert!(machine.kept().is_empty());
    assert_eq!(machine.told.get(), 0);
}

#[test]
fn pip_installs_uv_once_and_completely() {
    let machine = Machine::new()
        .with("python3", "echo 'No module named pip' >&2; exit 1")
        .with("python3", &pip_installs("echo uv 0.13.9"));
    let uv = machine.find().unwrap();
    assert_eq!(uv.program, machine.tools().join("uv-0.13.9/bin/uv"));
    assert_eq!(machine.kept(), ["uv-0.13.9"], "nothing half made is left");
    // Once it is installed, no Python is needed: the next machine has no working one.
    fs::remove_dir_all(&machine.path[1]).unwrap();
    assert_eq!(machine.find().unwrap(), uv);
    assert_eq!(machine.told.get(), 1, "an installation is announced once");
}

#[test]
fn cached_uv_that_does_not_run_is_replaced() {
    let machine = Machine::new().with("python3", &pip_installs("echo uv 0.13.9"));
    write(&machine.tools().join("uv-0.13.9/bin/uv"), "exit 126");
    assert_eq!(machine.find().unwrap().version, UvVersion(0, 13, 9));
    assert_eq!(machine.kept(), ["uv-0.13.9"]);
}

#[test]
fn uv_installed_by_pip_must_run() {
    let machine = Machine::new().with("python3", &pip_installs("exit 1"));
    let error = machine.find().unwrap_err().to_string();
    assert!(error.contains("exit status: 1"), "{error}");
    assert!(machine.kept().is_empty(), "{:?}", machine.kept());
}

#[test]
fn error_names_all_candidates() {
    let pip = "echo 'WARNING: Retrying' >&2; echo 'ERROR: No matching distribution found for uv' >&2; \
               echo 'notice: a new release of pip' >&2; exit 1";
    let machine = Machine::new().with("uv", "echo uv 0.5.0").with("python3", pip);
    let error = machine.find().unwrap_err();
    assert!(error.hint().starts_with("install it with "), "{}", error.hint());
    let error = error.to_string();
    for part in [
        "no uv 0.9.0 or newer: ",
        "path0/uv is 0.5.0; ",
        "python3 -m pip install uv: ERROR: No matching distribution found for uv",
    ] {
        assert!(error.contains(part), "{error}");
    }
    drop(machine);
    let error = Machine::new().find().unwrap_err();
    assert_eq!(error.hint(), crate::python::INSTALL);
    let error = error.to_string();
    assert!(error.contains("none on PATH; no Python on PATH"), "{error}");
    let without_pip = Machine::new().with("python3", "echo 'x: No module named pip' >&2; exit 1");
    assert_eq!(without_pip.find().unwrap_err().hint(), crate::python::INSTALL);
}

#[test]
fn full_disk_is_named_once_with_its_remedy() {
    let pip = "echo 'ERROR: Exception:' >&2; echo 'Traceback (most recent call last):' >&2; \
               echo 'OSError: [Errno 28] No space left on device' >&2; exit 2";
    let machine = Machine::new().with("python3", pip).with("python3", pip);
    let error = machine.find().unwrap_err();
    assert!(error.hint().starts_with("free some space"), "{}", error.hint());
    let error = error.to_string();
    assert_eq!(error.matches("No space left on device").count(), 1, "{error}");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let machine = Machine::new().with("python3", &pip_installs("echo uv 0.13.9"));
    fs::write(machine.root.path().join("cache"), "a file").unwrap();
    let error = machine.find().unwrap_err().to_string();
    assert!(error.contains("cannot keep uv in") && error.contains("cache/tools"), "{error}");
}

#[test]
fn commands_ignore_index_variables_of_the_shell() {
    let uv = Uv { program: "uv".into(), version: OLDEST };
    let command = uv.command();
    let removed = |name: &str| {
        command.get_envs().any(|(variable, value)| variable == name && value.is_none())
    };
    assert!(removed("UV_INDEX_STRATEGY") && removed("UV_EXTRA_INDEX_URL"));
    assert!(!removed("UV_CACHE_DIR") && !removed("SSL_CERT_FILE"));
}
