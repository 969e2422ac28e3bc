//! A sample of `cargo xtask sweep models`: classes of transformers whose logits are equal, or which are refused with the reason.
//!
//! `cargo xtask test` has a Python with transformers, which it names in FIRSTLIGHT_TRANSFORMERS_PYTHON.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn sampled_classes_match_or_are_refused() {
    let python = std::env::var_os("FIRSTLIGHT_TRANSFORMERS_PYTHON").map(PathBuf::from);
    let python = python.expect("FIRSTLIGHT_TRANSFORMERS_PYTHON is not set: run `cargo xtask test`");
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let ran = Command::new(python)
        .args(["models.py", env!("CARGO_BIN_EXE_firstlight"), "--sample"])
        .current_dir(crates.join("models/tests/sweep"))
        .env("PYTHONPATH", crates.join("python/tests/sweep"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .expect("the Python that is named runs");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains("passed, 0 failed"), "{said}");
}
