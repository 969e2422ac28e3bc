//! `firstlight check`: probes, diagnoses, verifies, times and reports.

mod certify;
mod cut_short;
mod emit;
mod estimate;
mod finished_rows;
mod fleet;
mod group;
mod left_out;
mod models;
mod part;
mod siblings;
mod side_by_side;
mod stack;

use super::check_gpu::{bench_plan, test_memory, tier, to_time, until};
use super::gpu_group::chosen;
use super::{bench, doctor, report as run_reports, verify};
use crate::Outcome;
use crate::backend::{self, DeviceNotice};
use crate::cli::{BackendArg, Check, DriverTimeout, Environment, FleetChoice};
use crate::cores;
use crate::destination;
use crate::output::Output;
use crate::progress::Progress;
use crate::python;
use crate::redact::Redaction;
use crate::run_folder;
use crate::sarif;
use crate::stopping;
use ::bench::PrecompiledPeers;
use ::verify::{Peers, Session};
use anyhow::Context;
use certify::Signer;
use estimate::{Estimate, available_cores};
use facts::CompactSort;
use facts::{
    BackendKind, BenchReport, DoctorReport, GpusReport, ParityReport, ParityRow, PyEnv,
    RunManifest, SCHEMA, Status,
};
use finished_rows::FinishedRows;
use report::{
    BENCH_FILE, CONDITIONS_FILE, PARITY_FILE, Run, SAMPLES_FILE, Verdict, bench_csv, parity_csv,
    run_report, samples_csv, terminal,
};
use serde::Serialize;
use siblings::Sibling;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// The output of `check --json`.
#[derive(Serialize)]
struct Summary<'a> {
    schema: u32,
    run: String,
    verdict: &'static str,
    devices: &'a [DeviceNotice],
    manifest: &'a RunManifest,
    findings: &'a [facts::Finding],
    parity: &'a ParityReport,
    bench: &'a BenchReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpus: Option<&'a GpusReport>,
}

pub(super) fn run(arguments: &Check, output: &Output) -> anyhow::Result<Outcome> {
    if let Some(run) = &arguments.report {
        return run_reports::of_run(run, arguments.redact, arguments.output.as_deref(), output);
    }
    verify::known(&arguments.op)?;
    let FleetChoice { fleet, emit, until, .. } = &arguments.fleet;
    match (emit, fleet, until, arguments.budget) {
        (Some(kind), ..) => emit::run(*kind, arguments, output),
        (_, Some(out), None, _) => fleet::run(out, arguments, output),
        (_, None, None, Some(seconds)) => {
            part::within(Duration::from_secs(seconds), arguments, output)
        }
        (_, _, Some(_), _) => {
            part::end_with_its_parent();
            whole(arguments, output)
        }
        (None, None, None, None) => whole(arguments, output),
    }
}

