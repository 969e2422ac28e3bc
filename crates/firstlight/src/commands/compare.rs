//! `firstlight compare` and `firstlight gate`: two runs held beside each other.

use crate::Outcome;
use crate::cli::{Compare, Gate};
use crate::destination;
use crate::output::Output;
use crate::run_files::RunFiles;
use crate::run_folder::write_documents;
use anyhow::Context;
use facts::GateOutcome;
use report::{Documents, comparison_report, gate_report, terminal};
use std::path::Path;

pub(super) fn run(arguments: &Compare, output: &Output) -> anyhow::Result<Outcome> {
    arguments.output.as_deref().map(destination::folder).transpose()?;
    let base = RunFiles::read(&arguments.base)?;
    let run = RunFiles::read(&arguments.run)?;
    let comparison = report::compare(&base.recorded(), &run.recorded(), arguments.tolerance);
    output.either(&comparison, |style| terminal::comparison(&comparison, style))?;
    save(arguments.output.as_deref(), "compare", || comparison_report(&comparison), output)?;
    // To look is not to judge: that is what `gate` is for.
    Ok(Outcome::Good)
}

pub(super) fn gate(arguments: &Gate, output: &Output) -> anyhow::Result<Outcome> {
    arguments.output.as_deref().map(destination::folder).transpose()?;
    let run = RunFiles::read(&arguments.run)?;
    let baseline = RunFiles::read(&arguments.baseline)?;
    let report = report::gate(
        &run.recorded(),
        &baseline.recorded(),
        arguments.tolerance,
        arguments.any_machine,
    );
    output.either(&report, |style| terminal::gate(&report, style))?;
    save(arguments.output.as_deref(), "gate", || gate_report(&report), output)?;
    Ok(match report.outcome {
        GateOutcome::Passed => Outcome::Good,
        GateOutcome::Failed => Outcome::Bad,
        GateOutcome::Unclear => Outcome::Unclear,
    })
}

fn save(
    folder: Option<&Path>,
    name: &str,
    documents: impl FnOnce() -> Documents,
    output: &Output,
) -> anyhow::Result<()> {
    let Some(folder) = folder else { return Ok(()) };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for path in write_documents(folder, name, &documents())? {
        if !output.json {
            output.text(&format!("wrote {}", path.display()))?;
        }
    }
    Ok(())
}
