//! Applies a plan: the only part of firstlight that changes a Python environment.
//!
//! The new environment is built next to the old one, from files that were downloaded, compared with the plan's hashes,
//! opened and judged before anything is installed. It replaces the old one in one file system operation, and only when
//! it is complete, the doctor finds no error in it and its own interpreter has run.
//!
//! Invariant: until that operation nothing in the environment's folder is touched, and after it the folder contains the
//! whole new environment. An apply that was killed leaves one or the other, and the next one resumes from its journal.

mod compile;
mod download;
mod environment;
mod error;
mod journal;
mod judge;
mod lock;
mod places;
mod preconditions;
mod program;
mod prove;
mod repair;
mod steps;
mod switch;
mod writeback;

pub use error::{ApplyError, UnmetPrecondition};

use crate::uv::Uv;
use facts::{
    AppliedPackage, ApplyOutcome, ApplyReport, Evidence, Finding, InstallPlan, Machine,
    PackageOrigin, PlannedPackage, SCHEMA,
};
use journal::{Journal, JournalEntry};
use lock::Lock;
use places::ApplyPaths;
use program::Programs;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use steps::Steps;
use writeback::Writeback;

/// The inputs of an apply.
#[derive(Debug, Clone, Copy)]
pub struct ApplyOptions<'a> {
    /// The environment, which is created or replaced as a whole.
    pub venv: &'a Path,
    /// Resolves and installs packages.
    pub uv: &'a Uv,
    /// Cache of downloaded files by hash, shared by environments.
    pub cache: &'a Path,
    /// The machine this runs on.
    pub machine: &'a Machine,
    /// Remove the replaced environment, and a backup of an earlier apply.
    pub discard_old: bool,
    /// Restore files that differ from what an earlier apply of the plan installed, instead of replacing the
    /// environment.
    pub repair: bool,
}

/// Inspects binaries before and after the install; this crate reads none.
pub trait Inspect {
    /// Findings about an environment's folder on this machine. Before the install the folder contains the opened wheels
    /// in their final layout; afterwards it is the finished environment.
    ///
    /// # Errors
    /// One sentence, if the folder cannot be read at all.
    fn examine(&self, environment: &Path) -> Result<Vec<Finding>, String>;
}

/// Receives the progress of an apply.
pub trait Progress {
    /// A step starts; `bytes` is its expected transfer, if known.
    fn begin(&mut self, step: &'static str, bytes: Option<u64>);
    /// Bytes transferred since the last call, and the current item.
    fn advance(&mut self, bytes: u64, what: &str);
    /// The step has ended, with one line about its result and its whole duration, which may have started before
    /// `begin`.
    fn end(&mut self, outcome: &str, took: Duration);
}

/// Applies the plan in `options.venv`, completely or not at all.
///
/// # Errors
/// Nothing was changed in the environment's folder, whatever the error. Downloaded and built files are kept, so that
/// another call resumes from there.
pub fn apply(
    plan: &InstallPlan,
    options: &ApplyOptions,
    inspect: &dyn Inspect,
    progress: &mut dyn Progress,
) -> Result<ApplyReport, ApplyError> {
    let places = ApplyPaths::of(options.venv)?;
    let lock = Lock::take(&places)?;
    let mut journal = Journal::open(&places);
    switch::finish(&places, &journal)?;
    let work = Work {
        plan,
        options,
        places: &places,
        programs: &Programs::new(options.uv, &lock),
        inspect,
        plan_sha256: journal::plan_sha256(plan),
    };
    let mut steps = Steps::new(progress);
    let made = match applied(&places, &work.plan_sha256, options.repair) {
        Some(packages) => work.verify_files(packages, &mut journal, &mut steps),
        None if options.repair => Err(repair::not_ours(&places.venv)),
        None => work
            .report_missing_interpreter(&mut steps)
            .and_then(|()| work.replace(&mut journal, &mut steps)),
    };
    let mut report = match made {
        // Nothing was started, so there is nothing to keep for the next apply.
        Err(error) if !journal.is_begun() => return lock.release(&places).and(Err(error)),
        made => made?,
    };
    report.steps = steps.done();
    let kept_old = switch::settle(&places, options.discard_old)?;
    report.kept_old = kept_old.map(|old| old.display().to_string());
    lock.release(&places)?;
    Ok(report)
}

/// Checks all preconditions without changing anything; returns one line about what an apply would do.
///
/// # Errors
/// If a precondition does not hold.
pub fn preview(plan: &InstallPlan, options: &ApplyOptions) -> Result<String, ApplyError> {
    let places = ApplyPaths::of(options.venv)?;
    let lock = Lock::take(&places)?;
    let programs = Programs::new(options.uv, &lock);
    let found = preconditions::check(plan, options, &places, &programs, false);
    // The work of an interrupted apply is kept for the next one.
    if !Journal::open(&places).is_begun() {
        lock.release(&places)?;
    }
    found.map(|(ready, _)| ready.words())
}

/// Whether an earlier apply of this plan created the environment and every file is still as it was left, so that
/// another apply changes nothing.
pub fn is_applied(plan: &InstallPlan, venv: &Path) -> bool {
    let Ok(places) = ApplyPaths::of(venv) else { return false };
    applied(&places, &journal::plan_sha256(plan), false)
        .is_some_and(|packages| repair::verify(&places.venv, &packages).is_empty())
}

/// The packages that an earlier apply of a plan installed, if the environment still has exactly these names and
/// versions, and its interpreter. With `some`, packages may be missing.
fn applied(places: &ApplyPaths, plan_sha256: &str, some: bool) -> Option<Vec<AppliedPackage>> {
    let report = switch::record(&places.venv)?.report;
    let holds = match some {
        true => environment::has_only(&places.venv, &report.packages),
        false => environment::holds(&places.venv, &report.packages),
    };
    let whole = report.plan_sha256 == plan_sha256
        && environment::lost_python(&places.venv).is_none()
        && holds;
    whole.then(|| unfetched(&report.packages))
}

/// A running apply.
struct Work<'a> {
    plan: &'a InstallPlan,
    options: &'a ApplyOptions<'a>,
    places: &'a ApplyPaths,
    programs: &'a Programs<'a>,
    inspect: &'a dyn Inspect,
    plan_sha256: String,
}