/// The whole check of this machine.
fn whole(arguments: &Check, output: &Output) -> anyhow::Result<Outcome> {
    chosen::only_named(&arguments.gpu, &patient(&arguments.environment, None).waiting)?;
    let since = Instant::now();
    let until = arguments.fleet.until.map(until);
    let wanted_folder = arguments.fleet.part.as_deref().or(arguments.output.as_deref());
    run_folder::check_creatable(wanted_folder.unwrap_or(Path::new(run_folder::DEFAULT)))?;
    arguments.sarif.as_deref().map(destination::file).transpose()?;
    let signer = Signer::of(arguments)?;
    // A model that cannot be read is reported at once, before minutes of work.
    let wanted = arguments.wanted.model.as_deref().map(doctor::model::read).transpose()?;
    let reading = Progress::start("reading the machine and its environments");
    // This process has not started other work yet.
    let available = available_cores();
    let mut python = Installed::start(arguments)?;
    let choice = backend::begin(BackendArg::Auto);
    let mut doctor = doctor::examine(&patient(&arguments.environment, until))?;
    drop(reading);
    if let Some(wanted) = wanted {
        doctor::model::judge(&wanted, &arguments.wanted, &mut doctor)?;
    }
    doctor.matrix = Some(diagnose::matrix(&doctor.machine));
    // A driver that did not answer the doctor may never answer, which must not hold back the findings.
    let silent = doctor.machine.driver.as_ref().is_some_and(|driver| driver.no_answer.is_some());
    let found = (!output.json).then(|| terminal::doctor(&doctor, output.style()));
    if let Some(found) = found.as_ref().filter(|_| silent) {
        output.text(found)?;
    }
    let devices = backend::every_of(choice)?;
    let backends: Vec<BackendKind> = devices.iter().map(DeviceNotice::backend).collect();
    let estimate = Estimate::of(arguments, &backends, python.peers().is_some(), available);
    if let Some(found) = &found {
        let words = format!("{}: {}", report::headline(&doctor.machine), estimate.words(&backends));
        output.text(&terminal::paragraph(output.style(), &words))?;
        output.text(&(backend::lines(&devices, output) + "\n"))?;
        if !silent {
            output.text(found)?;
        }
    }
    // Each further GPU is checked by a separate process, with as many cores as this one.
    let on_gpu = backends.contains(&BackendKind::Cuda);
    let gpus = if on_gpu { chosen::working(&doctor.machine) } else { Vec::new() };
    let all_cores = cores::allowed();
    let shares = cores::shares(&all_cores, gpus.len());
    let redaction = redaction(arguments, &doctor)?;
    let mut doctor = redaction.of_doctor(&doctor);
    let begun: Arc<OnceLock<(String, Arc<FinishedRows>)>> = Arc::default();
    if arguments.fleet.part.is_none() {
        let begun = Arc::clone(&begun);
        stopping::print_on_signals(move || match begun.get() {
            Some((path, rows)) => {
                let lost = rows.save().err();
                let lost = lost.map(|why| format!("\nthe last rows are not saved: {why:#}"));
                format!(
                    "interrupted: {path} is incomplete; `firstlight check --report {path}` writes a report of the finished part{}",
                    lost.unwrap_or_default()
                )
            }
            None => "interrupted: nothing was written yet".to_owned(),
        })?;
    }
    let mut folder = doctor::begin(wanted_folder, &doctor, since, redaction)?;
    // An interrupt after this point names the folder.
    let finished = Arc::new(FinishedRows::of(&folder));
    let _ = begun.set((folder.path().display().to_string(), Arc::clone(&finished)));
    if arguments.fleet.part.is_some() {
        stack::write(&doctor, until, &mut folder)?;
    }

    let since = Instant::now();
    let mut siblings = siblings::start(&gpus, &shares, arguments);
    if !siblings.is_empty() {
        if !output.json {
            output.text(&siblings::line(&siblings))?;
        }
        shares.first().into_iter().for_each(|own| cores::only(own));
    }
    let plan_of_bench = |backend| ::bench::BenchPlan {
        names: to_time(&arguments.op),
        until,
        ..bench_plan(backend, arguments.quick, arguments.full)
    };
    let later =
        python.peers().map(|peers| PrecompiledPeers::of(plan_of_bench(peers.backend), &peers));
    let ahead = later.transpose()?;
    let plan = ::verify::MatrixPlan {
        ops: arguments.op.clone(),
        backends: backends.clone(),
        tier: tier(arguments.quick, arguments.full),
        all_variants: arguments.full,
        until,
    };
    let slow = estimate.slow_notice(arguments);
    // Time of the last row of each op and backend, and of each installed kernel: it shows what the others waited for.
    let mut ends: BTreeMap<String, Instant> = BTreeMap::new();
    let mut kernels_end = Duration::ZERO;
    let (parity, timing, of_models) = std::thread::scope(|scope| {
        let ahead = ahead.map(|ahead| scope.spawn(|| ahead.run()));
        let models = models::start(scope, &backends, (arguments, until), &finished);
        let parity = verify::measure(&plan, python.peers(), slow, |row| {
            finished.add(row);
            let by = row.peer.as_ref().map_or("firstlight", |_| &row.variant);
            ends.insert(format!("{} on {} by {by}", row.op, row.backend), Instant::now());
        });
        kernels_end = since.elapsed();
        (parity, ahead.map(ScopedJoinHandle::join), models.join())
    });
    let (mut parity, standing) = parity?;
    match timing {
        Some(Ok(session)) => python.time_in(session),
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        None => {}
    }
    folder.note(&format!("kernels verified within {:.1} s", kernels_end.as_secs_f64()));
    for (what, end) in ends {
        let seconds = end.duration_since(since).as_secs_f64();
        folder.note(&format!("verified {what} within {seconds:.1} s"));
    }
    for (backend, rows, took) in of_models {
        folder.note(&format!("models verified on {backend} within {:.1} s", took.as_secs_f64()));
        parity.rows.extend(rows);
    }
    parity.rows.extend(python.unmet(&arguments.op, &doctor, &parity));
    siblings.iter_mut().for_each(|sibling| sibling.verified(since.elapsed()));
    finished.close();
    folder.artefact(
        PARITY_FILE,
        "every kernel compared with the float64 reference, and reduced models with float32",
        &parity_csv(&parity),
    )?;
    for row in parity.rows.iter().filter(|row| row.status != Status::Pass) {
        folder.note(&format!(
            "{} {} {} {}: {}",
            row.status, row.op, row.case, row.variant, row.reason
        ));
    }
    folder.manifest.coverage = Some(report::coverage(&doctor, Some(&parity)));
    folder.stage("verify", since, counted(&parity))?;

    let since = Instant::now();
    let mut bench: Option<BenchReport> = None;
    let mut memory = None;
    let mut together = group::GroupResults::default();
    siblings.iter_mut().for_each(Sibling::time);
    for backend in backends {
        let mut saved = Ok(());
        let plan = plan_of_bench(backend);
        let report = bench::measure(&plan, &standing, python.peers_to_time(), |report, done| {
            folder.note(&format!("timed {done} on {backend}"));
            if saved.is_ok() {
                saved = folder.save_log().and_then(|()| {
                    let report = joined(bench.clone(), report.clone());
                    folder.unfinished(BENCH_FILE, &bench_csv(&report))?;
                    folder.unfinished(SAMPLES_FILE, &samples_csv(&report))
                });
            }
        })?;
        saved?;
        if backend == BackendKind::Cuda {
            let first = gpus.first().map_or(0, |gpu| gpu.index);
            memory = test_memory(arguments.memory_budget, until, &report, first)?;
            siblings.iter_mut().for_each(|sibling| sibling.timed(since.elapsed()));
            cores::only(&all_cores);
            together = group::of(&gpus, &siblings, arguments, (&doctor.machine, &report, until));
            // The rest runs on the processor, which is idle otherwise.
            siblings.iter_mut().for_each(Sibling::end);
            group::notes(&together, since.elapsed()).iter().for_each(|line| folder.note(line));
        }
        bench = Some(joined(bench, report));
    }
    let bench = bench.context("no backend for timing")?;
    folder.artefact(BENCH_FILE, "ceilings and timed kernels", &bench_csv(&bench))?;
    folder.artefact(SAMPLES_FILE, "every timed sample", &samples_csv(&bench))?;
    folder.artefact(
        CONDITIONS_FILE,
        "other load on the machine during timing",
        &bench::conditions_json(&bench)?,
    )?;
    bench.not_timed.iter().for_each(|line| folder.note(&format!("not timed: {line}")));
    folder.stage(
        "bench",
        since,
        format!("{} kernels timed, {} not", bench.rows.len(), bench.not_timed.len()),
    )?;

    let first = (&parity, &bench, memory);
    let gpus = side_by_side::of(&gpus, first, together, siblings, &mut folder)?;
    if let Some(gpus) = &gpus {
        side_by_side::judge(gpus, &mut doctor, &mut folder)?;
    }
    left_out::of(&mut folder, &doctor, arguments, &python, gpus.as_ref());
    left_out::of_time(&mut folder, &parity, &bench);
    let timed_peers = timed_peers(&bench);
    if let Some(line) = &timed_peers {
        folder.note(line);
    }
    folder.finish(|manifest| {
        run_report(&record(manifest, &doctor, (&parity, &bench), gpus.as_ref()))
    })?;
    if let Some(file) = &arguments.sarif {
        sarif::write(file, &doctor.findings, Some(&parity))?;
    }
    let run = record(&folder.manifest, &doctor, (&parity, &bench), gpus.as_ref());
    let verdict = Verdict::of(&run);
    if output.json {
        output.document(&Summary {
            schema: SCHEMA,
            run: folder.path().display().to_string(),
            verdict: verdict.as_str(),
            devices: &devices,
            manifest: &folder.manifest,
            findings: &doctor.findings,
            parity: &parity,
            bench: &bench,
            gpus: gpus.as_ref(),
        })?;
    } else {
        output.text(&format!("\n{}", terminal::summary(&run, output.style())))?;
        if let Some(line) = &timed_peers {
            output.text(&format!("{line}\n"))?;
        }
        output.text(&format!("report: {}", folder.path().join("report.html").display()))?;
    }
    let cut = left_out::cut(&parity, &bench);
    // If time ran out before anything passed, nothing is known either.
    let verified = match cut && parity.failures() == 0 {
        true => Outcome::Good,
        false => verify::outcome(&parity),
    };
    let outcomes = [doctor::outcome(&doctor), verified, timed(&bench)];
    let outcome = match outcomes.contains(&Outcome::Bad) {
        true => Outcome::Bad,
        false if cut => Outcome::Unclear,
        false => Outcome::Good,
    };
    if let Some(signer) = &signer {
        let run = (&doctor, &parity, &folder.manifest);
        signer.sign(run, arguments, (outcome, cut), output)?;
    }
    Ok(outcome)
}

