//! Runs the sweep over model classes of transformers, `crates/python/tests/sweep`, with a release of it and the built package.

use crate::cargo;
use crate::steps::run;
use crate::torch;
use std::path::Path;
use std::process::Command;

/// Runs the sweep with a release (`5.17`, `5.24` or `4.57`); `rest` goes to `sweep.py`. Without `rest` it also writes the book's table.
pub(crate) fn sweep(root: &Path, release: &str, rest: &[&str]) -> anyhow::Result<()> {
    let target = cargo::target_directory(root)?;
    let python = torch::for_sweep(&target, release)?;
    // An integration test builds the library that Python loads, with the features that tests have.
    run(&mut cargo::command(
        root,
        &["test", "--locked", "--workspace", "--no-run", "--test", "package"],
    ))?;
    let package = root.join("crates/python");
    let mut command = Command::new(python);
    command.arg("-s").arg("sweep.py").args(rest).current_dir(package.join("tests/sweep"));
    if rest.is_empty() {
        command.arg("--table").arg(root.join("docs/book/src/transformers-sweep.md"));
    }
    run(command
        .env("PYTHONPATH", &package)
        .env("FIRSTLIGHT_LIBRARY", target.join("debug/deps/libfirstlight_ops.so"))
        .env("OMP_NUM_THREADS", "1")
        .env("HF_HUB_OFFLINE", "1"))
}
