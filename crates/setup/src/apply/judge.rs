//! What the wheels hold, laid out in the environment that is made and judged before anything of it is installed or run.
//!
//! A wheel's file name and tags are labels. Its libraries are read: for which processor they are, which symbols they
//! want of which torch, which GPUs their code runs on.

use super::steps::Outcome;
use super::{ApplyError, Inspect};
use facts::{Finding, Severity};
use std::path::Path;

/// Judges what lies there; an error among the findings refuses it.
pub(super) fn run(made: &Path, inspect: &dyn Inspect) -> Outcome<()> {
    let findings = examine(made, inspect)?;
    let (errors, rest): (Vec<Finding>, Vec<Finding>) =
        findings.into_iter().partition(|finding| finding.severity == Severity::Error);
    if !errors.is_empty() {
        return Err(ApplyError::Judged { findings: errors });
    }
    Ok(((), 0, format!("no error, {} other findings", rest.len())))
}

/// Findings about a folder that is, or stands for, an environment.
pub(super) fn examine(
    environment: &Path,
    inspect: &dyn Inspect,
) -> Result<Vec<Finding>, ApplyError> {
    inspect.examine(environment).map_err(|what| ApplyError::Unproven {
        what: format!("{} could not be examined: {what}", environment.display()),
        hint:
            "apply again; where it stays so, the folder's file system or permissions are at fault"
                .to_owned(),
    })
}
