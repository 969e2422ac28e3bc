//! Examines and runs the finished environment: its interpreter reports its location, its packages, and whether torch
//! sees the GPU.

use super::program::{Programs, Running, output};
use super::steps::{Outcome, count};
use super::{ApplyError, Inspect, environment, judge};
use facts::{AppliedPackage, Finding, GpuVendor, InstallPlan, Machine, Severity};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The program that the interpreter runs. It prints one label and value per line.
const PROGRAM: &str = include_str!("prove.py");

/// The doctor's findings about the finished environment, which has to contain exactly what was installed.
pub(super) fn examine(
    new: &Path,
    packages: &[AppliedPackage],
    inspect: &dyn Inspect,
) -> Outcome<Vec<Finding>> {
    if !environment::holds(new, packages) {
        let there = environment::installed(new);
        let missing: Vec<String> = packages
            .iter()
            .filter(|package| there.get(&package.name) != Some(&package.version))
            .map(|package| format!("{} {}", package.name, package.version))
            .collect();
        return Err(unproven(format!(
            "of {} packages, these are not in it: {}",
            packages.len(),
            missing.join(", ")
        )));
    }
    check_scripts(new)?;
    let findings = judge::examine(new, inspect)?;
    let errors: Vec<Finding> =
        findings.iter().filter(|it| it.severity == Severity::Error).cloned().collect();
    if !errors.is_empty() {
        return Err(ApplyError::Unsound { findings: errors });
    }
    let words = format!("{}, no error", count(packages.len(), "package"));
    Ok((findings, 0, words))
}

/// Starts the environment's interpreter on that program; torch is included if it is installed according to its files.
pub(super) fn ask(environment: &Path, programs: &Programs) -> Result<InterpreterRun, ApplyError> {
    let installed = environment::installed(environment);
    let mut command = programs.python(&environment::python(environment))?;
    // Started in another folder, so that no local file is imported instead of an installed one.
    command.args(["-c", PROGRAM]).current_dir(environment);
    command.args(installed.contains_key("torch").then_some("torch"));
    Ok(InterpreterRun { running: Running::start(&mut command)?, installed })
}

/// A running interpreter.
pub(super) struct InterpreterRun {
    running: Running,
    installed: BTreeMap<String, String>,
}

impl InterpreterRun {
    /// The version of the first installed one of these packages.
    fn version(&self, label: &str, names: &[&str]) -> (String, String) {
        let version = names.iter().find_map(|name| self.installed.get(*name));
        (label.to_owned(), version.map_or("not installed", String::as_str).to_owned())
    }
}

/// Checks the interpreter's output: it has to be the environment's own, and torch has to see the GPU if the plan and
/// the machine have one.
pub(super) fn run(
    asked: InterpreterRun,
    environment: &Path,
    plan: &InstallPlan,
    machine: &Machine,
) -> Outcome<Vec<(String, String)>> {
    let torch = asked.version("torch", &["torch"]);
    let others = [
        asked.version("triton", &["triton", "pytorch-triton"]),
        asked.version("flash_attn", &["flash-attn"]),
    ];
    let printed = asked.running.output()?;
    let mut lines: Vec<(String, String)> = printed
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(label, value)| (label.to_owned(), value.to_owned()))
        .collect();
    for label in ["sys.prefix", "sys.executable", "site-packages"] {
        let at = lines.iter().position(|(found, _)| found == label);
        let value = at.map(|at| lines.remove(at).1).unwrap_or_default();
        if !Path::new(&value).starts_with(environment) {
            return Err(unproven(format!(
                "{label} of its interpreter is `{value}`, outside of the environment"
            )));
        }
    }
    let without = torch.1 == "not installed";
    lines.insert(lines.len().min(1), torch);
    if without {
        lines.push(("cuda".to_owned(), "none: torch is not installed".to_owned()));
    }
    lines.extend(others);
    let failed = lines.iter().find(|(label, _)| label == "torch failed");
    if let Some((_, reason)) = failed {
        return Err(unproven(format!("torch cannot be imported: {reason}")));
    }
    let has_gpu = machine.gpus.iter().any(|gpu| gpu.vendor == GpuVendor::Nvidia);
    let cuda =
        lines.iter().find(|(label, _)| label == "CUDA available").map(|(_, value)| value.as_str());
    if has_gpu && plan.cuda.is_some() && cuda.is_some_and(|value| !value.starts_with("True")) {
        return Err(unproven(
            "the machine has an NVIDIA GPU, and torch reports CUDA available: False".to_owned(),
        ));
    }
    let words = match cuda {
        Some(value) => format!("CUDA available: {value}"),
        None => "its interpreter runs, and torch is not part of the plan".to_owned(),
    };
    Ok((lines, 0, words))
}

/// Runs the interpreter at its final location. Cheap: only Python's startup modules are imported.
pub(super) fn moved(venv: &Path, programs: &Programs) -> Result<(), ApplyError> {
    let question = "import sys; print(sys.prefix)";
    let printed = output(programs.python(&environment::python(venv))?.args(["-c", question]))?;
    match Path::new(printed.trim()) == venv {
        true => Ok(()),
        false => Err(unproven(format!(
            "after the switch, sys.prefix of its interpreter is {}",
            printed.trim()
        ))),
    }
}

/// Refuses scripts that start a Python outside of the environment: it would install into, or import from, another
/// environment. System programs (`/bin/sh`, `/usr/bin/env bash`) are allowed.
fn check_scripts(environment: &Path) -> Result<(), ApplyError> {
    let bin = environment.join("bin");
    for entry in fs::read_dir(&bin).map_err(ApplyError::io(&bin))?.flatten() {
        let mut first = Vec::new();
        let opened = fs::File::open(entry.path()).map(BufReader::new);
        // A binary has no lines; only its beginning is read.
        let read =
            opened.and_then(|file| std::io::Read::take(file, 512).read_until(b'\n', &mut first));
        if read.is_err() || !first.starts_with(b"#!") {
            continue;
        }
        let line = first[2..].trim_ascii();
        let program = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        let program = Path::new(std::ffi::OsStr::from_bytes(program));
        let name =
            program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with("python") {
            return Err(unproven(format!(
                "{} is run by {}, which is outside of the environment after the switch",
                entry.path().display(),
                program.display()
            )));
        }
    }
    Ok(())
}

fn unproven(what: String) -> ApplyError {
    let hint = "the old environment is unchanged; run `firstlight doctor --venv` on the new one"
        .to_owned();
    ApplyError::Unproven { what, hint }
}
