//! `firstlight bench model`: the speed of a model, after its engine was compared with the reference.

mod peers;

use self::peers::PeerComparison;
use super::device_name;
use crate::Outcome;
use crate::backend::{self, DeviceNotice};
use crate::cli::{BenchModel, DriverTimeout, Environment};
use crate::commands::doctor;
use crate::failure::Failure;
use crate::loading;
use crate::output::Output;
use crate::progress::Progress;
use crate::rank_processes::{RankProcesses, first_of};
use crate::redact::Redaction;
use crate::run_folder::{self, RunFolder};
use device::Device;
use facts::CompactSort;
use facts::{BackendKind, DoctorReport, ModelSpeedReport, ParityReport, SCHEMA, Status};
use models::{
    Architecture, Capacity, Config, LargestStep, ModelError, ModelSource, OpenRequest, Sampling,
    SpeedTest, Storage, VerifiedEngine, measure, open,
};
use report::{
    MODEL_SPEED_FILE, MODEL_SPEED_TABLE, PARITY_FILE, Run, model_speed_csv, parity_csv, run_report,
    terminal,
};
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

pub(super) fn run(arguments: &BenchModel, output: &Output) -> anyhow::Result<Outcome> {
    arguments.output.as_deref().map(run_folder::check_creatable).transpose()?;
    let place = first_of(arguments.split, arguments.backend)?;
    let mut source = source(arguments)?;
    let architecture = source.open()?.with_scan_states(arguments.states.held())?.architecture;
    let part = architecture.shard(place).map_err(ModelError::from)?;
    let tests = tests(arguments, part.context);
    let device_notice = choose(arguments, &tests, &part)?;
    if !output.json {
        output.text(&device_notice.text(output))?;
    }
    let mut folder = match &arguments.output {
        Some(path) => Some(TimedFolder::create(path)?),
        None => None,
    };
    let progress = Progress::start("bench model");
    let backend = device_notice.backend();
    let mut contest = PeerComparison::start(arguments, backend, &mut source)?;
    let other_ranks = RankProcesses::start(arguments.split.tp, backend)?;
    let other_ranks = other_ranks.as_ref();
    let subject = Subject {
        source: &source,
        architecture: &architecture,
        backend,
        other_ranks,
        tests: &tests,
    };
    let mut report = timed(arguments, &subject, contest.as_mut(), &progress)?;
    // The engine and its memory have been freed.
    if let Some(contest) = contest.filter(|_| !report.speeds.is_empty()) {
        contest.run(arguments, &tests, &progress, &mut report)?;
    }
    drop(progress);
    if let Some(folder) = &mut folder {
        folder.write(&report)?;
    }
    let shown = JsonReport { device: &device_notice, report: &report };
    output.either(&shown, |style| terminal::model_speed(&report, style))?;
    let bad = |status| matches!(status, Status::Fail | Status::Fallback);
    let good = report.not_timed.is_empty() && !report.checks.iter().any(|row| bad(row.status));
    Ok(if good { Outcome::Good } else { Outcome::Bad })
}

/// The output of `bench model --json`.
#[derive(Serialize)]
struct JsonReport<'a> {
    device: &'a DeviceNotice,
    #[serde(flatten)]
    report: &'a ModelSpeedReport,
}

/// The model to verify and time, and its device.
struct Subject<'a> {
    source: &'a ModelSource,
    architecture: &'a Architecture,
    backend: BackendKind,
    /// The ranks of a tensor-parallel model.
    other_ranks: Option<&'a RankProcesses>,
    tests: &'a [SpeedTest],
}

/// The tests of a model without `--tests`.
const DEFAULT_TESTS: [SpeedTest; 4] = [
    SpeedTest { decode: false, tokens: 512, depth: 0 },
    SpeedTest { decode: false, tokens: 4096, depth: 0 },
    SpeedTest { decode: true, tokens: 128, depth: 0 },
    SpeedTest { decode: true, tokens: 128, depth: 8192 },
];

