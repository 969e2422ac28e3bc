//! `firstlight gate --certificate FILE`: checks that this machine is unchanged since its check.

use super::{compare, doctor};
use crate::Outcome;
use crate::certificate::{self, Node};
use crate::cli::{Environment, Gate};
use crate::hashes;
use crate::output::Output;
use anyhow::Context;
use report::count;
use serde_json::{Value, json};
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

/// The time and extent of an accepted check, and what is the same as then.
fn accepted_sentence(own: &Value) -> String {
    let files = usize::try_from(own["files"].as_u64().unwrap_or_default()).unwrap_or(usize::MAX);
    let gpus = own["gpus"].as_array().is_some_and(|gpus| !gpus.is_empty());
    let same = match (own["driver"].is_string(), gpus) {
        (true, true) => "the driver, the GPUs and ",
        (true, false) => "the driver and ",
        (false, true) => "the GPUs and ",
        (false, false) => "",
    };
    let are = if same.is_empty() && files == 1 { "is" } else { "are" };
    let part = if own["extent"] == "quick" { " in part (`check --quick`)" } else { "" };
    let finished = own["finished"].as_str().unwrap_or_default();
    let files = count(files, "file");
    format!("certificate: accepted, checked{part} at {finished}; {same}{files} {are} the same")
}

/// Prints the verdict with its reasons.
fn print_verdict(
    reasons: &[String],
    statement: Option<&Value>,
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
        let own = statement.map_or(&Value::Null, |statement| &statement["predicate"]["firstlight"]);
        output.text(&accepted_sentence(own))?;
    } else {
        output.text(&format!("certificate: refused\n  {}", reasons.join("\n  ")))?;
        output.text("check this machine again: firstlight check --certificate FILE")?;
    }
    Ok(if accepted { Outcome::Good } else { Outcome::Bad })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_certificate_is_reported_as_partial() {
        let mut own = json!({
            "finished": "2026-11-30T08:00:00Z", "extent": "quick", "files": 8, "driver": null, "gpus": [],
        });
        let time = "2026-11-30T08:00:00Z";
        assert_eq!(
            accepted_sentence(&own),
            format!(
                "certificate: accepted, checked in part (`check --quick`) at {time}; 8 files are the same"
            )
        );
        own["extent"] = "standard".into();
        own["driver"] = "580.65.06".into();
        own["gpus"] = json!([{ "uuid": "GPU-1", "name": "NVIDIA H200" }]);
        assert_eq!(
            accepted_sentence(&own),
            format!(
                "certificate: accepted, checked at {time}; the driver, the GPUs and 8 files are the same"
            )
        );
    }
}
