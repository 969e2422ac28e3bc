//! The output of `doctor` and `matrix`; setup/fix tests the effects of `doctor --fix`.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use std::path::{Path, PathBuf};
use support::{environment, expect, json};
use tempfile::tempdir;

/// An environment with a conflict.
fn conflicting(folder: &Path) -> PathBuf {
    let venv = environment(folder, &[("requests", "2.28.1"), ("datasets", "4.0.0")]);
    let metadata = venv.join("lib/python3.12/site-packages/datasets-4.0.0.dist-info/METADATA");
    std::fs::write(
        metadata,
        "Metadata-Version: 2.1\nName: datasets\nVersion: 4.0.0\nRequires-Dist: requests>=2.32.2\n",
    )
    .unwrap();
    venv
}

#[test]
fn evidence_needs_verbose() {
    let folder = tempdir().unwrap();
    let venv = conflicting(folder.path());
    let venv = venv.to_str().unwrap();
    let (brief, _) = expect(folder.path(), &["doctor", "--venv", venv], 1);
    assert!(brief.contains("[dependency-conflict]") && brief.contains("fix  "), "{brief}");
    assert!(!brief.contains("evidence  ") && brief.contains("--verbose"), "{brief}");
    let (full, _) = expect(folder.path(), &["doctor", "--venv", venv, "--verbose"], 1);
    assert!(full.contains("evidence  "), "{full}");
}

#[test]
fn r1_08_matrix_cells_have_reason_and_source() {
    let folder = tempdir().unwrap();
    let matrix = json(folder.path(), &["plan", "--matrix"], 0);
    assert_eq!(matrix["schema"], 1);
    let rows = matrix["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 9);
    for cell in rows.iter().flat_map(|row| row["cells"].as_array().unwrap()) {
        for field in ["platform", "support", "reason", "source", "date"] {
            assert!(!cell[field].as_str().unwrap().is_empty(), "{cell}");
        }
    }
    let (shown, _) = expect(folder.path(), &["plan", "--matrix", "--explain"], 0);
    assert!(shown.contains("bitsandbytes") && shown.contains("2026-11-21"), "{shown}");
}

#[test]
fn nothing_to_fix_prints_one_line() {
    let folder = tempdir().unwrap();
    let venv = environment(folder.path(), &[("requests", "2.32.5")]);
    let mut command =
        support::command(folder.path(), &["doctor", "--venv", venv.to_str().unwrap(), "--fix"]);
    // Other findings of this machine are ignored.
    command.env("PATH", "/nonexistent").env_remove("LD_LIBRARY_PATH");
    let output = command.output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    if output.status.success() {
        assert_eq!(shown, "nothing to fix\n");
    } else {
        assert!(!shown.starts_with("nothing to fix"), "{shown}");
    }
}
