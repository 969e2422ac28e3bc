//! `firstlight compare`: two runs next to each other, and with --fail a verdict on the second.

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
    let Compare { base, run, tolerance, fail, any_machine, output: folder } = arguments;
    if *fail {
        return judge((base, run), *tolerance, *any_machine, folder.as_deref(), output);
    }
    folder.as_deref().map(destination::folder).transpose()?;
    let base = RunFiles::read(base)?;
    let run = RunFiles::read(run)?;
    let comparison = report::compare(&base.recorded(), &run.recorded(), *tolerance);
    output.either(&comparison, |style| terminal::comparison(&comparison, style))?;
    save(folder.as_deref(), "compare", || comparison_report(&comparison), output)?;
    // Without --fail a comparison has no verdict.
    Ok(Outcome::Good)
}

/// The former name of `compare --fail`.
pub(super) fn gate(run: &Path, arguments: &Gate, output: &Output) -> anyhow::Result<Outcome> {
    let Gate { baseline, tolerance, any_machine, output: folder, .. } = arguments;
    let baseline = baseline.as_deref().context("--baseline is not given")?;
    judge((baseline, run), *tolerance, *any_machine, folder.as_deref(), output)
}

/// Whether a run is as good as its baseline.
fn judge(
    (baseline, run): (&Path, &Path),
    tolerance: f64,
    any_machine: bool,
    folder: Option<&Path>,
    output: &Output,
) -> anyhow::Result<Outcome> {
    folder.map(destination::folder).transpose()?;
    let run = RunFiles::read(run)?;
    let baseline = RunFiles::read(baseline)?;
    let report = report::gate(&run.recorded(), &baseline.recorded(), tolerance, any_machine);
    output.either(&report, |style| terminal::gate(&report, style))?;
    save(folder, "gate", || gate_report(&report), output)?;
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
