//! The recorded machines of fixtures/, read by the code for live ones.

use crate::{EnvOptions, Report, Source, read};
use std::path::{Path, PathBuf};

mod environments;
mod hardware;
mod machines;
mod trouble;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn report_of(folder: &Path) -> Report {
    read(&EnvOptions {
        source: Source::recorded(folder).unwrap(),
        venv: None,
        cache: None,
        verify_files: false,
    })
    .unwrap()
}

pub(crate) fn report(name: &str) -> Report {
    report_of(&folder(name))
}

/// A machine's copy after a change to its files.
fn altered(name: &str, change: impl Fn(&Path)) -> Report {
    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let (path, target) = (entry.path(), to.join(entry.file_name()));
            let kind = entry.file_type().unwrap();
            if kind.is_symlink() {
                std::os::unix::fs::symlink(std::fs::read_link(&path).unwrap(), target).unwrap();
            } else if kind.is_dir() {
                copy(&path, &target);
            } else {
                std::fs::copy(&path, target).unwrap();
            }
        }
    }
    let copied = tempfile::tempdir().unwrap();
    copy(&folder(name), copied.path());
    change(copied.path());
    report_of(copied.path())
}

fn replace(folder: &Path, file: &str, from: &str, to: &str) {
    let file = folder.join(file);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{file:?} has no {from:?}");
    std::fs::write(file, text.replace(from, to)).unwrap();
}

#[test]
fn recordings_are_found_or_refused() {
    let error = Source::recorded(Path::new("no/such/machine")).unwrap_err();
    assert_eq!(error.to_string(), "recorded machine no/such/machine has no folder named root");
    assert_eq!(error.hint(), "put the machine's files under no/such/machine/root");
}
