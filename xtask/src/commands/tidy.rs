//! `cargo xtask tidy`: the layout checks.

use super::{Command, no_arguments};
use crate::{cargo, checks};

pub(super) const COMMAND: Command = Command {
    name: "tidy",
    arguments: "",
    about: "layout checks: import edges, file sizes, lists, manifests, links, pure crates, words",
    details: "",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    no_arguments(arguments)?;
    checks::run_all(&cargo::workspace_root()?)
}
