//! `doctor --fix`: computes one remedy for all findings about an environment, resolves and shows it, asks for
//! confirmation, and runs it after taking a snapshot. On any failure, the environment's files are restored.

mod fix_report;

use super::{cache_folder, examine_with, find_uv, outcome};
use crate::Outcome;
use crate::cli::Doctor;
use crate::confirm;
use crate::output::Output;
use facts::{
    DoctorReport, EnvKind, EnvManager, Finding, PackageTool, PyEnv, RemedyStep, SCHEMA, Severity,
};
use fix_report::{BrokenImport, FixResult, Fixes, Step};
use setup::fix::{
    EnvironmentSnapshot, ImportLimits, Imports, PackageChange, Packages, ResolvedRemedy,
    RestoreReport, Tool, actions, is_for,
};
use setup::uv::Uv;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Maximum number of remedies in sequence, each for the findings that remain after the previous one.
const ROUNDS: usize = 4;

const HINT: &str = "add --yes to run the commands that only change packages, or read the plan and run them yourself";

pub(super) fn run(
    report: DoctorReport,
    arguments: &Doctor,
    output: &Output,
    diagnose: impl FnOnce() -> anyhow::Result<DoctorReport>,
) -> anyhow::Result<Outcome> {
    let report = match restore_interrupted_fixes(&report, arguments, output)? {
        true => diagnose()?,
        false => report,
    };
    let wrong = report.findings.iter().filter(|finding| finding.severity != Severity::Info);
    let mut plan: Vec<Step> = wrong.map(|finding| step(finding, &report.envs)).collect();
    let mut environments = Vec::new();
    for env in report.envs.iter().filter(|env| env.kind == EnvKind::Venv) {
        let mine = |finding: &&Finding| is_for(env, finding);
        if report.findings.iter().filter(mine).any(|it| it.severity != Severity::Info) {
            environments.push(FixRun::new(env, &report, arguments, output)?.run(&mut plan)?);
        }
    }
    let changed = environments.iter().any(|mended| mended.outcome == fix_report::MENDED);
    let failed = environments.iter().any(|mended| mended.outcome == fix_report::PUT_BACK);
    let report = if changed { examine_as_asked(arguments)? } else { report };
    let problems = report::unexplained_problems(&report).map(str::to_owned).collect();
    let fixes = Fixes { schema: SCHEMA, plan, environments, problems };
    output.either(&fixes, |_| fix_report::ending(&fixes))?;
    if failed {
        return Ok(Outcome::Bad);
    }
    Ok(outcome(&report))
}

/// The environments after a command, read as deep as the first time: damage that only hashes show must not seem mended.
fn examine_as_asked(arguments: &Doctor) -> anyhow::Result<DoctorReport> {
    examine_with(&arguments.environment, arguments.verify_files)
}

/// Rolls back an interrupted fix before anything else.
fn restore_interrupted_fixes(
    report: &DoctorReport,
    arguments: &Doctor,
    output: &Output,
) -> anyhow::Result<bool> {
    let mut any = false;
    for env in &report.envs {
        let root = Path::new(&env.root);
        if !EnvironmentSnapshot::is_left(root) {
            continue;
        }
        eprintln!("{} a fix of {} was interrupted", output.paint_hint("note:"), env.root);
        let hint = "add --yes to restore the environment";
        if !confirm::agreed(
            arguments.yes,
            &format!("restore {} to its previous state?", env.root),
            hint,
        )? {
            continue;
        }
        if let Some(snapshot) = EnvironmentSnapshot::left(root)? {
            let RestoreReport { restored, removed } = snapshot.put_back()?;
            eprintln!("restored: {restored} files restored, {removed} new files removed");
            any = true;
        }
    }
    Ok(any)
}

fn step(finding: &Finding, envs: &[PyEnv]) -> Step {
    Step {
        rule: finding.rule.clone(),
        title: finding.title.clone(),
        commands: finding.fix.clone(),
        refused: refusal(finding, envs),
        result: "not run",
    }
}

/// Why firstlight runs no command for a finding; a remedy may still omit it for another reason.
fn refusal(finding: &Finding, envs: &[PyEnv]) -> Option<String> {
    if let Err(why) = actions(&finding.remedy) {
        return Some(why);
    }
    match envs.iter().find(|env| is_for(env, finding)).map(|env| env.kind) {
        Some(EnvKind::Venv) => None,
        Some(EnvKind::Conda) => {
            Some("it is a conda environment: run the command there yourself".into())
        }
        Some(EnvKind::System) => {
            Some("it would change the system's Python: create a virtual environment".into())
        }
        None => Some("it is not for an environment that was read".into()),
    }
}

fn python(env: &PyEnv) -> PathBuf {
    let usual = || Path::new(&env.root).join("bin/python");
    env.interpreter.executable.as_ref().map_or_else(usual, PathBuf::from)
}

