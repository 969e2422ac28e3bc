//! `firstlight check-gpu`, hidden: one GPU's part of a check, in a process that sees only that GPU.

use super::{bench, verify};
use crate::Outcome;
use crate::cli::CheckGpu;
use crate::cores;
use crate::message_reader::send_message;
use ::bench::Size;
use ::verify::{MODEL, Tier};
use facts::{BackendKind, BenchReport, MemoryTest, OUT_OF_TIME, ParityReport, ParityRow, Status};
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::time::{Duration, Instant, SystemTime};

/// A message about progress, one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GpuMessage {
    Verified(ParityReport),
    Timed(Box<BenchReport>),
    Memory(MemoryTest),
}

/// The message on standard input that starts the timing, once every GPU is verified.
pub(crate) const TIME: &str = "time";

pub(super) fn run(arguments: &CheckGpu) -> anyhow::Result<Outcome> {
    cores::only(&arguments.cores);
    let until = arguments.until.map(until);
    let named = &arguments.op;
    // A broken driver is reported once, with its own message, instead of for every case.
    backends::open(BackendKind::Cuda)?;
    let plan = ::verify::MatrixPlan {
        ops: named.clone(),
        backends: vec![BackendKind::Cuda],
        tier: tier(arguments.quick, arguments.full),
        all_variants: arguments.full,
        until,
    };
    let (mut parity, standing) = verify::measure(&plan, None, None, |_| ())?;
    parity.rows.extend(families(BackendKind::Cuda, named, until, |_, _, _| ()));
    send_message(&GpuMessage::Verified(parity))?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    if line.trim() != TIME {
        // The parent has exited.
        return Ok(Outcome::Good);
    }
    let plan = ::bench::BenchPlan {
        names: to_time(named),
        until,
        ..bench_plan(BackendKind::Cuda, arguments.quick, arguments.full)
    };
    let mut report = bench::measure(&plan, &standing, None, |_, _| ())?;
    for conditions in &mut report.conditions {
        // The others belong to the sibling processes.
        for moment in [&mut conditions.before, &mut conditions.after] {
            moment.gpus.retain(|gpu| gpu.gpu == arguments.index);
        }
    }
    let memory = test_memory(arguments.memory_budget, until, &report, arguments.index)?;
    send_message(&GpuMessage::Timed(Box::new(report)))?;
    if let Some(test) = memory {
        send_message(&GpuMessage::Memory(test))?;
    }
    Ok(Outcome::Good)
}

/// Default seconds of a memory test.
const MEMORY_BUDGET: u64 = 10;

/// Tests the free memory of the GPU with this index for at most this many seconds; `None` if it is disabled. By
/// default, memory that other programs may need is not tested.
pub(super) fn test_memory(
    seconds: Option<u64>,
    until: Option<Instant>,
    timed: &BenchReport,
    index: u32,
) -> anyhow::Result<Option<MemoryTest>> {
    let moments = timed.conditions.iter().map(|conditions| &conditions.after);
    let mut gpus = moments.flat_map(|moment| &moment.gpus).filter(|gpu| gpu.gpu == index);
    let shared = gpus.any(|gpu| gpu.others.as_ref().is_some_and(|others| !others.value.is_empty()));
    let seconds = seconds.unwrap_or(if shared { 0 } else { MEMORY_BUDGET });
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let time = Duration::from_secs(seconds).min(left.unwrap_or(Duration::MAX));
    if time.is_zero() {
        return Ok(None);
    }
    // A new context, so that earlier verification and timing occupy no memory.
    let device = backends::open(BackendKind::Cuda)?;
    Ok(Some(ops_cuda::test_memory(&device, time)))
}

/// The time point at this many milliseconds since 1970.
pub(super) fn until(millis: u64) -> Instant {
    let then = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
    Instant::now() + then.duration_since(SystemTime::now()).unwrap_or_default()
}

/// The selected ops that are timed; `model` is not timed here.
pub(super) fn to_time(named: &[String]) -> Vec<String> {
    named.iter().filter(|op| *op != MODEL).cloned().collect()
}

/// Reduced models of each family, if no ops or `model` were selected; a row with the reason if no time was left.
pub(super) fn families(
    backend: BackendKind,
    named: &[String],
    until: Option<Instant>,
    begins: impl FnMut(&str, usize, usize),
) -> Vec<ParityRow> {
    if !named.is_empty() && !named.iter().any(|op| op == MODEL) {
        return Vec::new();
    }
    if until.is_none_or(|until| Instant::now() < until) {
        return models::verify_families(backend, begins);
    }
    vec![ParityRow {
        op: MODEL.to_owned(),
        case: "-".to_owned(),
        backend,
        variant: String::new(),
        dtype: "bf16".to_owned(),
        status: Status::Skip,
        reason: OUT_OF_TIME.to_owned(),
        rel_err: None,
        max_err: None,
        tolerance: 0.0,
        launches: 0,
        millis: 0.0,
        peer: None,
        evidence: String::new(),
        bits: None,
    }]
}

pub(super) fn tier(quick: bool, full: bool) -> Tier {
    match (quick, full) {
        (true, _) => Tier::Quick,
        (_, true) => Tier::Full,
        _ => Tier::Standard,
    }
}

/// The benchmarks of a check on a backend.
pub(super) fn bench_plan(backend: BackendKind, quick: bool, full: bool) -> ::bench::BenchPlan {
    ::bench::BenchPlan {
        names: Vec::new(),
        backend,
        size: if quick { Size::Quick } else { Size::Standard },
        reference: full && backend == BackendKind::Cpu,
        sweep: None,
        until: None,
    }
}
