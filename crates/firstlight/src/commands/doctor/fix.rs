//! `doctor --fix`: one remedy for all findings about an environment, resolved, shown, agreed to, and carried out behind a
//! snapshot. Whatever goes wrong, the environment's files are put back.

mod said;

use super::{cache_folder, examine, outcome};
use crate::Outcome;
use crate::cli::Doctor;
use crate::confirm;
use crate::output::Output;
use facts::{
    DoctorReport, EnvKind, EnvManager, Finding, PackageTool, PyEnv, RemedyStep, SCHEMA, Severity,
};
use said::{Broken, Fixes, Mended, Step};
use setup::mend::{
    Change, Imports, Limits, Packages, PutBack, Resolved, Snapshot, Tool, actions, is_for,
};
use setup::uv::Uv;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Remedies one after the other, each of what the one before it left.
const ROUNDS: usize = 4;

const HINT: &str = "add --yes to run the commands that only change packages, or read the plan and run them yourself";

pub(super) fn run(
    report: DoctorReport,
    arguments: &Doctor,
    output: &Output,
) -> anyhow::Result<Outcome> {
    let report = match put_back_what_was_left(&report, arguments, output)? {
        true => examine(&arguments.environment)?,
        false => report,
    };
    let wrong = report.findings.iter().filter(|finding| finding.severity != Severity::Info);
    let mut plan: Vec<Step> = wrong.map(|finding| step(finding, &report.envs)).collect();
    let mut environments = Vec::new();
    for env in report.envs.iter().filter(|env| env.kind == EnvKind::Venv) {
        let mine = |finding: &&Finding| is_for(env, finding);
        if report.findings.iter().filter(mine).any(|it| it.severity != Severity::Info) {
            environments.push(Mending::new(env, &report, arguments, output)?.run(&mut plan)?);
        }
    }
    let changed = environments.iter().any(|mended| mended.outcome == said::MENDED);
    let failed = environments.iter().any(|mended| mended.outcome == said::PUT_BACK);
    let fixes = Fixes { schema: SCHEMA, plan, environments };
    output.either(&fixes, |_| said::ending(&fixes))?;
    if failed {
        return Ok(Outcome::Bad);
    }
    Ok(outcome(&if changed { examine(&arguments.environment)? } else { report }))
}

/// Says on standard error which environments a killed fix left half changed.
pub(super) fn tell_what_was_left(report: &DoctorReport, output: &Output) {
    for env in report.envs.iter().filter(|env| Snapshot::is_left(Path::new(&env.root))) {
        let (note, root) = (output.paint_hint("note:"), &env.root);
        eprintln!(
            "{note} a fix of {root} was interrupted: `firstlight doctor --fix --venv {root}` puts back what was there"
        );
    }
}

