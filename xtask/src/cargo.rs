//! Commands of the cargo that started this program.

use crate::steps;
use anyhow::Context;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The cargo that started this program, so that nested runs use the same toolchain.
pub(crate) fn program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A cargo command in the workspace root.
pub(crate) fn command(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.current_dir(root).args(arguments);
    command
}

/// Runs cargo and waits for it.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    steps::run(&mut command(root, arguments))
}

/// The output of `cargo metadata --no-deps`.
pub(crate) fn metadata(root: &Path) -> anyhow::Result<serde_json::Value> {
    let text =
        steps::output(&mut command(root, &["metadata", "--format-version", "1", "--no-deps"]))?;
    serde_json::from_str(&text).context("`cargo metadata` printed no JSON")
}

/// The folder of the workspace's Cargo.toml.
pub(crate) fn workspace_root() -> anyhow::Result<PathBuf> {
    let text = steps::output(Command::new(program()).args([
        "locate-project",
        "--workspace",
        "--message-format",
        "plain",
    ]))?;
    let manifest = PathBuf::from(text.trim_end());
    manifest.parent().map(Path::to_path_buf).context("the workspace manifest has no folder")
}

/// The folder of the workspace's build outputs.
pub(crate) fn target_directory(root: &Path) -> anyhow::Result<PathBuf> {
    let metadata = metadata(root)?;
    let folder = metadata["target_directory"].as_str();
    folder.map(PathBuf::from).context("`cargo metadata` names no target_directory")
}
