//! Runs the sweep over causal language model classes of transformers, `crates/models/tests/sweep`, with the built program.

use crate::cargo;
use crate::steps::run;
use crate::torch;
use std::path::Path;
use std::process::Command;

/// The tested release of transformers.
const RELEASE: &str = "5.24";

/// Runs the sweep; `rest` goes to `models.py`. Without `rest` it also writes the book's page.
pub(crate) fn sweep(root: &Path, rest: &[&str]) -> anyhow::Result<()> {
    let target = cargo::target_directory(root)?;
    let python = torch::for_sweep(&target, RELEASE)?;
    // An integration test builds the program, with the features that tests have.
    run(&mut cargo::command(
        root,
        &["test", "--locked", "--workspace", "--no-run", "--test", "explain"],
    ))?;
    let folder = root.join("crates/models/tests/sweep");
    let mut command = Command::new(python);
    command.arg("models.py").arg(target.join("debug/firstlight")).args(rest).current_dir(folder);
    if rest.is_empty() {
        command.arg("--table").arg(root.join("docs/book/src/model-classes.md"));
    }
    run(command
        .env("PYTHONPATH", root.join("crates/python/tests/sweep"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("OMP_NUM_THREADS", "1")
        .env("HF_HUB_OFFLINE", "1"))
}
