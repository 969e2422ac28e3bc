//! Workflows and the GitHub Action parse, and the jobs, targets and `cargo xtask` commands that they name exist.

use super::{Check, Problem};
use crate::commands::COMMANDS;
use crate::dist::PLATFORMS;
use crate::layout::Layout;
use yaml_serde::Value;

pub(super) const CHECK: Check = Check {
    name: "workflows",
    promise: "workflows and action.yml parse, each job they wait for and each `cargo xtask` they call exists",
    hint: "correct the name; `cargo xtask help` lists the commands",
    find,
};

fn find(layout: &Layout) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in layout.texts(&[".yml", ".yaml"]) {
        if path.starts_with(".github/workflows/") || path == "action.yml" {
            match yaml_serde::from_str::<Value>(text) {
                Ok(document) => {
                    let wrong = structure(&document);
                    problems.extend(wrong.into_iter().map(|what| Problem::file(path, what)));
                }
                Err(reason) => problems.push(Problem::file(path, format!("is no YAML: {reason}"))),
            }
        }
    }
    for (path, text) in layout.texts(&[".yml", ".yaml", "Dockerfile", ".ci/run"]) {
        for (index, line) in text.lines().enumerate() {
            let wrong = called(line).into_iter();
            problems.extend(wrong.map(|what| Problem::line(path, index + 1, what)));
        }
    }
    problems
}

/// Errors that a runner would report.
fn structure(document: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut steps: Vec<&Value> =
        document["runs"]["steps"].as_sequence().into_iter().flatten().collect();
    let jobs = document["jobs"].as_mapping();
    for (name, job) in jobs.into_iter().flatten() {
        let name = name.as_str().unwrap_or("?");
        let waits = job["needs"].as_sequence().into_iter().flatten().chain(job.get("needs"));
        for other in waits.filter_map(Value::as_str) {
            if !jobs.is_some_and(|jobs| jobs.contains_key(other)) {
                wrong.push(format!("job `{name}` waits for `{other}`, which is not there"));
            }
        }
        for leg in job["strategy"]["matrix"]["include"].as_sequence().into_iter().flatten() {
            let target = leg["target"].as_str().unwrap_or_default();
            if !target.is_empty() && PLATFORMS.iter().all(|platform| platform.triple != target) {
                wrong.push(format!("job `{name}` builds for `{target}`, which dist does not know"));
            }
        }
        steps.extend(job["steps"].as_sequence().into_iter().flatten());
    }
    if steps.is_empty() {
        wrong.push("has no step".to_owned());
    }
    for step in steps {
        if step["run"].is_string() == step["uses"].is_string() {
            let name = step["name"].as_str().unwrap_or("?");
            wrong.push(format!("step `{name}` wants either `run` or `uses`"));
        }
    }
    wrong
}

/// Commands and flags of `cargo xtask` in a line that do not exist.
fn called(line: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for call in line.split("cargo xtask ").skip(1) {
        let word =
            |text: &str| text.trim_matches(|c: char| !c.is_alphanumeric() && c != '-').to_owned();
        let words: Vec<String> = call.split_whitespace().map(word).collect();
        let Some(name) = words.first() else { continue };
        let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
            wrong.push(format!("there is no `cargo xtask {name}`"));
            continue;
        };
        for flag in words.iter().filter(|word| word.starts_with("--")) {
            if !command.arguments.contains(flag.as_str()) {
                wrong.push(format!("`cargo xtask {name}` has no {flag}"));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    const WORKFLOW: &str = "jobs:\n  a:\n    strategy:\n      matrix:\n        include: [{ target: aarch64-apple-darwin }]\n    steps:\n      \
                            - run: cargo xtask wheel --target x --prove\n  b:\n    needs: a\n    steps: [{ uses: actions/checkout@v4 }]\n";

    #[test]
    fn valid_workflow_passes() {
        let ci = "step tests cargo xtask test\n# `cargo xtask tidy`.\n";
        check(&CHECK, &Layout::of(&[(".github/workflows/a.yml", WORKFLOW), (".ci/run", ci)]), &[]);
    }

    #[test]
    fn reports_missing_commands_jobs_targets_and_steps() {
        let path = ".github/workflows/a.yml";
        for (from, to, expect) in [
            (
                "xtask wheel",
                "xtask wheels",
                ".github/workflows/a.yml:7: there is no `cargo xtask wheels`",
            ),
            ("--prove", "--proof", ".github/workflows/a.yml:7: `cargo xtask wheel` has no --proof"),
            (
                "needs: a",
                "needs: [c]",
                ".github/workflows/a.yml: job `b` waits for `c`, which is not there",
            ),
            (
                "aarch64-apple-darwin",
                "riscv64",
                ".github/workflows/a.yml: job `a` builds for `riscv64`, which dist does not know",
            ),
            ("uses: ", "use: ", ".github/workflows/a.yml: step `?` wants either `run` or `uses`"),
        ] {
            check(&CHECK, &Layout::of(&[(path, &WORKFLOW.replace(from, to))]), &[expect]);
        }
        let broken = Layout::of(&[("action.yml", "runs: [")]);
        assert_eq!((CHECK.find)(&broken).len(), 1);
    }
}
