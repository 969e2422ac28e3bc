//! `cargo xtask check`: the checks to run before each commit.

use super::{Command, no_arguments};
use crate::steps::Steps;
use crate::{cargo, checks};

pub(super) const COMMAND: Command = Command {
    name: "check",
    arguments: "",
    about: "formatting, clippy with warnings denied, and tidy: run it before each commit",
    details: "",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    no_arguments(arguments)?;
    let root = cargo::workspace_root()?;
    let mut steps = Steps::new();
    steps.run("fmt", || cargo::run(&root, &["fmt", "--all", "--check"]))?;
    steps.run("clippy", || {
        cargo::run(&root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
    })?;
    steps.run("tidy", || checks::run_all(&root))?;
    steps.finish();
    Ok(())
}
