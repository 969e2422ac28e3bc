//! Judges the contents of wheels, unpacked into the new environment, before any of it is installed or run.
//!
//! A wheel's file name and tags may be wrong, so its libraries are read: their processor, the torch release whose
//! symbols they need, and the GPUs their code supports.

use super::steps::Outcome;
use super::{ApplyError, Inspect};
use facts::{Finding, Severity};
use std::path::Path;

/// Judges the folder; an error among the findings refuses it.
pub(super) fn run(made: &Path, inspect: &dyn Inspect) -> Outcome<()> {
    let findings = examine(made, inspect)?;
    let (errors, rest): (Vec<Finding>, Vec<Finding>) =
        findings.into_iter().partition(|finding| finding.severity == Severity::Error);
    if !errors.is_empty() {
        return Err(ApplyError::Judged { findings: errors });
    }
    Ok(((), 0, format!("no error, {} other findings", rest.len())))
}

/// Findings about a folder that is, or will be, an environment.
pub(super) fn examine(
    environment: &Path,
    inspect: &dyn Inspect,
) -> Result<Vec<Finding>, ApplyError> {
    inspect.examine(environment).map_err(|what| ApplyError::Unproven {
        what: format!("{} could not be examined: {what}", environment.display()),
        hint: "apply again; if it fails again, check the folder's file system and permissions"
            .to_owned(),
    })
}
