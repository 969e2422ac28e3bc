//! `doctor --fix` runs package changes in an environment of its own and nothing else; `matrix` has every cell.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap as tests do.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use support::{environment, expect, json};
use tempfile::tempdir;

/// An environment with a conflict, whose python writes down what it is asked to do.
fn conflicting(folder: &Path, status: u32) -> PathBuf {
    let venv = environment(folder, &[("requests", "2.28.1"), ("datasets", "4.0.0")]);
    let metadata = venv.join("lib/python3.12/site-packages/datasets-4.0.0.dist-info/METADATA");
    std::fs::write(
        metadata,
        "Metadata-Version: 2.1\nName: datasets\nVersion: 4.0.0\nRequires-Dist: requests>=2.32.2\n",
    )
    .unwrap();
    let python = venv.join("bin/python");
    let script =
        format!("#!/bin/sh\necho \"$@\" >> {}\nexit {status}\n", folder.join("asked").display());
    std::fs::remove_file(&python).unwrap();
    std::fs::write(&python, script).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    venv
}

fn asked(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("asked")).unwrap_or_default()
}

#[test]
fn package_changes_are_run_in_order_once_agreed() {
    let folder = tempdir().unwrap();
    let venv = conflicting(folder.path(), 0);
    let venv = venv.to_str().unwrap();
    // Nobody to ask: the plan is shown and nothing is run.
    let (shown, err) = expect(folder.path(), &["doctor", "--venv", venv, "--fix"], 2);
    assert!(shown.contains("pip install 'requests>=2.32.2'"), "{shown}");
    assert!(err.contains("nobody to ask") && err.contains("--yes"), "{err}");
    assert_eq!(asked(folder.path()), "");
    // The script changed nothing, so the finding is still there: exit 1.
    let fixes = json(folder.path(), &["doctor", "--venv", venv, "--fix", "--yes"], 1);
    assert_eq!(fixes["plan"][0]["rule"], "dependency-conflict");
    assert_eq!(fixes["plan"][0]["result"], "done");
    assert_eq!(asked(folder.path()), "-m pip install requests>=2.32.2\n-m pip check\n");
}

#[test]
fn a_command_that_fails_ends_it() {
    let folder = tempdir().unwrap();
    let venv = conflicting(folder.path(), 3);
    let fixes =
        json(folder.path(), &["doctor", "--venv", venv.to_str().unwrap(), "--fix", "--yes"], 1);
    assert_eq!(fixes["plan"][0]["result"], "failed");
    assert_eq!(asked(folder.path()), "-m pip install requests>=2.32.2\n");
}

#[test]
fn evidence_is_folded_until_it_is_asked_for() {
    let folder = tempdir().unwrap();
    let venv = conflicting(folder.path(), 0);
    let venv = venv.to_str().unwrap();
    let (brief, _) = expect(folder.path(), &["doctor", "--venv", venv], 1);
    assert!(brief.contains("[dependency-conflict]") && brief.contains("fix  "), "{brief}");
    assert!(!brief.contains("evidence  ") && brief.contains("--verbose"), "{brief}");
    let (full, _) = expect(folder.path(), &["doctor", "--venv", venv, "--verbose"], 1);
    assert!(full.contains("evidence  "), "{full}");
}

#[test]
fn r1_08_the_matrix_has_a_reason_and_a_source_in_every_cell() {
    let folder = tempdir().unwrap();
    let matrix = json(folder.path(), &["matrix"], 0);
    assert_eq!(matrix["schema"], 1);
    let rows = matrix["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 9);
    for cell in rows.iter().flat_map(|row| row["cells"].as_array().unwrap()) {
        for field in ["platform", "support", "reason", "source", "date"] {
            assert!(!cell[field].as_str().unwrap().is_empty(), "{cell}");
        }
    }
    let (shown, _) = expect(folder.path(), &["matrix", "--verbose"], 0);
    assert!(shown.contains("bitsandbytes") && shown.contains("2026-11-21"), "{shown}");
}

#[test]
fn nothing_to_fix_is_one_line() {
    let folder = tempdir().unwrap();
    let venv = environment(folder.path(), &[("requests", "2.32.5")]);
    let mut command =
        support::command(folder.path(), &["doctor", "--venv", venv.to_str().unwrap(), "--fix"]);
    // Whatever else this machine has is not this test's matter.
    command.env("PATH", "/nonexistent").env_remove("LD_LIBRARY_PATH");
    let output = command.output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    if output.status.success() {
        assert_eq!(shown, "nothing to fix\n");
    } else {
        assert!(!shown.starts_with("nothing to fix"), "{shown}");
    }
}