/// A report together with that of an earlier backend.
fn joined(earlier: Option<BenchReport>, report: BenchReport) -> BenchReport {
    match earlier {
        Some(earlier) => earlier.joined(report),
        None => report,
    }
}

/// The redaction of the run folder. The machine facts list the home folders.
fn redaction(arguments: &Check, doctor: &DoctorReport) -> anyhow::Result<Redaction> {
    let redaction = Redaction::from_environment();
    if !arguments.redact {
        return Ok(redaction);
    }
    let facts = serde_json::to_string(doctor)?;
    let command: Vec<String> = std::env::args().collect();
    let tree = std::env::current_dir().unwrap_or_default().display().to_string() + "/";
    let texts = [facts.as_str(), &command.join(" "), &tree];
    Ok(redaction.for_sharing(doctor::host(doctor), texts))
}

/// Time limit for all calls of one peer during verification; all peers together have twice that for timing.
const PEER_BUDGET: Duration = Duration::from_secs(60);

/// The kernels of the selected environment.
enum Installed {
    /// No environment was selected.
    NotNamed,
    /// They run next to firstlight's own.
    Started(Box<python::Environment>),
    /// Its files can be read, but its interpreter cannot be started, for this reason.
    Silent(String),
}

impl Installed {
    /// Starts the interpreter at once, so that an error is not reported minutes later. An environment without a working
    /// interpreter still has files to read.
    fn start(arguments: &Check) -> anyhow::Result<Self> {
        let venv = arguments.environment.venv.as_deref();
        let ops = verify::with_models(&arguments.op);
        match python::start(venv, &arguments.peers, &ops, None) {
            Ok(None) => Ok(Self::NotNamed),
            Ok(Some(environment)) => {
                // Verified, and then timed for twice as long; firstlight's own kernels use part of that time.
                let given = arguments.budget.map(|all| Duration::from_secs(all) / 6);
                let budget = given.map_or(PEER_BUDGET, |given| given.min(PEER_BUDGET));
                Ok(Self::Started(Box::new(environment.within(budget))))
            }
            Err(why) if venv.is_some() && !arguments.peers.names_any() => {
                Ok(Self::Silent(format!("{why:#}")))
            }
            Err(why) => Err(why),
        }
    }