impl Work<'_> {
    /// Reports why an environment that lacks only its interpreter is created again.
    fn report_missing_interpreter(&self, steps: &mut Steps) -> Result<(), ApplyError> {
        let venv = &self.places.venv;
        match environment::lost_python(venv).filter(|_| venv.join("pyvenv.cfg").exists()) {
            Some(lost) => steps.run("look", None, |_| {
                Ok(((), 0, format!("{lost}: the environment is created again")))
            }),
            None => Ok(()),
        }
    }

    /// Verifies the files of an environment whose names and versions match the plan.
    fn verify_files(
        &self,
        packages: Vec<AppliedPackage>,
        journal: &mut Journal,
        steps: &mut Steps,
    ) -> Result<ApplyReport, ApplyError> {
        let harm = steps.run("verify", None, |_| {
            let harm = repair::verify(&self.places.venv, &packages);
            let words = match harm.is_empty() {
                true => "every file matches its RECORD".to_owned(),
                false => format!("not as installed: {}", harm.words()),
            };
            Ok((harm, 0, words))
        })?;
        match (harm.is_empty(), self.options.repair) {
            (true, _) => self.leave(packages, steps),
            (false, false) => self.replace(journal, steps),
            (false, true) => {
                let Self { plan, options, places, programs, .. } = *self;
                let repair = repair::Repair { plan, options, places, programs };
                repair.run(&packages, &harm, steps)?;
                self.proven(&places.venv, packages, ApplyOutcome::Repaired, steps)
            }
        }
    }

    /// Examines and runs an environment that already matches the plan, and leaves it unchanged.
    fn leave(
        &self,
        packages: Vec<AppliedPackage>,
        steps: &mut Steps,
    ) -> Result<ApplyReport, ApplyError> {
        places::remove(&self.places.new)?;
        self.proven(&self.places.venv, packages, ApplyOutcome::Unchanged, steps)
    }

    /// Builds the new environment, unless an interrupted apply did, and switches to it.
    fn replace(&self, journal: &mut Journal, steps: &mut Steps) -> Result<ApplyReport, ApplyError> {
        let installed = journal.installed(&self.plan_sha256);
        let new = &self.places.new;
        let there = installed.filter(|_| environment::lost_python(new).is_none());
        let whole = there.filter(|packages| environment::holds(new, packages));
        let outcome = switch::outcome(self.places);
        let mut report = match whole {
            Some(packages) => {
                let packages = unfetched(packages);
                journal.begin(&self.plan_sha256)?;
                self.proven(&self.places.new, packages, outcome, steps)?
            }
            None => {
                let (packages, writeback) = self.install(journal, steps)?;
                // Everything in the journal is on disk, even after a power failure. It is synced while other work
                // continues.
                let done = JournalEntry::Installed { packages: packages.clone() };
                let keep = || writeback.finish().and_then(|()| journal.add(done));
                thread::scope(|scope| {
                    let kept = scope.spawn(keep);
                    let report = self.proven(&self.places.new, packages, outcome, steps);
                    kept.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                    report
                })?
            }
        };
        report.resumed = journal.resumed;
        steps.run("switch", None, |_| {
            switch::run(self.places, &report, self.options.discard_old, journal, || {
                prove::moved(&self.places.venv, self.programs)
            })?;
            Ok(((), 0, format!("{} is the new environment", self.places.venv.display())))
        })?;
        Ok(report)
    }

    /// Installs the whole plan into the new environment, after opening and judging each file. The files are being
    /// written back to disk.
    fn install(
        &self,
        journal: &mut Journal,
        steps: &mut Steps,
    ) -> Result<(Vec<AppliedPackage>, Writeback), ApplyError> {
        let Self { plan, options, places, programs, inspect, .. } = *self;
        let (ready, fetch) = steps.run("preconditions", None, |_| {
            let (ready, fetch) = preconditions::check(plan, options, places, programs, true)?;
            let words = ready.words();
            Ok(((ready, fetch), 0, words))
        })?;
        journal.begin(&self.plan_sha256)?;
        let made = places.staging();
        let writeback = Writeback::start(&made)?;
        let (fetched, mut layout) = steps.run("download", Some(ready.to_fetch), |progress| {
            download::run(&ready.files, options.cache, fetch, (&made, &plan.python), progress)
        })?;
        steps.run("judge", None, |_| judge::run(&made, inspect))?;
        steps.run("install", None, |_| {
            layout.install()?;
            Ok(((), 0, format!("created from {}", ready.python.display())))
        })?;
        let mut built = Vec::new();
        for package in &plan.packages {
            if let PackageOrigin::Build(recipe) = &package.origin {
                built.push(steps.run("build", None, |_| {
                    compile::run(self, (package, recipe), &ready, journal, &mut layout)
                })?);
            }
        }
        places::remove(&places.new)?;
        fs::rename(&made, &places.new).map_err(ApplyError::io(&places.new))?;
        // A downloaded source is recorded under the package built from it.
        let of_plan = |package: &PlannedPackage| {
            let mut all = built.iter().chain(&fetched);
            all.find(|applied| applied.name == package.name).cloned()
        };
        Ok((plan.packages.iter().filter_map(of_plan).collect(), writeback))
    }

    /// Examines and runs an environment, and reports on it.
    fn proven(
        &self,
        environment: &Path,
        packages: Vec<AppliedPackage>,
        outcome: ApplyOutcome,
        steps: &mut Steps,
    ) -> Result<ApplyReport, ApplyError> {
        // Its files are read while its interpreter starts; the interpreter's answer only counts if the files are good.
        let began = Instant::now();
        let asked = prove::ask(environment, self.programs)?;
        let findings =
            steps.run("examine", None, |_| prove::examine(environment, &packages, self.inspect))?;
        // The interpreter, which imports torch, has been running since it was started above.
        let proof = steps.run_since("prove", began, None, |_| {
            prove::run(asked, environment, self.plan, self.options.machine)
        })?;
        Ok(ApplyReport {
            schema: SCHEMA,
            venv: self.options.venv.display().to_string(),
            plan_sha256: self.plan_sha256.clone(),
            outcome,
            resumed: false,
            steps: Vec::new(),
            packages,
            proof,
            findings: moved(findings, self.places),
            kept_old: None,
        })
    }
}

/// Packages downloaded by an earlier run.
fn unfetched(packages: &[AppliedPackage]) -> Vec<AppliedPackage> {
    packages.iter().map(|package| AppliedPackage { fetched_bytes: 0, ..package.clone() }).collect()
}

/// Findings with the new environment's paths as they are after the switch.
fn moved(findings: Vec<Finding>, places: &ApplyPaths) -> Vec<Finding> {
    let (from, to) = (places.new.display().to_string(), places.venv.display().to_string());
    let text = |text: String| text.replace(&from, &to);
    let evidence = |it: Evidence| Evidence { what: text(it.what), source: text(it.source) };
    let finding = |it: Finding| Finding {
        title: text(it.title),
        evidence: it.evidence.into_iter().map(evidence).collect(),
        cause: text(it.cause),
        fix: it.fix.into_iter().map(text).collect(),
        remedy: it.remedy.into_iter().map(|step| step.map_text(&text)).collect(),
        ..it
    };
    findings.into_iter().map(finding).collect()
}
