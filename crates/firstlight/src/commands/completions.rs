//! `firstlight completions SHELL`.

use crate::Outcome;
use crate::cli::{Completions, command};
use crate::output::Output;

pub(super) fn run(arguments: &Completions, output: &Output) -> anyhow::Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command(), "firstlight", &mut script);
    let script = String::from_utf8(script)?;
    let document = serde_json::json!({ "schema": facts::SCHEMA, "shell": arguments.shell.to_string(), "script": script });
    output.either(&document, |_| script)?;
    Ok(Outcome::Good)
}