/// The tests that were named, or the default ones that the context allows; a notice names the others.
fn tests(arguments: &BenchModel, context: usize) -> Vec<SpeedTest> {
    if !arguments.tests.is_empty() {
        return arguments.tests.clone();
    }
    let fits = |test: &SpeedTest| test.depth + test.tokens <= context;
    let (fitting, long): (Vec<SpeedTest>, Vec<SpeedTest>) =
        DEFAULT_TESTS.into_iter().partition(fits);
    if fitting.is_empty() {
        // Refused with the context.
        return long;
    }
    if !long.is_empty() {
        let names: Vec<String> = long.iter().map(SpeedTest::to_string).collect();
        let names = names.join(", ");
        let notice = format!("notice: not timed, beyond the model's context of {context}: {names}");
        let _ = writeln!(std::io::stderr(), "{notice}");
    }
    fitting
}

/// The source of the weights: the model's folder, or random.
fn source(arguments: &BenchModel) -> anyhow::Result<ModelSource> {
    if !arguments.random {
        return Ok(ModelSource::Folder(models::locate(&arguments.model)?));
    }
    let path = arguments.model.join("config.json");
    let config = match path.exists() {
        true => Config::parse(&path.display().to_string(), &models::read_text(&path)?)?,
        false => models::shape(&arguments.model.display().to_string())?,
    };
    let config = match arguments.layers {
        Some(layers) => config.first_layers(layers)?,
        None => config,
    };
    let config = match arguments.weights {
        Some(weights) => weights.of(config)?,
        None => config,
    };
    Ok(ModelSource::Random { config, seed: 0 })
}

/// Capacity for the longest test, and the largest step.
fn room(
    arguments: &BenchModel,
    tests: &[SpeedTest],
    device: &Device,
) -> anyhow::Result<(Capacity, LargestStep)> {
    let longest =
        |of: fn(SpeedTest) -> usize| tests.iter().map(|test| of(*test)).max().unwrap_or(0);
    let sequences = arguments.sequences as usize;
    let chunk = models::engine_kind(device)?.chunk;
    let prompts = sequences.saturating_mul(longest(SpeedTest::prompt));
    let step = LargestStep { tokens: chunk.min(prompts).max(sequences), logits: sequences };
    Ok((Capacity { sequences, tokens: longest(|test| test.depth + test.tokens) }, step))
}

/// Refuses tests beyond the model's context, or any device's memory, before anything is verified or loaded.
fn choose(
    arguments: &BenchModel,
    tests: &[SpeedTest],
    architecture: &Architecture,
) -> anyhow::Result<DeviceNotice> {
    let context = architecture.context;
    let fit = |device: &Device| {
        let storage = arguments.dtype.into();
        loading::fit(architecture, device, storage, room(arguments, tests, device)?).map(|_| ())
    };
    match tests.iter().find(|test| test.depth + test.tokens > context) {
        None => Ok(backend::begin(arguments.backend).end(fit)?.device_notice),
        Some(test) => Err(Failure::hinted(
            format!(
                "{test} takes {} tokens, the model's context is {context}",
                test.depth + test.tokens
            ),
            "name shorter tests with --tests",
        )),
    }
}

/// Verifies the engine, and runs the tests if it passed.
fn timed(
    arguments: &BenchModel,
    subject: &Subject<'_>,
    contest: Option<&mut PeerComparison>,
    progress: &Progress,
) -> anyhow::Result<ModelSpeedReport> {
    let Subject { source, architecture, backend, other_ranks, tests } = *subject;
    let storage = Storage::from(arguments.dtype);
    let sequences = arguments.sequences as usize;
    let name = arguments.model.file_name().unwrap_or(arguments.model.as_os_str());
    let name = name.to_string_lossy().into_owned();
    progress.step("comparing the engine with float32".to_owned());
    let mut lengths: Vec<usize> = tests.iter().map(|test| test.prompt()).collect();
    lengths.compact_sort();
    lengths.dedup();
    let ranks = other_ranks.map(|other_ranks| &other_ranks.ranks);
    let types = (storage, arguments.states.held());
    let found = models::verify(&name, source, backend, types, sequences, &lengths, ranks)?;
    let mut report = ModelSpeedReport {
        schema: SCHEMA,
        model: name,
        family: architecture.family.to_owned(),
        random: arguments.random,
        layers: architecture.layers.len() as u64,
        parameters: architecture.params.count(),
        weights_per_token: architecture.weights_per_token(),
        backend,
        device: device_name(backend),
        dtype: storage.as_str().to_owned(),
        states: arguments.states.chosen().map(str::to_owned),
        sequences: sequences as u64,
        load_seconds: None,
        checks: found.rows.clone(),
        speeds: Vec::new(),
        not_timed: Vec::new(),
    };
    match found.passed() {
        Some(verified) => {
            time(arguments, subject, verified, contest, progress, &mut report)?;
        }
        None => {
            let words = "its engine disagrees with float32, so it is not timed";
            report.not_timed.push(words.to_owned());
        }
    }
    Ok(report)
}

