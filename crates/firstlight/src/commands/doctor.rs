//! `firstlight doctor`: probe and diagnose.

use crate::Outcome;
use crate::cli::{Doctor, Environment};
use crate::output::Output;
use facts::{DoctorReport, Severity};
use probe::{EnvOptions, Source};
use report::terminal;

pub(super) fn run(arguments: &Doctor, output: &Output) -> anyhow::Result<Outcome> {
    let report = examine(&arguments.environment)?;
    output.either(&report, |style| terminal::doctor(&report, style))?;
    Ok(outcome(&report))
}

/// The machine, its environments and what is wrong with them.
pub(super) fn examine(environment: &Environment) -> anyhow::Result<DoctorReport> {
    let options = EnvOptions { source: Source::live(), venv: environment.venv.clone() };
    let probe::Report { machine, envs } = probe::read(&options)?;
    let findings = diagnose::run(&machine, &envs);
    Ok(DoctorReport::new(machine, envs, findings))
}

/// Advice is no fault: only errors and warnings make an exit status of 1.
pub(super) fn outcome(report: &DoctorReport) -> Outcome {
    let fault = report.findings.iter().any(|finding| finding.severity != Severity::Info);
    if fault { Outcome::Bad } else { Outcome::Good }
}
