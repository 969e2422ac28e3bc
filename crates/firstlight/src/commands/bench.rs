//! `firstlight bench`: ceilings and kernels.

mod fabric;
mod model;

use super::ask_nvml::live;
use crate::backend::{self, DeviceNotice};
use crate::cli::{Bench, BenchCommand, DriverTimeout, Storage};
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;
use crate::python::{self, Environment, PeerResult};
use crate::run_folder::{self, write_atomically};
use crate::{Outcome, destination};
use anyhow::Context;
use bench::{BenchPlan, Size, Step, Sweep};
use facts::{BackendKind, BaselineReport, BenchReport, ConditionsReport, SCHEMA, Status};
use ops::DType;
use probe::{ProbeOptions, Source};
use report::{
    BENCH_FILE, CONDITIONS_FILE, SAMPLES_FILE, baseline, baselines, bench_csv, bench_pictures,
    branches_csv, samples_csv, terminal,
};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;
use verify::{MatrixResults, Peers};

pub(super) fn run(arguments: &Bench, output: &Output) -> anyhow::Result<Outcome> {
    match &arguments.command {
        Some(BenchCommand::Model(arguments)) => return model::run(arguments, output),
        Some(BenchCommand::Fabric(arguments)) => return fabric::run(arguments, output),
        None => {}
    }
    if let Some(folder) = &arguments.output {
        destination::folder(folder)?;
        destination::room(folder, run_folder::RUN_BYTES)?;
    }
    if let Some(file) = &arguments.tune {
        destination::file(file)?;
        return tune(file, output);
    }
    if arguments.branches {
        return branches(arguments, output);
    }
    let name = |name: &String| if name == "conv" { "conv1d".to_owned() } else { name.clone() };
    let device = backend::choose(arguments.backend)?.device_notice;
    let backend = device.backend();
    let mut plan = BenchPlan {
        names: arguments.names.iter().map(name).collect(),
        backend,
        size: size(arguments),
        reference: arguments.reference || (arguments.full && backend == BackendKind::Cpu),
        sweep: sweep(&arguments.sweep),
        until: None,
    };
    if let Some(name) = &arguments.baseline {
        of_baseline(&mut plan, name);
    }
    known(&plan.names)?;
    fits(&plan)?;
    let mut python = python::start(
        arguments.peers.venv.as_deref(),
        &arguments.peers.choice,
        &timed_ops(&plan.names),
        Some(backend),
    )?;
    let ops = timed_ops(&plan.names);
    if python.as_ref().is_some_and(|python| !python.has_kernels_of(&ops)) {
        return Err(super::verify::no_kernels(&plan.names));
    }
    print_device(&device, output)?;
    let peers = python.as_mut().map(python::Environment::peers_to_time);
    // Getting the name opens the device, so it is done only for output files that are named after it.
    let folder = arguments.output.as_deref().map(|folder| (folder, device_name(backend)));
    let mut saved = Ok(());
    let mut report = measure(&plan, &MatrixResults::without_matrix(), peers, |report, _| {
        // Saved after each workload, so that an interrupted run leaves its measurements.
        if let (Some((folder, device)), Ok(())) = (&folder, &saved) {
            saved = save(folder, report, device);
        }
    })?;
    saved?;
    if let Some(python) = &python {
        let unmet = unmet(python, &report);
        report.not_timed.extend(unmet);
    }
    if let Some((folder, device)) = &folder {
        save(folder, &report, device)?;
    }
    let beside = arguments.baseline.as_deref().and_then(|name| baseline(&report, name));
    output.either(
        &JsonReport { device: &device, report: &report, baseline: beside.as_ref() },
        |style| {
            let shown = beside.as_ref().map(|beside| terminal::baseline(beside, style));
            terminal::bench(&report, style)
                + &shown.map_or_else(String::new, |text| format!("\n{text}"))
        },
    )?;
    // A kernel that may not be timed has failed its check.
    Ok(if report.not_timed.is_empty() { Outcome::Good } else { Outcome::Bad })
}

/// Prints the device.
fn print_device(device: &DeviceNotice, output: &Output) -> anyhow::Result<()> {
    if output.json { Ok(()) } else { output.text(&device.text(output)) }
}

/// The output of `bench --json`.
#[derive(Serialize)]
struct JsonReport<'a> {
    device: &'a DeviceNotice,
    #[serde(flatten)]
    report: &'a BenchReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<&'a BaselineReport>,
}

/// The sweep of a baseline, if the arguments name neither ops nor sizes.
fn of_baseline(plan: &mut BenchPlan, name: &str) {
    let Some(shape) = baselines().remove(name) else { return };
    if plan.names.is_empty() {
        plan.names = vec![shape.op];
    }
    plan.sweep.get_or_insert_with(|| Sweep {
        batch: shape.batch as usize,
        heads: shape.heads as usize,
        tokens: vec![shape.tokens as usize],
        dims: shape.channels.iter().map(|channels| *channels as usize).collect(),
        causal: false,
        dtype: DType::Bf16,
    });
}