/// What a fix that was killed left is put back before anything else is looked at.
fn put_back_what_was_left(
    report: &DoctorReport,
    arguments: &Doctor,
    output: &Output,
) -> anyhow::Result<bool> {
    let mut any = false;
    for env in &report.envs {
        let root = Path::new(&env.root);
        if !Snapshot::is_left(root) {
            continue;
        }
        eprintln!("{} a fix of {} was interrupted", output.paint_hint("note:"), env.root);
        let hint = "add --yes to put back what was there before it";
        if !confirm::agreed(arguments.yes, &format!("put back what {} was?", env.root), hint)? {
            continue;
        }
        if let Some(snapshot) = Snapshot::left(root)? {
            let PutBack { restored, removed } = snapshot.put_back()?;
            eprintln!("put back: {restored} files are what they were, {removed} new ones are gone");
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

/// Why firstlight runs nothing for a finding; a remedy may still leave it out for another reason.
fn refusal(finding: &Finding, envs: &[PyEnv]) -> Option<String> {
    if let Err(why) = actions(&finding.remedy) {
        return Some(why);
    }
    match envs.iter().find(|env| is_for(env, finding)).map(|env| env.kind) {
        Some(EnvKind::Venv) => None,
        Some(EnvKind::Conda) => Some("the environment is conda's: run it there yourself".into()),
        Some(EnvKind::System) => {
            Some("it would change the system's Python: make a virtual environment".into())
        }
        None => Some("it is for no environment that was read".into()),
    }
}

fn python(env: &PyEnv) -> PathBuf {
    let usual = || Path::new(&env.root).join("bin/python");
    env.interpreter.executable.as_ref().map_or_else(usual, PathBuf::from)
}

/// One environment being mended.
struct Mending<'a> {
    arguments: &'a Doctor,
    output: &'a Output,
    root: PathBuf,
    tool: Tool,
    /// What is known of the environment now.
    env: PyEnv,
    findings: Vec<Finding>,
    /// The findings when it began.
    found: Vec<Finding>,
    packages: Packages,
    /// What was installed when it began.
    before: Packages,
    /// Byte code of what is imported, apart from the environment.
    compiled: tempfile::TempDir,
    commands: Vec<String>,
}

/// Whether a step is uv's.
fn by_uv_step(step: &RemedyStep) -> bool {
    use RemedyStep::{Install, Uninstall};
    matches!(step, Install { target, .. } | Uninstall { target, .. } if target.tool == PackageTool::Uv)
}

/// Why the files are put back.
type Undo = String;

impl<'a> Mending<'a> {
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
            true => Some(find_uv()?.program),
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

    fn run(mut self, plan: &mut [Step]) -> anyhow::Result<Mended> {
        let resolved = self.resolve();
        self.show(&resolved)?;
        self.note(plan, &resolved, "not run");
        if resolved.is_empty() {
            return Ok(self.ended(said::NOTHING, None, None));
        }
        let question = format!("run these commands in {}?", self.root.display());
        if !confirm::agreed(self.arguments.yes, &question, HINT)? {
            return Ok(self.ended(said::NOTHING, Some("nobody agreed".to_owned()), None));
        }
        let snapshot = Snapshot::take(&self.root, self.packages.frozen())?;
        // Until the first command nothing has changed: whatever fails here leaves the environment as it was.
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
                let mut mended = self.ended(said::MENDED, None, Some(&after));
                mended.mended = after.mended(&before);
                Ok(mended)
            }
            Err(why) => {
                let PutBack { restored, removed } = snapshot.put_back()?;
                let why = format!(
                    "{why}; {restored} files were put back and {removed} new ones removed, so the environment is what it was"
                );
                for step in plan.iter_mut().filter(|step| step.result == "done") {
                    step.result = "put back";
                }
                Ok(self.ended(said::PUT_BACK, Some(why), Some(&before)))
            }
        }
    }

    /// Remedy by remedy, until nothing that can be run is left to mend.
    fn carry_out(
        &mut self,
        first: Resolved,
        before: &Imports,
        snapshot: &Snapshot,
        plan: &mut [Step],
    ) -> Result<Imports, Undo> {
        let mut next = first;
        let (mut touched, mut removed) = (BTreeSet::new(), BTreeSet::new());
        let titles: Vec<String> = self.titles(&next);
        let mut seen: Vec<Vec<Change>> = Vec::new();
        loop {
            for change in &next.commands {
                self.execute(change, snapshot)?;
            }
            self.note(plan, &next, "done");
            touched.extend(next.touched.clone());
            removed.extend(next.removed.clone());
            seen.push(next.commands.clone());
            let report =
                examine(&self.arguments.environment).map_err(|error| format!("{error:#}"))?;
            let root = self.env.root.clone();
            let Some(env) = report.envs.into_iter().find(|env| env.root == root) else {
                return Err("the environment cannot be read any more".to_owned());
            };
            (self.env, self.findings) = (env, report.findings);
            self.packages = Packages::read(&self.env);
            let again = before.working(&removed);
            let after = self.imports(&touched, &again).map_err(|error| format!("{error:#}"))?;
            let worse = after.worse_than(before);
            // What came anew was never there to break.
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

    /// Whether what was done is worth keeping: the doctor finds less than before, or something can be imported that could not.
    fn settle(&self, before: &Imports, after: Imports, titles: &[String]) -> Result<Imports, Undo> {
        let (was, is) = (self.weight(&self.found), self.weight(&self.findings));
        if is > was {
            let new = self.findings.iter().find(|it| {
                it.severity != Severity::Info
                    && self.concerns(it)
                    && self.found.iter().all(|other| other.title != it.title)
            });
            let new = new.map_or("", |finding| finding.title.as_str());
            return Err(format!("the doctor finds more than before: {new}"));
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

    fn resolve(&self) -> Resolved {
        Resolved::of(&self.env, &self.findings, &self.packages, &self.tool)
    }

    fn titles(&self, resolved: &Resolved) -> Vec<String> {
        resolved.findings.iter().map(|index| self.findings[*index].title.clone()).collect()
    }

    /// Imports what these packages bring, and what depends on them.
    fn imports(&self, packages: &BTreeSet<String>, modules: &[String]) -> anyhow::Result<Imports> {
        let packages = self.packages.with_dependents(packages);
        let python = &self.tool.python;
        eprintln!(
            "{} the modules of {}",
            self.output.paint_hint("import:"),
            report::count(packages.len(), "package")
        );
        Ok(Imports::of(python, &packages, modules, Limits::default(), self.compiled.path())?)
    }

    fn execute(&self, change: &Change, snapshot: &Snapshot) -> Result<(), Undo> {
        let line = said::line(change);
        eprintln!("{} {line}", self.output.paint_hint("run:"));
        let mut command = change.command();
        // What it prints goes to standard error, so that `--json` stays one document.
        command.stdout(Stdio::from(std::io::stderr()));
        command.stdin(snapshot.stdin().map_err(|error| error.to_string())?);
        let ended = command.status().map_err(|error| format!("`{line}` did not start: {error}"))?;
        match ended.success() {
            true => Ok(()),
            false => Err(format!("`{line}` ended with {ended}")),
        }
    }

    fn show(&mut self, resolved: &Resolved) -> anyhow::Result<()> {
        self.commands.extend(resolved.commands.iter().map(said::line));
        if self.output.json {
            return Ok(());
        }
        self.output.text(&said::remedy(&self.root, &self.findings, resolved))
    }

    /// Marks the steps of findings that a remedy covers, and why it leaves out others.
    fn note(&self, plan: &mut [Step], resolved: &Resolved, result: &'static str) {
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
    ) -> Mended {
        let broken = imports.into_iter().flat_map(Imports::broken).map(|it| Broken {
            module: it.module.clone(),
            error: it.error.clone().unwrap_or_default(),
        });
        Mended {
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

fn find_uv() -> anyhow::Result<Uv> {
    let tools = cache_folder().unwrap_or_else(std::env::temp_dir).join("tools");
    Ok(Uv::find(std::env::var_os("PATH").as_deref(), &tools)?)
}
