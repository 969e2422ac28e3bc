//! Errors as sentences: what is wrong, and below it what to do.

use crate::output::Output;
use kernels::OpError;
use models::ModelError;
use probe::ProbeError;
use setup::apply::ApplyError;

/// An error with a remedy, for what only the command can know.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    hint: String,
}

impl Failure {
    pub(crate) fn hinted(what: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        Self { what: what.into(), hint: hint.into() }.into()
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Failure {}

fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return Some(failure.hint.clone());
        }
        if let Some(error) = cause.downcast_ref::<ProbeError>() {
            return Some(error.hint());
        }
        if let Some(error) = cause.downcast_ref::<ModelError>() {
            return error.hint();
        }
        if let Some(error) = cause.downcast_ref::<ApplyError>() {
            return error.hint();
        }
        cause.downcast_ref::<OpError>().and_then(OpError::hint)
    })
}

/// The whole chain in one sentence, then the hint.
pub(crate) fn print(error: &anyhow::Error, output: &Output) {
    let text = format!("{error:#}");
    // The errors of some rooms have their hint as their last line.
    let (sentence, own) = match text.split_once("\nhint: ") {
        Some((sentence, hint)) => (sentence, Some(hint.to_owned())),
        None => (text.as_str(), None),
    };
    let hint = hint(error).or(own);
    if output.json {
        println!(
            "{}",
            serde_json::json!({ "schema": facts::SCHEMA, "error": sentence, "hint": hint })
        );
    }
    eprintln!("{} {sentence}", output.paint_error("error:"));
    if let Some(hint) = hint {
        eprintln!("{} {hint}", output.paint_hint("hint:"));
    }
}

/// `firstlight ... | head` closes our standard output; that is no error of ours.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}