/// Writes a run's tables and plots into a folder.
fn save(folder: &Path, report: &BenchReport, device: &str) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    write_atomically(&folder.join(BENCH_FILE), bench_csv(report).as_bytes())?;
    write_atomically(&folder.join(SAMPLES_FILE), samples_csv(report).as_bytes())?;
    if !report.conditions.is_empty() {
        write_atomically(&folder.join(CONDITIONS_FILE), conditions_json(report)?.as_bytes())?;
    }
    for picture in bench_pictures(report, device) {
        let file = |kind: &str| folder.join(format!("{}.{kind}", picture.name));
        write_atomically(&file("svg"), picture.svg.as_bytes())?;
        let png = picture.png().map_err(anyhow::Error::msg);
        write_atomically(&file("png"), &png.with_context(|| format!("drawing {}", picture.name))?)?;
    }
    Ok(())
}

/// The content of [`CONDITIONS_FILE`].
pub(super) fn conditions_json(report: &BenchReport) -> anyhow::Result<String> {
    let conditions = ConditionsReport { schema: SCHEMA, backends: report.conditions.clone() };
    Ok(serde_json::to_string_pretty(&conditions)? + "\n")
}

/// Times NSA's decoding by branch.
fn branches(arguments: &Bench, output: &Output) -> anyhow::Result<Outcome> {
    let device = backend::choose(arguments.backend)?.device_notice;
    print_device(&device, output)?;
    let report = ::bench::branches(device.backend(), size(arguments))?;
    if let Some(folder) = &arguments.output {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        write_atomically(&folder.join(BRANCHES_FILE), branches_csv(&report).as_bytes())?;
    }
    output.either(&report, |style| terminal::branches(&report, style))?;
    Ok(if report.not_timed.is_empty() { Outcome::Good } else { Outcome::Bad })
}

/// The table of [`branches`] in a folder.
const BRANCHES_FILE: &str = "branches.csv";

fn size(arguments: &Bench) -> Size {
    if arguments.quick { Size::Quick } else { Size::Standard }
}

/// Measures and writes the choice table.
fn tune(file: &Path, output: &Output) -> anyhow::Result<Outcome> {
    let progress = Progress::start("tune");
    let tuned = ::bench::tune(|row| {
        progress.step(format!("D {} {} queries {}", row.channels, row.queries, row.variant));
    })?;
    drop(progress);
    write_atomically(file, tuned.table.as_bytes())?;
    let mut text = String::from("variant\tqueries\tchannels\tmillis\n");
    for row in &tuned.measured {
        text += &format!("{}\t{}\t{}\t{:.4}\n", row.variant, row.queries, row.channels, row.millis);
    }
    output.text(&format!("{text}\nwrote {}\n", file.display()))?;
    for why in &tuned.not_timed {
        output.text(&format!("not timed: {why}\n"))?;
    }
    Ok(if tuned.not_timed.is_empty() { Outcome::Good } else { Outcome::Bad })
}

/// The ops of the named workloads.
fn timed_ops(names: &[String]) -> Vec<&str> {
    match names.is_empty() || names.iter().any(|name| name == "decode") {
        true => ops::OPS.iter().map(|op| op.spec().name).collect(),
        false => names.iter().map(String::as_str).collect(),
    }
}

/// A sentence for each name on the command line without a kernel that ran.
fn unmet(python: &Environment, report: &BenchReport) -> Vec<String> {
    let timed = report.rows.iter().filter(|row| row.peer.is_some());
    let timed =
        timed.map(|row| PeerResult { peer: &row.variant, status: Status::Pass, reason: "" });
    let late = report.not_run.iter();
    let late =
        late.map(|left| PeerResult { peer: &left.peer, status: Status::NotRun, reason: &left.why });
    let refused = |lines: &'_ [String], status| {
        let seen = lines.iter().filter_map(move |line| {
            // `CASE: PEER: STATUS, REASON`
            let (_, rest) = line.split_once(": ")?;
            let (peer, rest) = rest.split_once(": ")?;
            let (_, reason) = rest.split_once(", ")?;
            Some((peer.to_owned(), status, reason.to_owned()))
        });
        seen.collect::<Vec<_>>()
    };
    let failed = refused(&report.not_timed, Status::Fail);
    let absent = refused(&report.not_applicable, Status::NotApplicable);
    let others = failed.iter().chain(&absent);
    let others = others.map(|(peer, status, reason)| PeerResult { peer, status: *status, reason });
    python.unmet(timed.chain(late).chain(others)).into_iter().map(|(_, why)| why).collect()
}

