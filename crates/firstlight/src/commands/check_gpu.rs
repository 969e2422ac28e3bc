//! `firstlight check-gpu`, hidden: one GPU's part of a check, in a process that sees that GPU alone.

use super::{bench, verify};
use crate::Outcome;
use crate::cli::CheckGpu;
use crate::cores;
use ::bench::Size;
use ::verify::Tier;
use facts::{BackendKind, BenchReport, MemoryTest, ParityReport};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::time::Duration;

/// What it tells as it comes, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Told {
    Verified(ParityReport),
    Timed(Box<BenchReport>),
    Memory(MemoryTest),
}

/// The word on standard input that begins the timing, once every GPU is verified.
pub(crate) const TIME: &str = "time";

pub(super) fn run(arguments: &CheckGpu) -> anyhow::Result<Outcome> {
    cores::only(&arguments.cores);
    // Said at once, in the driver's words, and not a thousand times.
    device::open(BackendKind::Cuda)?;
    let plan = ::verify::Plan {
        ops: Vec::new(),
        backends: vec![BackendKind::Cuda],
        tier: tier(arguments.quick, arguments.full),
        all_variants: arguments.full,
    };
    let (mut parity, standing) = verify::measure(&plan, None, |_| ())?;
    parity.rows.extend(models::verify_families(BackendKind::Cuda, |_, _, _| ()));
    tell(&Told::Verified(parity))?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    if line.trim() != TIME {
        // Whoever asked is gone.
        return Ok(Outcome::Good);
    }
    let plan = bench_plan(BackendKind::Cuda, arguments.quick, arguments.full);
    let mut report = bench::measure(&plan, &standing, None, |_, _| ())?;
    for conditions in &mut report.conditions {
        // The others are those of the processes beside this one.
        for moment in [&mut conditions.before, &mut conditions.after] {
            moment.gpus.retain(|gpu| gpu.gpu == arguments.index);
        }
    }
    let memory = test_memory(arguments.memory_budget, &report, arguments.index)?;
    tell(&Told::Timed(Box::new(report)))?;
    if let Some(test) = memory {
        tell(&Told::Memory(test))?;
    }
    Ok(Outcome::Good)
}

fn tell(told: &Told) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, told)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// Seconds of a memory test that nobody asked for.
const MEMORY_BUDGET: u64 = 10;

/// Tests what is free of the memory of the GPU with this number, for so many seconds at the most; `None` where that is not wanted:
/// unasked, what other programs may want next is left to them.
pub(super) fn test_memory(
    seconds: Option<u64>,
    timed: &BenchReport,
    index: u32,
) -> anyhow::Result<Option<MemoryTest>> {
    let moments = timed.conditions.iter().map(|conditions| &conditions.after);
    let mut gpus = moments.flat_map(|moment| &moment.gpus).filter(|gpu| gpu.gpu == index);
    let shared = gpus.any(|gpu| gpu.others.as_ref().is_some_and(|others| !others.value.is_empty()));
    let seconds = seconds.unwrap_or(if shared { 0 } else { MEMORY_BUDGET });
    if seconds == 0 {
        return Ok(None);
    }
    // Opened anew: nothing that was verified or timed before holds memory of it.
    let device = device::open(BackendKind::Cuda)?;
    Ok(Some(kernels::cuda::test_memory(&device, Duration::from_secs(seconds))))
}

pub(super) fn tier(quick: bool, full: bool) -> Tier {
    match (quick, full) {
        (true, _) => Tier::Quick,
        (_, true) => Tier::Full,
        _ => Tier::Standard,
    }
}

/// What a check times on a backend.
pub(super) fn bench_plan(backend: BackendKind, quick: bool, full: bool) -> ::bench::Plan {
    ::bench::Plan {
        names: Vec::new(),
        backend,
        size: if quick { Size::Quick } else { Size::Standard },
        reference: full && backend == BackendKind::Cpu,
        sweep: None,
    }
}
