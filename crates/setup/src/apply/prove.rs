//! The finished environment is examined and run: its own interpreter says where it is, what it has, and whether torch
//! sees the GPU.

use super::program::{Programs, Running, output};
use super::steps::Outcome;
use super::{ApplyError, Inspect, environment, judge};
use facts::{AppliedPackage, Finding, GpuVendor, Machine, Plan, Severity};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What the interpreter is asked. A line is a label and a value.
const QUESTION: &str = include_str!("prove.py");

/// The doctor's findings about the finished environment, which has to hold what was installed and nothing else.
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
            "of {} packages these are not in it: {}",
            packages.len(),
            missing.join(", ")
        )));
    }
    outside(new)?;
    let findings = judge::examine(new, inspect)?;
    let errors: Vec<Finding> =
        findings.iter().filter(|it| it.severity == Severity::Error).cloned().collect();
    if !errors.is_empty() {
        return Err(ApplyError::Unsound { findings: errors });
    }
    let words = format!("{} packages, no error", packages.len());
    Ok((findings, 0, words))
}

/// Starts the environment's interpreter on its question, of which what is installed, by its files, decides whether torch
/// is a part.
pub(super) fn ask(environment: &Path, programs: &Programs) -> Result<Asked, ApplyError> {
    let installed = environment::installed(environment);
    let mut command = programs.python(&environment::python(environment))?;
    // Started from elsewhere, so that nothing beside it can be imported in the place of what is installed.
    command.args(["-c", QUESTION]).current_dir(environment);
    command.args(installed.contains_key("torch").then_some("torch"));
    Ok(Asked { running: Running::start(&mut command)?, installed })
}

/// An interpreter that is at work on its question.
pub(super) struct Asked {
    running: Running,
    installed: BTreeMap<String, String>,
}

impl Asked {
    /// The version of the first of these packages that is installed.
    fn version(&self, label: &str, names: &[&str]) -> (String, String) {
        let version = names.iter().find_map(|name| self.installed.get(*name));
        (label.to_owned(), version.map_or("not installed", String::as_str).to_owned())
    }
}

/// What the environment's interpreter says: it has to be the environment's own, and torch has to see the GPU where the
/// plan and the machine have one.
pub(super) fn run(
    asked: Asked,
    environment: &Path,
    plan: &Plan,
    machine: &Machine,
) -> Outcome<Vec<(String, String)>> {
    let torch = asked.version("torch", &["torch"]);
    let others = [
        asked.version("triton", &["triton", "pytorch-triton"]),
        asked.version("flash_attn", &["flash-attn"]),
    ];
    let said = asked.running.output()?;
    let mut lines: Vec<(String, String)> = said
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(label, value)| (label.to_owned(), value.to_owned()))
        .collect();
    for label in ["sys.prefix", "sys.executable", "site-packages"] {
        let at = lines.iter().position(|(found, _)| found == label);
        let value = at.map(|at| lines.remove(at).1).unwrap_or_default();
        if !Path::new(&value).starts_with(environment) {
            return Err(unproven(format!(
                "its interpreter says that {label} is `{value}`, outside of the environment"
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
            "the machine has an NVIDIA GPU and torch does not see it: CUDA available: False"
                .to_owned(),
        ));
    }
    let words = match cuda {
        Some(value) => format!("CUDA available: {value}"),
        None => "its interpreter runs, and torch is not part of the plan".to_owned(),
    };
    Ok((lines, 0, words))
}

/// The interpreter of the environment where it is now. Cheap: nothing of it is imported but what Python starts with.
pub(super) fn moved(venv: &Path, programs: &Programs) -> Result<(), ApplyError> {
    let question = "import sys; print(sys.prefix)";
    let said = output(programs.python(&environment::python(venv))?.args(["-c", question]))?;
    match Path::new(said.trim()) == venv {
        true => Ok(()),
        false => Err(unproven(format!(
            "in its place its interpreter says that sys.prefix is {}",
            said.trim()
        ))),
    }
}

/// Every script has to be run by the environment's own interpreter, wherever the environment lies: one that names another
/// would install into, or import from, somewhere else. A program of the system's (`/bin/sh`, `/usr/bin/env bash`) is no
/// interpreter of packages.
fn outside(environment: &Path) -> Result<(), ApplyError> {
    let bin = environment.join("bin");
    for entry in fs::read_dir(&bin).map_err(ApplyError::io(&bin))?.flatten() {
        let mut first = Vec::new();
        let opened = fs::File::open(entry.path()).map(BufReader::new);
        // A binary has no lines; only the beginning of what it has before one is looked at.
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
                "{} is run by {}, which is outside of the environment once that is in its place",
                entry.path().display(),
                program.display()
            )));
        }
    }
    Ok(())
}

fn unproven(what: String) -> ApplyError {
    let hint =
        "the old environment is as it was; `firstlight doctor --venv` on the new one says more"
            .to_owned();
    ApplyError::Unproven { what, hint }
}
