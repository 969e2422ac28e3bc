//! `firstlight gate --certificate FILE`: checks that this machine is unchanged since its check.

use super::{compare, doctor};
use crate::Outcome;
use crate::certificate::{self, Node};
use crate::cli::{Environment, Gate};
use crate::hashes;
use crate::output::Output;
use anyhow::Context;
use report::count;
use serde_json::json;
use time::OffsetDateTime;

pub(super) fn run(arguments: &Gate, output: &Output) -> anyhow::Result<Outcome> {
    let Some(file) = &arguments.certificate else {
        let run = arguments.run.as_deref().context("RUN is not given")?;
        return compare::gate(run, arguments, output);
    };
    let public_key = match &arguments.public_key {
        Some(named) => named.clone(),
        None => certificate::public_key_file(&certificate::signing_key_file(None)?),
    };
    let statement = match certificate::read(file, &public_key)? {
        Ok(statement) => statement,
        Err(reason) => return print_verdict(&[reason], None, output),
    };
    let environment = Environment { venv: None, waiting: arguments.waiting.clone() };
    let node = Node::of(&doctor::examine(&environment)?);
    let now = OffsetDateTime::now_utc();
    let mut hash = |path: &str| hashes::of_file(path.as_ref()).map_err(|error| error.to_string());
    let reasons = certificate::refusals(&statement, &node, now, arguments.max_age, &mut hash);
    print_verdict(&reasons, Some(&statement), output)
}

/// Prints the verdict with its reasons.
fn print_verdict(
    reasons: &[String],
    statement: Option<&serde_json::Value>,
    output: &Output,
) -> anyhow::Result<Outcome> {
    let accepted = reasons.is_empty();
    if output.json {
        output.document(&json!({
            "schema": facts::SCHEMA,
            "accepted": accepted,
            "reasons": reasons,
            "statement": statement,
        }))?;
    } else if accepted {
        let own = statement.map(|statement| &statement["predicate"]["firstlight"]);
        let text = |key: &str| own.and_then(|own| own[key].as_str()).unwrap_or_default();
        let files = own.and_then(|own| own["files"].as_u64()).unwrap_or_default();
        output.text(&format!(
            "certificate: accepted, checked at {}; the driver, the GPUs and {} are the same",
            text("finished"),
            count(usize::try_from(files)?, "file")
        ))?;
    } else {
        output.text(&format!("certificate: refused\n  {}", reasons.join("\n  ")))?;
        output.text("check this machine again: firstlight check --certificate FILE")?;
    }
    Ok(if accepted { Outcome::Good } else { Outcome::Bad })
}
