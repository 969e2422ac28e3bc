//! `firstlight fit`: whether a model fits on this machine, in bytes. The same judgement as `doctor --model`, without the
//! Python environments and what is wrong with the rest; and what firstlight's own engine takes.

use super::ask_nvml::live;
use super::doctor::model;
use crate::Outcome;
use crate::cli::{Fit, Wanted};
use crate::hub;
use crate::loading;
use crate::output::Output;
use facts::{BackendKind, DoctorReport, Fact, SCHEMA, byte_count};
use models::{Architecture, Capacity, Config, Footprint, Holding, LargestStep, Storage};
use report::terminal;
use serde_json::json;
use std::path::Path;

pub(super) fn run(arguments: &Fit, output: &Output) -> anyhow::Result<Outcome> {
    let named = hub::locate(&arguments.named)?;
    // A model that cannot be read is said at once, before a machine with GPUs is probed.
    let read = model::read(&named)?;
    let source = live(&arguments.waiting);
    let machine = probe::machine(&probe::Options { source, site_packages: Vec::new() });
    let mut report = DoctorReport::new(machine, Vec::new(), Vec::new());
    let wanted = Wanted { model: None, context: arguments.context, sequences: arguments.batch };
    model::judge(&read, &wanted, &mut report)?;
    // Without environments nothing can be said of their kernels.
    report.findings.retain(|finding| finding.rule == "model-memory");
    let own = own(&named, arguments);
    let engine = own.as_ref().map(|(footprint, free)| {
        json!({
            "backend": BackendKind::Cpu.as_str(), "storage": Storage::Bf16.as_str(),
            "weights_bytes": footprint.weights, "states_bytes": footprint.states,
            "caches_bytes": footprint.caches, "workspace_bytes": footprint.workspace,
            "peak_bytes": footprint.peak(), "available": free,
        })
    });
    let document = json!({
        "schema": SCHEMA, "model": report.model, "engine": engine, "findings": report.findings,
    });
    output.either(&document, |style| {
        let mut out =
            report.model.iter().map(|model| terminal::fit(model, style)).collect::<String>();
        if let Some((footprint, free)) = &own {
            out.push_str(&format!("\nfirstlight run on the processor needs {}", footprint.told()));
            if let Some(free) = free {
                let word = if footprint.peak() <= free.value { "fits" } else { "does not fit" };
                out.push_str(&format!("; it {word}, {} are free", byte_count(free.value)));
            }
            out.push('\n');
        }
        for finding in &report.findings {
            out.push('\n');
            out.push_str(&terminal::one_finding(finding, style));
        }
        out
    })?;
    Ok(super::doctor::outcome(&report))
}

/// What `run` takes on the processor, and what is free there; none for a model that it does not run.
fn own(named: &Path, arguments: &Fit) -> Option<(Footprint, Option<Fact<u64>>)> {
    let folder = if named.is_dir() { named } else { named.parent()? };
    let architecture = Architecture::of(&Config::read(folder).ok()?).ok()?;
    let device = device::open(BackendKind::Cpu).ok()?;
    let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let sequences = count(arguments.batch);
    let tokens = count(arguments.context).min(architecture.context);
    let prefilled = tokens.min(models::engine_kind(&device).ok()?.chunk);
    let step = LargestStep { tokens: sequences.saturating_mul(prefilled), logits: sequences };
    let capacity = Capacity { sequences, tokens };
    let holding = Holding::of(&device, Storage::Bf16);
    let footprint = Footprint::new(&architecture, holding, capacity, step);
    Some((footprint, loading::free(&device)))
}