    fn started(&mut self) -> Option<&mut python::Environment> {
        match self {
            Self::Started(environment) => Some(environment),
            Self::NotNamed | Self::Silent(_) => None,
        }
    }

    /// Failed rows for selected kernels that did not run. An environment without packages that firstlight knows has
    /// nothing to run.
    fn unmet(
        &self,
        ops: &[String],
        doctor: &DoctorReport,
        parity: &ParityReport,
    ) -> Vec<ParityRow> {
        match self {
            Self::NotNamed => Vec::new(),
            Self::Started(environment) => {
                let named = environment.names_kernels();
                match named || environment.has_listed_package() {
                    true => verify::unmet(environment, ops, parity),
                    false => Vec::new(),
                }
            }
            Self::Silent(why) => {
                let named = doctor.envs.iter().filter(|env| env.found_by == "--venv");
                let with_torch = named.filter(|env| env.torch.is_some());
                let op = verify::with_models(ops)[0];
                let row = |env: &PyEnv| {
                    let option = format!("--venv {}", env.root);
                    python::failed_row(op, BackendKind::Cpu, &option, why.clone())
                };
                with_torch.map(row).collect()
            }
        }
    }

    fn peers(&mut self) -> Option<Peers<'_>> {
        self.started().map(python::Environment::peers)
    }

    fn peers_to_time(&mut self) -> Option<Peers<'_>> {
        self.started().map(python::Environment::peers_to_time)
    }

    /// Times them in another session than the one that verified them.
    fn time_in(&mut self, session: Session) {
        if let Some(environment) = self.started() {
            environment.switch_session(session);
        }
    }
}