/// An environment that is being fixed.
struct FixRun<'a> {
    arguments: &'a Doctor,
    output: &'a Output,
    root: PathBuf,
    tool: Tool,
    /// The current facts about the environment.
    env: PyEnv,
    findings: Vec<Finding>,
    /// The findings before the fix.
    found: Vec<Finding>,
    packages: Packages,
    /// The packages before the fix.
    before: Packages,
    /// Byte code of tested imports, outside of the environment.
    compiled: tempfile::TempDir,
    commands: Vec<String>,
}

/// Whether a step uses uv.
fn by_uv_step(step: &RemedyStep) -> bool {
    use RemedyStep::{Install, Uninstall};
    matches!(step, Install { target, .. } | Uninstall { target, .. } if target.tool == PackageTool::Uv)
}

/// Why the files are restored.
type Undo = String;

impl<'a> FixRun<'a> {
    fn new(
        env: &PyEnv,
        report: &DoctorReport,
        arguments: &'a Doctor,
        output: &'a Output,
    ) -> anyhow::Result<Self> {
        let packages = Packages::read(env);
        let by_uv = env.manager.as_ref().is_some_and(|it| it.value == EnvManager::Uv)
            || report.findings.iter().any(|it| is_for(env, it) && it.remedy.iter().any(by_uv_step));
        let uv = match by_uv || packages.version("pip").is_none() {
            true => Some(uv()?.program),
            false => None,
        };
        Ok(Self {
            arguments,
            output,
            root: PathBuf::from(&env.root),
            tool: Tool { python: python(env), uv },
            env: env.clone(),
            findings: report.findings.clone(),
            found: report.findings.clone(),
            before: packages.clone(),
            packages,
            compiled: tempfile::tempdir()?,
            commands: Vec::new(),
        })
    }

    fn run(mut self, plan: &mut [Step]) -> anyhow::Result<FixResult> {
        let resolved = self.resolve();
        self.show(&resolved)?;
        self.note(plan, &resolved, "not run");
        if resolved.is_empty() {
            return Ok(self.ended(fix_report::NOTHING, None, None));
        }
        let question = format!("run these commands in {}?", self.root.display());
        if !confirm::agreed(self.arguments.yes, &question, HINT)? {
            return Ok(self.ended(fix_report::NOTHING, Some("not confirmed".to_owned()), None));
        }
        let snapshot = EnvironmentSnapshot::take(&self.root, self.packages.frozen())?;
        // Before the first command nothing has changed: any failure here leaves the environment unchanged.
        let before = match self.imports(&resolved.touched, &[]) {
            Ok(before) => before,
            Err(error) => {
                snapshot.end()?;
                return Err(error);
            }
        };
        match self.carry_out(resolved, &before, &snapshot, plan) {
            Ok(after) => {
                snapshot.end()?;
                let mut mended = self.ended(fix_report::MENDED, None, Some(&after));
                mended.mended = after.mended(&before);
                Ok(mended)
            }
            Err(why) => {
                let RestoreReport { restored, removed } = snapshot.put_back()?;
                let why = format!(
                    "{why}; {restored} files were put back and {removed} new ones removed, so the environment is what it was"
                );
                for step in plan.iter_mut().filter(|step| step.result == "done") {
                    step.result = "put back";
                }
                Ok(self.ended(fix_report::PUT_BACK, Some(why), Some(&before)))
            }
        }
    }

    /// Runs remedies until none that can be run is left.
    fn carry_out(
        &mut self,
        first: ResolvedRemedy,
        before: &Imports,
        snapshot: &EnvironmentSnapshot,
        plan: &mut [Step],
    ) -> Result<Imports, Undo> {
        let mut next = first;
        let (mut touched, mut removed) = (BTreeSet::new(), BTreeSet::new());
        let titles: Vec<String> = self.titles(&next);
        let mut seen: Vec<Vec<PackageChange>> = Vec::new();
        loop {
            for change in &next.commands {
                self.execute(change, snapshot)?;
            }
            self.note(plan, &next, "done");
            touched.extend(next.touched.clone());
            removed.extend(next.removed.clone());
            seen.push(next.commands.clone());
            let report = examine_as_asked(self.arguments).map_err(|error| format!("{error:#}"))?;
            let root = self.env.root.clone();
            let Some(env) = report.envs.into_iter().find(|env| env.root == root) else {
                return Err("the environment cannot be read any more".to_owned());
            };
            (self.env, self.findings) = (env, report.findings);
            self.packages = Packages::read(&self.env);
            let again = before.working(&removed);
            let after = self.imports(&touched, &again).map_err(|error| format!("{error:#}"))?;
            let worse = after.worse_than(before);
            // New packages did not exist before, so they cannot regress.
            let worse = worse
                .iter()
                .find(|it| it.package.is_empty() || self.before.version(&it.package).is_some());
            if let Some(worse) = worse {
                return Err(format!(
                    "{} cannot be imported any more: {}",
                    worse.module, worse.error
                ));
            }
            next = self.resolve();
            if next.is_empty() || seen.contains(&next.commands) || seen.len() == ROUNDS {
                return self.settle(before, after, &titles);
            }
            self.show(&next).map_err(|error| format!("{error:#}"))?;
            let agreed = confirm::agreed(self.arguments.yes, "run these commands as well?", HINT);
            if !agreed.map_err(|error| format!("{error:#}"))? {
                return self.settle(before, after, &titles);
            }
        }
    }

