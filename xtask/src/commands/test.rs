//! `cargo xtask test`: sets itself up and runs every test.

use super::{Command, no_arguments};
use crate::cargo;
use crate::steps::{Steps, require};

pub(super) const COMMAND: Command = Command {
    name: "test",
    arguments: "",
    about: "every test of every room; checks first that what they need is here",
    details: "",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    no_arguments(arguments)?;
    let root = cargo::workspace_root()?;
    let mut steps = Steps::new();
    steps.run("set-up", || {
        // Rust links through the C compiler driver; a machine with only rustup may lack it, and rustc's own message
        // about a missing linker comes after minutes of compiling.
        require("cc", "--version", "install a C toolchain: `apt-get install gcc libc6-dev`, or `xcode-select --install` on macOS")?;
        // The tidy tests list a real repository, and a run folder records the commit.
        require("git", "--version", "install git: `apt-get install git`")?;
        // Peers that cheat are small Python modules; no package is needed. The corpus of broken environments is opened by
        // the loader of a real Python.
        require("python3", "--version", "install Python: `apt-get install python3`")?;
        cargo::run(&root, &["fetch", "--locked"])
    })?;
    // Every failure is shown, not only those of the first room that fails.
    steps.run("tests", || {
        cargo::run(&root, &["test", "--workspace", "--locked", "--no-fail-fast"])
    })?;
    steps.finish();
    Ok(())
}
