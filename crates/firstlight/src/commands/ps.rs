//! `firstlight ps`: lists the processes that use GPU memory, copies of one program and orphans; `--stop` stops one of
//! them.

#[cfg(target_os = "linux")]
mod signal;
mod stop;

use super::ask_nvml::live;
use crate::Outcome;
use crate::cli::Ps;
use crate::failure::Failure;
use crate::output::Output;
use facts::{Finding, GpuVendor, Machine, ProcessReport, Severity};
use probe::Source;
use report::terminal;

/// The rules about processes.
const RULES: [&str; 2] = ["stale-process", "duplicate-processes"];

pub(super) fn run(arguments: &Ps, output: &Output) -> anyhow::Result<Outcome> {
    let source = match &arguments.recorded {
        Some(folder) => Source::recorded(folder)?,
        None => live(&arguments.waiting),
    };
    let machine = read(&source)?;
    if let Some(pid) = arguments.stop {
        return stop::run(pid, arguments, &machine, output);
    }
    let findings: Vec<Finding> = diagnose::run(&machine, &[])
        .into_iter()
        .filter(|finding| RULES.contains(&finding.rule.as_str()))
        .collect();
    let wrong = findings.iter().any(|finding| finding.severity != Severity::Info);
    let report = ProcessReport::new(&machine, findings);
    output.either(&report, |style| terminal::processes(&report, style))?;
    Ok(if wrong { Outcome::Bad } else { Outcome::Good })
}

/// The machine; an error if no NVIDIA driver can list processes.
fn read(source: &Source) -> anyhow::Result<Machine> {
    let machine =
        probe::machine(&probe::ProbeOptions { source: source.clone(), site_packages: Vec::new() });
    let driver = machine.driver.as_ref();
    if let Some(words) = driver.and_then(|driver| driver.no_answer.as_ref()) {
        // GPUs that answered before are shown; without any, there is nothing to show.
        if machine.gpu_processes.is_empty() {
            return Err(Failure::hinted(
                format!("the NVIDIA driver lists no processes: {}", words.value),
                "`firstlight doctor` suggests what to do; `--wait 30` waits longer",
            ));
        }
    }
    if let Some(words) = driver.and_then(|driver| driver.nvml_error.as_ref()) {
        return Err(Failure::hinted(
            format!("the NVIDIA driver lists no processes: {}", words.value),
            "`firstlight doctor` explains why it does not answer",
        ));
    }
    if !machine.gpus.iter().any(|gpu| gpu.vendor == GpuVendor::Nvidia) {
        let hint = match machine.gpus.is_empty() {
            true => "`firstlight doctor` shows the GPU and driver",
            false => "only NVIDIA's driver lists processes by GPU; Apple's does not",
        };
        return Err(Failure::hinted(
            "no NVIDIA GPU is visible here, so there are no processes to list",
            hint,
        ));
    }
    Ok(machine)
}
