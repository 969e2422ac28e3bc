//! `firstlight bench`: ceilings and kernels.

mod model;

use crate::Outcome;
use crate::cli::{Bench, BenchCommand, Storage};
use crate::output::Output;
use crate::progress::Progress;
use crate::python;
use crate::run_folder::write_atomically;
use ::bench::{Plan, Size, Step, Sweep};
use anyhow::Context;
use facts::{BackendKind, BaselineReport, BenchReport};
use kernels::DType;
use probe::{Options, Source};
use report::{
    BENCH_FILE, SAMPLES_FILE, baseline, baselines, bench_csv, bench_pictures, branches_csv,
    samples_csv, terminal,
};
use serde::Serialize;
use std::path::Path;
use verify::Peers;

pub(super) fn run(arguments: &Bench, output: &Output) -> anyhow::Result<Outcome> {
    if let Some(BenchCommand::Model(arguments)) = &arguments.command {
        return model::run(arguments, output);
    }
    if let Some(file) = &arguments.tune {
        return tune(file, output);
    }
    if arguments.branches {
        return branches(arguments, output);
    }
    let name = |name: &String| if name == "conv" { "conv1d".to_owned() } else { name.clone() };
    let mut plan = Plan {
        names: arguments.names.iter().map(name).collect(),
        backend: arguments.backend.into(),
        size: size(arguments),
        reference: arguments.reference,
        sweep: sweep(&arguments.sweep),
    };
    if let Some(name) = &arguments.baseline {
        of_baseline(&mut plan, name);
    }
    let backend = BackendKind::from(arguments.backend);
    let mut python =
        python::start(arguments.peers.venv.as_deref(), &arguments.peers.choice, Some(backend))?;
    let peers = python.as_mut().map(python::Environment::peers_to_time);
    // Asking for the name opens the device: only where something is named after it.
    let folder = arguments.output.as_deref().map(|folder| (folder, device_name(backend)));
    let mut saved = Ok(());
    let report = measure(&plan, peers, |report, _| {
        // After each workload: a long run that is stopped leaves what it measured.
        if let (Some((folder, device)), Ok(())) = (&folder, &saved) {
            saved = save(folder, report, device);
        }
    })?;
    saved?;
    if let Some((folder, device)) = &folder {
        save(folder, &report, device)?;
    }
    let beside = arguments.baseline.as_deref().and_then(|name| baseline(&report, name));
    output.either(&Shown { report: &report, baseline: beside.as_ref() }, |style| {
        let shown = beside.as_ref().map(|beside| terminal::baseline(beside, style));
        terminal::bench(&report, style)
            + &shown.map_or_else(String::new, |text| format!("\n{text}"))
    })?;
    // A kernel that may not be timed failed its check.
    Ok(if report.not_timed.is_empty() { Outcome::Good } else { Outcome::Bad })
}

/// What `bench --json` prints.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    report: &'a BenchReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<&'a BaselineReport>,
}

/// The sweep of a baseline, where the arguments name neither ops nor sizes.
fn of_baseline(plan: &mut Plan, name: &str) {
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

/// Writes a run's tables and pictures into a folder.
fn save(folder: &Path, report: &BenchReport, device: &str) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    write_atomically(&folder.join(BENCH_FILE), bench_csv(report).as_bytes())?;
    write_atomically(&folder.join(SAMPLES_FILE), samples_csv(report).as_bytes())?;
    for picture in bench_pictures(report, device) {
        let file = |kind: &str| folder.join(format!("{}.{kind}", picture.name));
        write_atomically(&file("svg"), picture.svg.as_bytes())?;
        let png = picture.png().map_err(anyhow::Error::msg);
        write_atomically(&file("png"), &png.with_context(|| format!("drawing {}", picture.name))?)?;
    }
    Ok(())
}

/// Times NSA's decoding branch by branch.
fn branches(arguments: &Bench, output: &Output) -> anyhow::Result<Outcome> {
    let report = ::bench::branches(arguments.backend.into(), size(arguments))?;
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

/// Writes the choice table that measurements here give.
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

/// The GPU, or the processor's model.
fn device_name(backend: BackendKind) -> String {
    let gpu = match device::open(backend) {
        Ok(device) => device.capabilities().cuda.as_ref().map(|cuda| cuda.name.clone()),
        Err(_) => None,
    };
    gpu.unwrap_or_else(|| {
        let options = Options { source: Source::live(), site_packages: Vec::new() };
        probe::machine(&options).cpu.model.map_or_else(|| backend.to_string(), |model| model.value)
    })
}

/// The sweep that the arguments name, with defaults for what they leave out; `None` for the listed cases.
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

/// Runs a bench with progress; `each` sees what there is after each workload, and what it was.
pub(super) fn measure(
    plan: &Plan,
    peers: Option<Peers<'_>>,
    mut each: impl FnMut(&BenchReport, &str),
) -> anyhow::Result<BenchReport> {
    let progress = Progress::start("bench");
    let mut at = String::new();
    let report = ::bench::run(plan, peers, |step| match step {
        Step::Begins { case, peer: None, .. } => {
            case.clone_into(&mut at);
            progress.step(at.clone());
        }
        Step::Begins { case, peer: Some(peer), left } => {
            let left = left.map_or_else(String::new, |left| {
                format!(", {:.0} s left for installed kernels of this op", left.as_secs_f64())
            });
            progress.say(format!("{case}: {peer}{left}"));
        }
        Step::Done(report) => each(report, &at),
    })?;
    Ok(report)
}
