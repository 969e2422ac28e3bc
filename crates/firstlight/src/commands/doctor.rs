//! `firstlight doctor`: probe and diagnose.

pub(super) mod availability;
mod fix;
pub(super) mod model;

use super::ask_nvml::live;
use crate::Outcome;
use crate::cli::{Doctor, Environment};
use crate::destination;
use crate::output::Output;
use crate::redact::Redaction;
use crate::run_folder::RunFolder;
use crate::sarif;
use facts::{DoctorReport, Severity};
use probe::EnvOptions;
use report::terminal::IndexCheck;
use report::{FACTS_FILE, terminal};
use setup::fix::{Availability, EnvironmentSnapshot};
use setup::uv::{Uv, UvError};
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(super) fn run(arguments: &Doctor, output: &Output) -> anyhow::Result<Outcome> {
    arguments.sarif.as_deref().map(destination::file).transpose()?;
    // A model that cannot be read is reported at once, before a machine with GPUs is probed.
    let wanted = arguments.wanted.model.as_deref().map(model::read).transpose()?;
    let diagnose = || diagnose_as_asked(arguments, wanted.as_ref());
    let (report, checked) = diagnose()?;
    if let Some(file) = &arguments.sarif {
        sarif::write(file, &report.findings, None)?;
    }
    if arguments.fix {
        return fix::run(report, arguments, output, || Ok(diagnose()?.0));
    }
    output.either(&report, |style| match arguments.verbose {
        true => terminal::doctor_with(&report, style, index_check(&checked)),
        false => terminal::doctor_brief_with(&report, style, index_check(&checked)),
    })?;
    Ok(outcome(&report))
}

/// The machine, its environments and their findings, as deep as the arguments ask, with remedies that the index has.
fn diagnose_as_asked(
    arguments: &Doctor,
    wanted: Option<&model::Model>,
) -> anyhow::Result<(DoctorReport, Availability)> {
    let mut report = examine_with(&arguments.environment, arguments.verify_files)?;
    if let Some(wanted) = wanted {
        model::judge(wanted, &arguments.wanted, &mut report)?;
    }
    let checked = availability::check(&mut report);
    Ok((report, checked))
}

fn index_check(checked: &Availability) -> IndexCheck<'_> {
    match checked {
        Availability::Nothing => IndexCheck::NotAsked,
        Availability::Unanswered(reason) => IndexCheck::Unanswered(reason),
        Availability::Answered => IndexCheck::Answered,
    }
}

/// The machine, its environments and their findings.
pub(super) fn examine(environment: &Environment) -> anyhow::Result<DoctorReport> {
    examine_with(environment, false)
}

/// As [`examine`]; `verify_files` reads every installed file and compares it with the hash in its RECORD.
fn examine_with(environment: &Environment, verify_files: bool) -> anyhow::Result<DoctorReport> {
    let options = EnvOptions {
        source: live(&environment.waiting),
        venv: environment.venv.clone(),
        cache: native_cache(),
        verify_files,
    };
    let probe::Report { machine, mut envs } = probe::read(&options)?;
    trace_imports(&options, &machine, &mut envs);
    for env in &mut envs {
        env.missing_names = probe::missing_names(&options, env);
        if EnvironmentSnapshot::is_left(Path::new(&env.root)) {
            let root = &env.root;
            env.problems.push(format!(
                "a fix of {root} was interrupted: `firstlight doctor --fix --venv {root}` restores the environment"
            ));
        }
    }
    let findings = diagnose::run(&machine, &envs);
    Ok(DoctorReport::new(machine, envs, findings))
}

/// The name of a machine in its run folders.
pub(super) fn host(doctor: &DoctorReport) -> &str {
    doctor.machine.host.as_ref().map_or("unknown-host", |host| host.value.as_str())
}

/// Finds imports of requirements that are not installed: whether they run determines the severity.
fn trace_imports(options: &EnvOptions, machine: &facts::Machine, envs: &mut [facts::PyEnv]) {
    let all = diagnose::unmet(machine, envs);
    if all.is_empty() {
        return;
    }
    let mut imports = probe::ImportSearch::new(options);
    for unmet in all {
        let env = &mut envs[unmet.env];
        if let Some(at) = imports.first(env, &unmet.dist, &unmet.modules) {
            let (dist, requirement) = (unmet.dist, unmet.requirement);
            env.unmet_imports.push(facts::UnmetImport { dist, requirement, at });
        }
    }
    imports.finish();
}

/// Starts a run folder with the findings.
pub(super) fn begin(
    wanted: Option<&Path>,
    doctor: &DoctorReport,
    since: Instant,
    redaction: Redaction,
) -> anyhow::Result<RunFolder> {
    let mut folder = RunFolder::create(wanted, host(doctor), redaction)?;
    let text = serde_json::to_string_pretty(doctor)? + "\n";
    folder.artefact(FACTS_FILE, "machine, environments and findings", &text)?;
    folder.stage("probe and diagnose", since, examined(doctor))?;
    Ok(folder)
}

fn examined(doctor: &DoctorReport) -> String {
    let of =
        |severity| doctor.findings.iter().filter(|finding| finding.severity == severity).count();
    let count = |number: usize, noun: &str| {
        format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
    };
    format!(
        "{}, {}; findings: {}, {}, {}",
        count(doctor.machine.gpus.len(), "GPU"),
        count(doctor.envs.len(), "environment"),
        count(of(Severity::Error), "error"),
        count(of(Severity::Warning), "warning"),
        count(of(Severity::Info), "note")
    )
}

/// The cache of facts about compiled files.
pub(super) fn native_cache() -> Option<PathBuf> {
    Some(cache_folder()?.join("native"))
}

/// Folder of caches: below XDG's variable, or else the system's cache folder.
pub(super) fn cache_folder() -> Option<PathBuf> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    let folder = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(usual)));
    folder.map(|folder| folder.join("firstlight"))
}

/// uv from PATH or from the folder `tools`; where there is none, pip installs it there, which is announced.
pub(super) fn find_uv(tools: &Path) -> Result<Uv, UvError> {
    let cache = std::env::var_os("UV_CACHE_DIR").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        Some(std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home)?.join("uv"))
    });
    let cache = cache.unwrap_or_default();
    Uv::find(std::env::var_os("PATH").as_deref(), tools, || {
        let (tools, cache) = (tools.display(), cache.display());
        eprintln!("pip installs uv into {tools}; uv keeps its cache in {cache}");
    })
}

/// Advice is not a fault: only errors, warnings and problems of an environment give exit status 1.
pub(super) fn outcome(report: &DoctorReport) -> Outcome {
    let fault = report.findings.iter().any(|finding| finding.severity != Severity::Info)
        || report::unexplained_problems(report).next().is_some();
    if fault { Outcome::Bad } else { Outcome::Good }
}
