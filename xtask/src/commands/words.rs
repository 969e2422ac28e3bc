//! `cargo xtask words`: lists words that are not the field's terms.

use super::{Command, Usage};
use crate::{cargo, checks};

pub(super) const COMMAND: Command = Command {
    name: "words",
    arguments: "[PATH]",
    about: "words and names that are not the field's terms, with what to write instead",
    details: "  PATH  a folder or file, relative to the repository: only findings below it",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    match arguments {
        [] => checks::print_words(&cargo::workspace_root()?, None),
        [path] => checks::print_words(&cargo::workspace_root()?, Some(path)),
        [_, extra, ..] => Err(Usage(format!("unexpected argument `{extra}`")).into()),
    }
}
