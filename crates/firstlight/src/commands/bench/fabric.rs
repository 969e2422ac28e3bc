//! `firstlight bench fabric`: transfers between the GPUs of this machine.

use crate::Outcome;
use crate::cli::BenchFabric;
use crate::commands::ask_nvml::live;
use crate::commands::gpu_group::Group;
use crate::commands::gpu_group::chosen;
use crate::destination;
use crate::failure::Failure;
use crate::output::Output;
use crate::run_folder::write_atomically;
use anyhow::Context;
use facts::{Finding, GpusReport, SCHEMA, Severity};
use probe::ProbeOptions;
use report::{FABRIC_TABLE, GPUS_FILE, fabric_csv, terminal};
use serde::Serialize;
use std::time::Duration;

/// The output of `bench fabric --json`.
#[derive(Serialize)]
struct JsonReport<'a> {
    #[serde(flatten)]
    report: &'a GpusReport,
    findings: &'a [Finding],
}

pub(super) fn run(arguments: &BenchFabric, output: &Output) -> anyhow::Result<Outcome> {
    arguments.output.as_deref().map(destination::folder).transpose()?;
    let waiting = &arguments.environment.waiting;
    chosen::only_named(&arguments.gpu, waiting)?;
    let machine =
        probe::machine(&ProbeOptions { source: live(waiting), site_packages: Vec::new() });
    let gpus = chosen::working(&machine);
    if gpus.len() < 2 {
        let here = match gpus.first() {
            Some(gpu) => format!("this process sees GPU {} ({}) alone", gpu.index, gpu.name),
            None => ops_cuda::visible_gpus()
                .err()
                .map_or("this process sees no working GPU".to_owned(), |why| why.to_string()),
        };
        let what = format!("bench fabric needs two GPUs: {here}");
        let hint = match gpus.first() {
            Some(gpu) if ops_cuda::is_partition(&gpu.name) => {
                "a process sees at most one MIG partition, and partitions have no peer access"
                    .to_owned()
            }
            _ => format!("make more visible with {}, or select them with --gpu", chosen::VISIBLE),
        };
        return Err(Failure::hinted(what, hint));
    }
    let venv = arguments.environment.venv.as_deref();
    let group = Group { gpus: &gpus, machine: &machine, venv, until: None };
    let fabric = group.between(arguments.largest << 20, Duration::from_secs(arguments.budget));
    let time = Duration::from_secs(arguments.sustain);
    let sustained = (!time.is_zero()).then(|| group.under_load(time));
    let (parts, kinds) = (Vec::new(), Vec::new());
    let report = GpusReport { schema: SCHEMA, gpus: parts, kinds, fabric: Some(fabric), sustained };
    let findings = diagnose::run_on_gpus(&report);
    if let (Some(folder), Some(fabric)) = (&arguments.output, &report.fabric) {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let text = serde_json::to_string_pretty(&report)? + "\n";
        write_atomically(&folder.join(GPUS_FILE), text.as_bytes())?;
        write_atomically(&folder.join(FABRIC_TABLE), fabric_csv(fabric).as_bytes())?;
    }
    output.either(&JsonReport { report: &report, findings: &findings }, |style| {
        let fabric = report.fabric.iter().map(|fabric| terminal::fabric(fabric, style));
        let load = report.sustained.iter().map(|load| terminal::sustained(load, style));
        let found =
            findings.iter().map(|found| format!("\n{}", terminal::one_finding(found, style)));
        fabric.chain(load).chain(found).collect()
    })?;
    let fault = findings.iter().any(|finding| finding.severity != Severity::Info);
    Ok(if fault { Outcome::Bad } else { Outcome::Good })
}
