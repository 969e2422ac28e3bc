//! `doctor --fix`: shows the commands of each finding, asks, and runs those that only change packages of the environment.

use super::{examine, outcome};
use crate::Outcome;
use crate::cli::Doctor;
use crate::confirm;
use crate::output::Output;
use facts::{DoctorReport, EnvKind, Finding, PyEnv, SCHEMA, Severity};
use serde::Serialize;
use std::process::Command;

#[derive(Serialize)]
struct Fixes {
    schema: u32,
    plan: Vec<Step>,
}

/// What is to be done about one finding.
#[derive(Serialize)]
struct Step {
    rule: String,
    title: String,
    commands: Vec<String>,
    /// Why firstlight does not run them; `null` where it may.
    refused: Option<String>,
    /// `done`, `failed` or `not run`.
    result: &'static str,
}

pub(super) fn run(
    report: &DoctorReport,
    arguments: &Doctor,
    output: &Output,
) -> anyhow::Result<Outcome> {
    let wrong = report.findings.iter().filter(|finding| finding.severity != Severity::Info);
    let mut steps: Vec<Step> = wrong.map(|finding| step(finding, &report.envs)).collect();
    if !output.json {
        output.text(&plan(&steps))?;
    }
    for step in &mut steps {
        if step.refused.is_some() || !agreed(step, arguments.yes)? {
            continue;
        }
        step.result = if carry_out(&step.commands, output)? { "done" } else { "failed" };
        if step.result == "failed" {
            // What comes after may build on what did not happen.
            break;
        }
    }
    let ran = steps.iter().any(|step| step.result == "done");
    let failed = steps.iter().any(|step| step.result == "failed");
    let fixes = Fixes { schema: SCHEMA, plan: steps };
    output.either(&fixes, |_| said(&fixes))?;
    if failed {
        return Ok(Outcome::Bad);
    }
    Ok(outcome(&if ran { examine(&arguments.environment)? } else { report.clone() }))
}

fn step(finding: &Finding, envs: &[PyEnv]) -> Step {
    Step {
        rule: finding.rule.clone(),
        title: finding.title.clone(),
        commands: finding.fix.clone(),
        refused: refusal(&finding.fix, envs),
        result: "not run",
    }
}

/// Why the commands are not run: whole or not at all, since half of a replacement leaves nothing that works.
fn refusal(commands: &[String], envs: &[PyEnv]) -> Option<String> {
    let mut any = false;
    for line in first_way(commands) {
        let line = line.trim();
        if let Some(remark) = line.strip_prefix('#') {
            // A remark that ends in a colon is about the command below it; any other one is a step for a person.
            if !remark.trim_end().ends_with(':') {
                return Some(format!("a step is yours: {}", remark.trim()));
            }
            continue;
        }
        if let Some(why) = unsafe_to_run(line, envs) {
            return Some(why);
        }
        any = true;
    }
    (!any).then(|| "it has no command".to_owned())
}

/// The commands up to the first alternative.
fn first_way(commands: &[String]) -> impl Iterator<Item = &String> {
    commands.iter().take_while(|line| !line.trim_start().starts_with("# or"))
}

/// Only uv's and pip's package changes in an environment of its own are run.
fn unsafe_to_run(line: &str, envs: &[PyEnv]) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().skip_while(|word| is_assignment(word)).collect();
    match words.first().copied() {
        Some("sudo") => return Some(format!("it needs root: {line}")),
        Some("reboot") => return Some("it needs a reboot".into()),
        Some("export" | "unset" | "." | "source") => {
            return Some(format!("it belongs into your shell: {line}"));
        }
        Some("conda" | "mamba") => {
            return Some(format!("conda's changes are yours to make: {line}"));
        }
        _ => {}
    }
    let changes = line.contains(" -m pip ") || line.contains("uv pip ");
    let checks = line.contains(" -c ") && line.contains("/bin/python");
    if !changes && !checks {
        return Some(format!("it is no package change: {line}"));
    }
    let own = envs.iter().find(|env| {
        let python = env
            .interpreter
            .executable
            .clone()
            .unwrap_or_else(|| format!("{}/bin/python", env.root));
        line.contains(&python)
    });
    match own.map(|env| env.kind) {
        Some(EnvKind::Venv) => None,
        Some(EnvKind::Conda) => Some("the environment is conda's: run it there yourself".into()),
        Some(EnvKind::System) => {
            Some("it would change the system's Python: make a virtual environment".into())
        }
        None => Some(format!("it is for no environment that was read: {line}")),
    }
}

fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map_or("", |(name, _)| name);
    !name.is_empty()
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

fn plan(steps: &[Step]) -> String {
    if steps.is_empty() {
        return "nothing to fix\n".to_owned();
    }
    let mut out = String::new();
    for step in steps {
        out.push_str(&format!("{} [{}]\n", step.title, step.rule));
        for command in &step.commands {
            out.push_str(&format!("  {command}\n"));
        }
        if let Some(why) = &step.refused {
            out.push_str(&format!("  not run by firstlight: {why}\n"));
        }
        out.push('\n');
    }
    out
}

fn agreed(step: &Step, yes: bool) -> anyhow::Result<bool> {
    let hint = "add --yes to run the commands that only change packages, or read the plan and run them yourself";
    confirm::agreed(yes, &format!("run the commands for {}?", step.rule), hint)
}

/// One after another, as they were shown; the first that fails ends it.
fn carry_out(commands: &[String], output: &Output) -> anyhow::Result<bool> {
    for line in first_way(commands).filter(|line| !line.trim_start().starts_with('#')) {
        eprintln!("{} {line}", output.paint_hint("run:"));
        // What the command prints goes to standard error, so that `--json` stays one document.
        let run = Command::new("sh").args(["-c", &format!("{line} 1>&2")]).status()?;
        if !run.success() {
            eprintln!("{} {line} ended with {run}", output.paint_error("failed:"));
            return Ok(false);
        }
    }
    Ok(true)
}

fn said(fixes: &Fixes) -> String {
    if fixes.plan.is_empty() {
        return String::new();
    }
    let count = |result: &str| fixes.plan.iter().filter(|step| step.result == result).count();
    format!("{} done, {} failed, {} not run\n", count("done"), count("failed"), count("not run"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_package_changes_of_an_environment_are_run() {
        let env = |kind: &str| -> PyEnv {
            serde_json::from_value(serde_json::json!({
                "root": "/v", "kind": kind, "found_by": "--venv", "manager": null,
                "interpreter": {"executable": "/v/bin/python", "resolved": null, "version": null, "abi_tag": null, "base": null},
                "site_packages": [], "dists": [], "torch": null, "native_files": [], "problems": []
            }))
            .unwrap()
        };
        let check = |kind: &str, lines: &[&str], expect: Option<&str>| {
            let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            let why = refusal(&lines, &[env(kind)]);
            match expect {
                None => assert_eq!(why, None, "{lines:?}"),
                Some(words) => {
                    assert!(why.as_ref().is_some_and(|why| why.contains(words)), "{why:?}")
                }
            }
        };
        let replace = [
            "/v/bin/python -m pip uninstall --yes torch",
            "/v/bin/python -m pip install torch==2.9.0",
        ];
        check("venv", &replace, None);
        check("system", &replace, Some("system's Python"));
        check("conda", &replace, Some("conda's"));
        check("venv", &["FORCE=TRUE uv pip install --python /v/bin/python x"], None);
        check(
            "venv",
            &["# a build that fits:", replace[1], "# or bring the driver:", "sudo reboot"],
            None,
        );
        check("venv", &[replace[0], "# then install NVIDIA's wheel"], Some("a step is yours"));
        check("venv", &["sudo apt-get install x"], Some("needs root"));
        check("venv", &["export CUDA_HOME=/x"], Some("your shell"));
        check("venv", &["rm -r /v/lib"], Some("no package change"));
        check(
            "venv",
            &["/other/bin/python -m pip install x"],
            Some("no environment that was read"),
        );
        check("venv", &["# nothing:"], Some("no command"));
    }
}
