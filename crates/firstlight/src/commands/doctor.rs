//! `firstlight doctor`: probe and diagnose.

mod fix;
pub(super) mod model;

use super::ask_nvml::live;
use crate::Outcome;
use crate::cli::{Doctor, Environment};
use crate::output::Output;
use crate::run_folder::RunFolder;
use facts::{DoctorReport, Severity};
use probe::EnvOptions;
use report::{FACTS_FILE, terminal};
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(super) fn run(arguments: &Doctor, output: &Output) -> anyhow::Result<Outcome> {
    // A model that cannot be read is said at once, before a machine with GPUs is probed.
    let wanted = arguments.wanted.model.as_deref().map(model::read).transpose()?;
    let mut report = examine(&arguments.environment)?;
    if let Some(wanted) = wanted {
        model::judge(&wanted, &arguments.wanted, &mut report)?;
    }
    if arguments.fix {
        return fix::run(&report, arguments, output);
    }
    output.either(&report, |style| match arguments.verbose {
        true => terminal::doctor(&report, style),
        false => terminal::doctor_brief(&report, style),
    })?;
    Ok(outcome(&report))
}

/// The machine, its environments and what is wrong with them.
pub(super) fn examine(environment: &Environment) -> anyhow::Result<DoctorReport> {
    let options = EnvOptions {
        source: live(&environment.waiting),
        venv: environment.venv.clone(),
        cache: native_cache(),
    };
    let probe::Report { machine, envs } = probe::read(&options)?;
    let findings = diagnose::run(&machine, &envs);
    Ok(DoctorReport::new(machine, envs, findings))
}

/// Begins a run folder with what was found.
pub(super) fn begin(
    wanted: Option<&Path>,
    doctor: &DoctorReport,
    since: Instant,
) -> anyhow::Result<RunFolder> {
    let host = doctor.machine.host.as_ref().map_or("unknown-host", |host| host.value.as_str());
    let mut folder = RunFolder::create(wanted, host)?;
    let text = serde_json::to_string_pretty(doctor)? + "\n";
    folder.artefact(FACTS_FILE, "machine, environments and findings", &text)?;
    folder.stage("probe and diagnose", since, examined(doctor))?;
    Ok(folder)
}

fn examined(doctor: &DoctorReport) -> String {
    let of =
        |severity| doctor.findings.iter().filter(|finding| finding.severity == severity).count();
    format!(
        "{} GPUs, {} environments, findings: {} errors, {} warnings, {} notes",
        doctor.machine.gpus.len(),
        doctor.envs.len(),
        of(Severity::Error),
        of(Severity::Warning),
        of(Severity::Info)
    )
}

/// The file that keeps what was read of compiled files.
pub(super) fn native_cache() -> Option<PathBuf> {
    Some(cache_folder()?.join("native"))
}

/// Where firstlight keeps what it can make again: below XDG's variable, else where the system's own programs do.
pub(super) fn cache_folder() -> Option<PathBuf> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    let folder = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(usual)));
    folder.map(|folder| folder.join("firstlight"))
}

/// Advice is no fault: only errors and warnings make an exit status of 1.
pub(super) fn outcome(report: &DoctorReport) -> Outcome {
    let fault = report.findings.iter().any(|finding| finding.severity != Severity::Info);
    if fault { Outcome::Bad } else { Outcome::Good }
}