/// Times each test on the whole model.
fn time(
    arguments: &BenchModel,
    subject: &Subject<'_>,
    verified: VerifiedEngine<'_>,
    mut contest: Option<&mut PeerComparison>,
    progress: &Progress,
    report: &mut ModelSpeedReport,
) -> anyhow::Result<()> {
    let (storage, sequences) = (arguments.dtype.into(), arguments.sequences as usize);
    let sampling = Sampling {
        temperature: arguments.temperature,
        top_p: arguments.top_p,
        ..Sampling::default()
    };
    sampling.check()?;
    progress.step("loading".to_owned());
    let start = Instant::now();
    let device = backends::open(report.backend)?;
    let model = subject.source.open()?.with_scan_states(arguments.states.held())?;
    let room = room(arguments, subject.tests, &device)?;
    let mut engine = match subject.other_ranks {
        Some(RankProcesses { ranks, .. }) => {
            let opening = OpenRequest::new(subject.source, report.backend, storage, room);
            ranks.open(model.part(ranks.place())?, device, &opening)?
        }
        None => open(model, device, storage, room.0)?,
    };
    report.load_seconds = Some(start.elapsed().as_secs_f64());
    for test in subject.tests {
        progress.step(test.to_string());
        let repeats = arguments.repeats as usize;
        let speed = measure(&mut *engine, verified, storage, *test, sequences, repeats, &sampling);
        match speed {
            Ok(speed) => {
                report.speeds.push(speed);
                if let Some(contest) = contest.as_mut() {
                    contest.listen(&mut *engine, *test, sequences)?;
                }
            }
            Err(why) => report.not_timed.push(why.to_string()),
        }
    }
    Ok(())
}

/// The run folder of a timed model.
struct TimedFolder {
    folder: RunFolder,
    doctor: DoctorReport,
    since: Instant,
}

impl TimedFolder {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let since = Instant::now();
        let nothing = Environment { venv: None, waiting: DriverTimeout { wait: None } };
        let doctor = doctor::examine(&nothing)?;
        let folder = doctor::begin(Some(path), &doctor, since, Redaction::from_environment())?;
        Ok(Self { folder, doctor, since: Instant::now() })
    }

    fn write(&mut self, report: &ModelSpeedReport) -> anyhow::Result<()> {
        let Self { folder, doctor, since } = self;
        let parity = ParityReport { schema: SCHEMA, rows: report.checks.clone() };
        let against = "the engine compared with float32 on the processor";
        folder.artefact(PARITY_FILE, against, &parity_csv(&parity))?;
        let text = serde_json::to_string_pretty(report)? + "\n";
        folder.artefact(MODEL_SPEED_FILE, "how fast the model runs", &text)?;
        folder.artefact(MODEL_SPEED_TABLE, "the timings as a table", &model_speed_csv(report))?;
        report.not_timed.iter().for_each(|why| folder.note(&format!("not timed: {why}")));
        let (timed, not) = (report.speeds.len(), report.not_timed.len());
        folder.stage("bench model", *since, format!("{timed} tests timed, {not} not"))?;
        folder.finish(|manifest| {
            run_report(&Run {
                manifest,
                doctor,
                parity: Some(&parity),
                bench: None,
                model_speed: Some(report),
                gpus: None,
            })
        })
    }
}