    /// The number of errors and of warnings about the environment.
    fn weight(&self, findings: &[Finding]) -> (usize, usize) {
        let of = |severity| {
            findings.iter().filter(|it| it.severity == severity && self.concerns(it)).count()
        };
        (of(Severity::Error), of(Severity::Warning))
    }

    fn concerns(&self, finding: &Finding) -> bool {
        is_for(&self.env, finding) || finding.title.contains(&self.env.root)
    }

    /// Whether to keep the changes: the doctor has fewer findings than before, or a failed import succeeds.
    fn settle(&self, before: &Imports, after: Imports, titles: &[String]) -> Result<Imports, Undo> {
        let (was, is) = (self.weight(&self.found), self.weight(&self.findings));
        if is > was {
            let new = self.findings.iter().find(|it| {
                it.severity != Severity::Info
                    && self.concerns(it)
                    && self.found.iter().all(|other| other.title != it.title)
            });
            let new = new.map_or("", |finding| finding.title.as_str());
            return Err(format!("the doctor has new findings: {new}"));
        }
        let still = |finding: &&Finding| {
            titles.contains(&finding.title)
                || finding.severity == Severity::Error && is_for(&self.env, finding)
        };
        let left = self.findings.iter().filter(|it| it.severity != Severity::Info).find(still);
        let Some(left) = left else { return Ok(after) };
        if let Some(broken) = after.broken().next() {
            let error = broken.error.as_deref().unwrap_or_default();
            return Err(format!("{} still cannot be imported: {error}", broken.module));
        }
        match is < was || !after.mended(before).is_empty() {
            true => Ok(after),
            false => Err(format!("it changed nothing about `{}`", left.title)),
        }
    }

    fn resolve(&self) -> ResolvedRemedy {
        ResolvedRemedy::of(&self.env, &self.findings, &self.packages, &self.tool)
    }

    fn titles(&self, resolved: &ResolvedRemedy) -> Vec<String> {
        resolved.findings.iter().map(|index| self.findings[*index].title.clone()).collect()
    }

    /// Imports the modules of these packages, and of the packages that depend on them.
    fn imports(&self, packages: &BTreeSet<String>, modules: &[String]) -> anyhow::Result<Imports> {
        let packages = self.packages.with_dependents(packages);
        let python = &self.tool.python;
        eprintln!(
            "{} the modules of {}",
            self.output.paint_hint("import:"),
            report::count(packages.len(), "package")
        );
        Ok(Imports::of(python, &packages, modules, ImportLimits::default(), self.compiled.path())?)
    }

    fn execute(&self, change: &PackageChange, snapshot: &EnvironmentSnapshot) -> Result<(), Undo> {
        let line = fix_report::line(change);
        eprintln!("{} {line}", self.output.paint_hint("run:"));
        let mut command = change.command();
        // Its output goes to standard error, so that `--json` stays one document.
        command.stdout(Stdio::from(std::io::stderr()));
        command.stdin(snapshot.stdin().map_err(|error| error.to_string())?);
        let ended = command.status().map_err(|error| format!("`{line}` did not start: {error}"))?;
        match ended.success() {
            true => Ok(()),
            false => Err(format!("`{line}` ended with {ended}")),
        }
    }

    fn show(&mut self, resolved: &ResolvedRemedy) -> anyhow::Result<()> {
        self.commands.extend(resolved.commands.iter().map(fix_report::line));
        if self.output.json {
            return Ok(());
        }
        self.output.text(&fix_report::remedy(&self.root, &self.findings, resolved))
    }

    /// Marks the steps of findings that a remedy covers, and why it omits others.
    fn note(&self, plan: &mut [Step], resolved: &ResolvedRemedy, result: &'static str) {
        for index in &resolved.findings {
            let finding = &self.findings[*index];
            for step in plan.iter_mut().filter(|step| step.title == finding.title) {
                (step.result, step.refused) = (result, None);
            }
        }
        for (index, why) in &resolved.left {
            let finding = &self.findings[*index];
            let step = plan.iter_mut().find(|step| step.title == finding.title);
            if let Some(step) = step.filter(|step| step.result != "done") {
                step.refused = Some(why.clone());
            }
        }
    }

    fn ended(
        &self,
        outcome: &'static str,
        why: Option<String>,
        imports: Option<&Imports>,
    ) -> FixResult {
        let broken = imports.into_iter().flat_map(Imports::broken).map(|it| BrokenImport {
            module: it.module.clone(),
            error: it.error.clone().unwrap_or_default(),
        });
        FixResult {
            environment: self.root.display().to_string(),
            commands: self.commands.clone(),
            outcome,
            why,
            tried: imports.map_or(0, |imports| imports.all().count()),
            mended: Vec::new(),
            broken: broken.collect(),
        }
    }
}

fn uv() -> anyhow::Result<Uv> {
    let tools = cache_folder().unwrap_or_else(std::env::temp_dir).join("tools");
    Ok(find_uv(&tools)?)
}