/// Refuses a name that is neither an op nor a group of workloads.
fn known(names: &[String]) -> anyhow::Result<()> {
    let known: Vec<&str> = ops::OPS.iter().map(|op| op.spec().name).chain(["decode"]).collect();
    match names.iter().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(Failure::hinted(
            format!("there is no benchmark `{name}`"),
            format!("name some of {}", known.join(", ")),
        )),
    }
}

/// Refuses a sweep whose tensors do not fit in memory, before sizes are multiplied that could overflow.
fn fits(plan: &BenchPlan) -> anyhow::Result<()> {
    let Some(sweep) = &plan.sweep else { return Ok(()) };
    let largest = |sizes: &[usize]| sizes.iter().copied().max().unwrap_or(1) as u128;
    let (tokens, dims) = (largest(&sweep.tokens), largest(&sweep.dims));
    // Queries, keys, values and the output, at most float32.
    let sides = [sweep.batch as u128, sweep.heads as u128, tokens, dims, 4 * 4];
    let bytes = sides.iter().fold(1_u128, |bytes, side| bytes.saturating_mul(*side));
    let memory = probe::memory(&Source::live());
    match memory.available_bytes.filter(|free| bytes > u128::from(free.value)) {
        None => Ok(()),
        Some(free) => Err(Failure::hinted(
            format!(
                "a sweep of {} sequences, {} heads, {tokens} tokens and {dims} channels needs at least {bytes} bytes, {} are free ({})",
                sweep.batch, sweep.heads, free.value, free.source
            ),
            "name smaller sizes with --B, --H, --N or --D",
        )),
    }
}

/// The GPU, or the processor's model.
fn device_name(backend: BackendKind) -> String {
    let gpu = match backends::open(backend) {
        Ok(device) => device.capabilities().name.clone(),
        Err(_) => None,
    };
    gpu.unwrap_or_else(|| {
        let options = ProbeOptions { source: Source::live(), site_packages: Vec::new() };
        probe::machine(&options).cpu.model.map_or_else(|| backend.to_string(), |model| model.value)
    })
}

/// The sweep of the arguments, with defaults; `None` for the listed cases.
fn sweep(arguments: &crate::cli::Sweep) -> Option<Sweep> {
    let crate::cli::Sweep { batch, heads, tokens, dims, causal, dtype } = arguments;
    let listed = batch.is_none()
        && heads.is_none()
        && tokens.is_empty()
        && dims.is_empty()
        && !causal
        && dtype.is_none();
    if listed {
        return None;
    }
    let or = |sizes: &[usize], default| match sizes {
        [] => vec![default],
        sizes => sizes.to_vec(),
    };
    Some(Sweep {
        batch: batch.unwrap_or(1),
        heads: heads.unwrap_or(32),
        tokens: or(tokens, 8192),
        dims: or(dims, 128),
        causal: *causal,
        dtype: match dtype {
            Some(Storage::F32) => DType::F32,
            Some(Storage::F16) => DType::F16,
            Some(Storage::Bf16) | None => DType::Bf16,
        },
    })
}

/// Runs a bench with progress; `each` gets the results so far after each workload, and its name.
pub(super) fn measure(
    plan: &BenchPlan,
    standing: &MatrixResults,
    peers: Option<Peers<'_>>,
    mut each: impl FnMut(&BenchReport, &str),
) -> anyhow::Result<BenchReport> {
    let progress = Progress::counted(&format!("bench {}", plan.backend), ::bench::count(plan));
    progress.set_step("ceilings".to_owned());
    let mut at = String::new();
    let (on_gpu, began) = (plan.backend == BackendKind::Cuda, Instant::now());
    // A new source each time: the time limit of one source for a driver would be over before the last kernel is timed.
    let moment = || probe::moment(&live(&DriverTimeout { wait: None }), on_gpu);
    let (before, ticks) = moment();
    let mut report = ::bench::run(plan, standing, peers, |step| match step {
        Step::Begins { case, peer: None, .. } => {
            case.clone_into(&mut at);
            progress.step(at.clone());
        }
        Step::Begins { case, peer: Some(peer), left } => {
            let left = left.map_or_else(String::new, |left| {
                format!(", {:.0} s remain for installed kernels of this op", left.as_secs_f64())
            });
            progress.set_step(format!("{case}: {peer}{left}"));
        }
        Step::Ceilings => progress.set_step("the ceilings, measured again".to_owned()),
        Step::Done(report) => each(report, &at),
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let (after, later) = moment();
    for conditions in &mut report.conditions {
        conditions.before = before.clone();
        conditions.after = after.clone();
        conditions.meanwhile = probe::meanwhile(ticks, later, seconds);
    }
    Ok(report)
}
