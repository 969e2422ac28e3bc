//! `firstlight completions SHELL`.

use crate::Outcome;
use crate::cli::{Cli, Completions};
use crate::output::Output;
use clap::CommandFactory;

pub(super) fn run(arguments: &Completions, output: &Output) -> anyhow::Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "firstlight", &mut script);
    let script = String::from_utf8(script)?;
    let document = serde_json::json!({ "schema": facts::SCHEMA, "shell": arguments.shell.to_string(), "script": script });
    output.either(&document, |_| script)?;
    Ok(Outcome::Good)
}
