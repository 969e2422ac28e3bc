//! `firstlight fit`: whether a model fits on this machine, in bytes. The same judgement as `doctor --model`, without the
//! Python environments and what is wrong with the rest.

use super::ask_nvml::live;
use super::doctor::model;
use crate::Outcome;
use crate::cli::{Fit, Wanted};
use crate::output::Output;
use facts::{DoctorReport, SCHEMA};
use report::terminal;
use serde_json::json;

pub(super) fn run(arguments: &Fit, output: &Output) -> anyhow::Result<Outcome> {
    // A model that cannot be read is said at once, before a machine with GPUs is probed.
    let read = model::read(&models::locate(&arguments.model)?)?;
    let source = live(&arguments.waiting);
    let machine = probe::machine(&probe::Options { source, site_packages: Vec::new() });
    let mut report = DoctorReport::new(machine, Vec::new(), Vec::new());
    let wanted = Wanted { model: None, context: arguments.context, sequences: arguments.batch };
    model::judge(&read, &wanted, &mut report)?;
    // Without environments nothing can be said of their kernels.
    report.findings.retain(|finding| finding.rule == "model-memory");
    let document = json!({ "schema": SCHEMA, "model": report.model, "findings": report.findings });
    output.either(&document, |style| {
        let mut out =
            report.model.iter().map(|model| terminal::fit(model, style)).collect::<String>();
        for finding in &report.findings {
            out.push('\n');
            out.push_str(&terminal::one_finding(finding, style));
        }
        out
    })?;
    Ok(super::doctor::outcome(&report))
}
