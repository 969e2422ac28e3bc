//! `firstlight fit`: whether a model fits on this machine, in bytes. The same judgement as `doctor --model`, without the
//! Python environments and what is wrong with the rest; and what firstlight's own engine takes.

use super::ask_nvml::live;
use super::doctor::model::{self, DEFAULT_CONTEXT, Model};
use crate::Outcome;
use crate::cli::{Fit, Wanted};
use crate::hub;
use crate::loading;
use crate::output::Output;
use architectures::ConfigError;
use facts::{BackendKind, DoctorReport, Fact, SCHEMA, byte_count};
use models::{Architecture, Capacity, Footprint, LargestStep, ModelError, Place, Storage};
use report::terminal;
use serde_json::json;

pub(super) fn run(arguments: &Fit, output: &Output) -> anyhow::Result<Outcome> {
    let named = hub::locate(&arguments.named)?;
    // A model that cannot be read is said at once, before a machine with GPUs is probed.
    let read = model::read(&named)?;
    let source = live(&arguments.waiting);
    let machine = probe::machine(&probe::Options { source, site_packages: Vec::new() });
    let mut report = DoctorReport::new(machine, Vec::new(), Vec::new());
    let wanted = Wanted { model: None, context: arguments.context, sequences: arguments.batch };
    model::judge(&read, &wanted, &mut report)?;
    // A config.json alone may be asked about before its weights are fetched; a folder is asked about with its weights.
    if named.is_dir() || models::is_gguf(&named) {
        read.whole(&report)?;
    }
    // Without environments nothing can be said of their kernels.
    report.findings.retain(|finding| finding.rule == "model-memory");
    let own = own(&read, arguments)?;
    let engine = own.as_ref().ok().map(|(footprint, free)| {
        json!({
            "backend": BackendKind::Cpu.as_str(), "ranks": arguments.split.tp, "storage": Storage::Bf16.as_str(),
            "weights_bytes": footprint.weights, "states_bytes": footprint.states,
            "caches_bytes": footprint.caches, "workspace_bytes": footprint.workspace,
            "peak_bytes": footprint.peak(), "available": free,
        })
    });
    let document = json!({
        "schema": SCHEMA, "model": report.model, "engine": engine,
        "engine_refuses": own.as_ref().err().map(ToString::to_string), "findings": report.findings,
    });
    output.either(&document, |style| {
        let mut out =
            report.model.iter().map(|model| terminal::fit(model, style)).collect::<String>();
        out.push_str(&match &own {
            Ok((footprint, free)) => {
                let verdict = free.as_ref().map(|free| {
                    let word = if footprint.peak() <= free.value { "fits" } else { "does not fit" };
                    format!("; it {word}, {} are free", byte_count(free.value))
                });
                let verdict = verdict.unwrap_or_default();
                let each = match arguments.split.tp {
                    1 => "on the processor needs".to_owned(),
                    ranks => format!("--tp {ranks} on the processor needs, for each of them,"),
                };
                format!("\nfirstlight run {each} {}{verdict}\n", footprint.told())
            }
            Err(reason) => format!("\nfirstlight run does not run it: {reason}\n"),
        });
        for finding in &report.findings {
            out.push('\n');
            out.push_str(&terminal::one_finding(finding, style));
        }
        out
    })?;
    Ok(super::doctor::outcome(&report))
}

/// What `run` takes on the processor and what is free there, or why it does not run the model.
fn own(read: &Model, arguments: &Fit) -> anyhow::Result<Result<Needed, ConfigError>> {
    let architecture = match Architecture::of(&read.config()?) {
        Ok(architecture) => architecture,
        Err(reason) => return Ok(Err(reason)),
    };
    let architecture = architecture
        .shard(Place { rank: 0, ranks: arguments.split.tp })
        .map_err(ModelError::from)?;
    let device = device::open(BackendKind::Cpu)?;
    let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let sequences = count(arguments.batch);
    let tokens = count(arguments.context.unwrap_or(DEFAULT_CONTEXT)).min(architecture.context);
    let chunk = models::engine_kind(&device)?.chunk;
    let prefilled = sequences.saturating_mul(tokens).min(chunk);
    let step = LargestStep { tokens: prefilled.max(sequences), logits: sequences };
    let capacity = Capacity { sequences, tokens };
    let holding = models::holding(&device, Storage::Bf16);
    let footprint = Footprint::new(&architecture, holding, capacity, step);
    Ok(Ok((footprint, loading::free(&device))))
}

/// Bytes that a model takes, and those that are free.
type Needed = (Footprint, Option<Fact<u64>>);
