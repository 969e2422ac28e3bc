//! What the wheels hold, laid out beside each other as they will be and judged before anything is installed.
//!
//! A wheel's file name and tags are labels. Its libraries are read: for which processor they are, which symbols they
//! want of which torch, which GPUs their code runs on.

use super::steps::Outcome;
use super::{ApplyError, Inspect, environment, places};
use facts::{Finding, Severity};
use std::fs;
use std::path::Path;

/// Makes the folder that wheels are opened in: an environment to whoever reads it, whose interpreter is the one that the
/// real environment will have. Nothing in it is ever run.
pub(super) fn lay_out(opened: &Path, base: &Path, python: &str) -> Result<(), ApplyError> {
    places::remove(opened)?;
    let site = opened.join(format!("lib/python{python}/site-packages"));
    let link = environment::python(opened);
    for folder in [&site, &opened.join("bin")] {
        fs::create_dir_all(folder).map_err(ApplyError::io(folder))?;
    }
    std::os::unix::fs::symlink(base, &link).map_err(ApplyError::io(&link))?;
    let home = base.parent().unwrap_or(base).display();
    let text = format!("home = {home}\nversion = {python}\ninclude-system-site-packages = false\n");
    let config = opened.join("pyvenv.cfg");
    fs::write(&config, text).map_err(ApplyError::io(&config))
}

/// Judges what lies there; an error among the findings refuses it.
pub(super) fn run(opened: &Path, inspect: &dyn Inspect) -> Outcome<()> {
    let findings = examine(opened, inspect)?;
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