/// Waits longer for a driver that is slow to start, because a check takes minutes; at most a third of a limited time.
fn patient(environment: &Environment, until: Option<Instant>) -> Environment {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let most = left.map_or(30.0, |left| (left.as_secs_f64() / 3.0).clamp(2.0, 30.0));
    let wait = environment.waiting.wait.or(Some(most));
    Environment { waiting: DriverTimeout { wait }, ..environment.clone() }
}

fn record<'a>(
    manifest: &'a RunManifest,
    doctor: &'a DoctorReport,
    (parity, bench): (&'a ParityReport, &'a BenchReport),
    gpus: Option<&'a GpusReport>,
) -> Run<'a> {
    Run { manifest, doctor, parity: Some(parity), bench: Some(bench), model_speed: None, gpus }
}

fn timed(bench: &BenchReport) -> Outcome {
    if bench.not_timed.is_empty() { Outcome::Good } else { Outcome::Bad }
}

fn counted(parity: &ParityReport) -> String {
    let of = |status| parity.count(status);
    format!(
        "{} PASS, {} FAIL, {} FALLBACK, {} SKIP, {} N/A, {} NOT RUN",
        of(Status::Pass),
        of(Status::Fail),
        of(Status::Fallback),
        of(Status::Skip),
        of(Status::NotApplicable),
        of(Status::NotRun)
    )
}

/// The result of timing peers, if there were any, with the most common reasons; the report has all of them.
fn timed_peers(bench: &BenchReport) -> Option<String> {
    let timed = bench.rows.iter().filter(|row| row.peer.is_some()).count();
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    // Skipped workloads of firstlight's own kernels are listed there, too.
    for left in bench.not_run.iter().filter(|left| left.peer != "firstlight") {
        *reasons.entry(&left.why).or_default() += 1;
    }
    let left: usize = reasons.values().sum();
    let mut reasons: Vec<(&str, usize)> = reasons.into_iter().collect();
    reasons.compact_sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let said: Vec<String> =
        reasons.iter().take(3).map(|(why, count)| format!("{count}: {why}")).collect();
    let said = if said.is_empty() { String::new() } else { format!(" ({})", said.join("; ")) };
    (timed + left > 0).then(|| format!("peers: {timed} rows timed, {left} not run{said}"))
}
