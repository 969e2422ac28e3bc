//! Output of a fix as text and JSON.

use facts::{Finding, quote};
use report::count;
use serde::Serialize;
use setup::fix::{PackageChange, ResolvedRemedy};
use std::path::Path;

pub(super) const MENDED: &str = "mended";
pub(super) const PUT_BACK: &str = "put back";
pub(super) const NOTHING: &str = "nothing changed";

#[derive(Serialize)]
pub(super) struct Fixes {
    pub(super) schema: u32,
    pub(super) plan: Vec<Step>,
    pub(super) environments: Vec<FixResult>,
    /// Problems of the environments that no remedy covers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) problems: Vec<String>,
}

/// The step for one finding.
#[derive(Serialize)]
pub(super) struct Step {
    pub(super) rule: String,
    pub(super) title: String,
    /// The finding's commands. The environment's remedy, for all findings together, is run instead.
    pub(super) commands: Vec<String>,
    /// Why firstlight runs no command for it; `null` if it may.
    pub(super) refused: Option<String>,
    /// `done`, `put back` or `not run`.
    pub(super) result: &'static str,
}

/// The result for one environment.
#[derive(Serialize)]
pub(super) struct FixResult {
    pub(super) environment: String,
    /// The resolved commands.
    pub(super) commands: Vec<String>,
    /// `mended`, `put back` or `nothing changed`.
    pub(super) outcome: &'static str,
    /// Why it was restored, or why no command was run.
    pub(super) why: Option<String>,
    /// Number of imported modules, each in a separate process.
    pub(super) tried: usize,
    /// Modules that could not be imported before.
    pub(super) mended: Vec<String>,
    /// Modules that cannot be imported now.
    pub(super) broken: Vec<BrokenImport>,
}

#[derive(Serialize)]
pub(super) struct BrokenImport {
    pub(super) module: String,
    pub(super) error: String,
}

/// A command as a user would type it.
pub(super) fn line(change: &PackageChange) -> String {
    let variables = change.variables.iter().map(|(name, value)| format!("{name}={}", quote(value)));
    variables.chain(change.words.iter().map(|word| quote(word))).collect::<Vec<_>>().join(" ")
}

/// The remedy of an environment: its findings, its commands, and the steps that it leaves to the user.
pub(super) fn remedy(root: &Path, findings: &[Finding], resolved: &ResolvedRemedy) -> String {
    let mut out = String::new();
    if !resolved.is_empty() {
        out.push_str(&format!("one remedy for {}\n", root.display()));
        for finding in resolved.findings.iter().map(|index| &findings[*index]) {
            out.push_str(&format!("  {} [{}]\n", finding.title, finding.rule));
        }
        out.push_str("commands, each resolved by a dry run\n");
        for change in &resolved.commands {
            out.push_str(&format!("  {}\n", line(change)));
        }
        out.push('\n');
    }
    for (index, why) in &resolved.left {
        let finding = &findings[*index];
        out.push_str(&format!("{} [{}]\n", finding.title, finding.rule));
        for command in &finding.fix {
            out.push_str(&format!("  {command}\n"));
        }
        out.push_str(&format!("  not run by firstlight: {why}\n\n"));
    }
    out
}

/// The results of all steps.
pub(super) fn ending(fixes: &Fixes) -> String {
    if fixes.plan.is_empty() && fixes.problems.is_empty() {
        return "nothing to fix\n".to_owned();
    }
    let mut out = String::new();
    for problem in &fixes.problems {
        out.push_str(&format!("no remedy is known: {problem}\n"));
    }
    let shown: Vec<&str> = fixes.environments.iter().map(|it| it.environment.as_str()).collect();
    // Steps that belong to no environment that can be fixed were not shown yet.
    for step in fixes.plan.iter().filter(|step| step.result == "not run") {
        let named = |root: &&str| step.commands.iter().any(|line| line.contains(*root));
        if let (Some(why), false) = (&step.refused, shown.iter().any(named)) {
            out.push_str(&format!("{} [{}]\n", step.title, step.rule));
            for command in &step.commands {
                out.push_str(&format!("  {command}\n"));
            }
            out.push_str(&format!("  not run by firstlight: {why}\n\n"));
        }
    }
    for mended in &fixes.environments {
        out.push_str(&format!("{}: {}", mended.environment, mended.outcome));
        if mended.tried > 0 {
            out.push_str(&format!("; {} imported", count(mended.tried, "module")));
        }
        if !mended.mended.is_empty() {
            out.push_str(&format!(", which now succeed: {}", mended.mended.join(", ")));
        }
        if let Some(why) = &mended.why {
            out.push_str(&format!("\n  {why}"));
        }
        out.push('\n');
        for broken in &mended.broken {
            let first = broken.error.lines().next().unwrap_or_default();
            out.push_str(&format!("  cannot be imported: {}: {first}\n", broken.module));
        }
    }
    out
}
