//! Measures all GPUs of a check together, after each was checked alone: transfers between them, and a matrix product on
//! all of them.

use super::siblings::Sibling;
use crate::cli::Check;
use crate::commands::gpu_group::Group;
use crate::commands::gpu_group::chosen::WorkingGpu;
use facts::{BenchReport, FabricReport, Machine, SustainedReport};
use ops_cuda::FabricPlan;
use std::time::{Duration, Instant};

/// The results; `None` for what was not requested or not possible.
#[derive(Default)]
pub(super) struct GroupResults {
    pub(super) fabric: Option<FabricReport>,
    pub(super) sustained: Option<SustainedReport>,
}

/// Seconds for transfers between GPUs.
fn between(arguments: &Check) -> u64 {
    let usual = match (arguments.op.is_empty(), arguments.quick) {
        (false, _) => 0,
        (true, true) => 8,
        (true, false) => 30,
    };
    arguments.fabric_budget.unwrap_or(usual)
}

/// Seconds of a matrix product on all GPUs.
pub(super) fn under_load(arguments: &Check) -> u64 {
    let brief = arguments.quick || !arguments.op.is_empty() || arguments.budget.is_some();
    let usual = match (brief || arguments.fleet.until.is_some(), arguments.full) {
        (true, _) => 0,
        (false, false) => 20,
        (false, true) => 60,
    };
    arguments.sustain.unwrap_or(usual)
}

/// Measures both on the GPUs whose check has finished.
pub(super) fn of(
    gpus: &[WorkingGpu],
    siblings: &[Sibling],
    arguments: &Check,
    (machine, timed, until): (&Machine, &BenchReport, Option<Instant>),
) -> GroupResults {
    let broke = |gpu: &WorkingGpu| {
        siblings.iter().any(|it| it.part.index == gpu.index && it.part.broke.is_some())
    };
    let gpus: Vec<WorkingGpu> = gpus.iter().filter(|gpu| !broke(gpu)).cloned().collect();
    let within = |seconds: u64| {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()) / 2);
        Duration::from_secs(seconds).min(left.unwrap_or(Duration::MAX))
    };
    let venv = arguments.environment.venv.as_deref();
    let group = Group { gpus: &gpus, machine, venv, until };
    let mut done = GroupResults::default();
    let time = within(between(arguments));
    if gpus.len() > 1 && time.as_secs() > 0 {
        let largest = if arguments.quick { FabricPlan::QUICK } else { FabricPlan::LARGEST };
        done.fabric = Some(group.between(largest, time));
    }
    let time = within(under_load(arguments));
    // By default, other programs are not slowed down for this long.
    let free = arguments.sustain.is_some() || !shared(timed);
    if !gpus.is_empty() && free && time.as_secs() > 0 {
        done.sustained = Some(group.under_load(time));
    }
    done
}

/// Log entries, with the time since the start of timing.
pub(super) fn notes(done: &GroupResults, since: Duration) -> Vec<String> {
    let since = since.as_secs_f64();
    let fabric = done.fabric.iter().map(|fabric| {
        let seconds = fabric.seconds;
        format!(
            "measured transfers between GPUs in {seconds:.1} s, within {since:.1} s of the timing"
        )
    });
    let load = done.sustained.iter().map(|load| {
        format!(
            "a matrix product on all GPUs for {:.0} s, within {since:.1} s of the timing",
            load.seconds
        )
    });
    fabric.chain(load).collect()
}

/// Whether other programs used memory of a GPU during timing.
fn shared(timed: &BenchReport) -> bool {
    let moments = timed.conditions.iter().map(|conditions| &conditions.after);
    let mut gpus = moments.flat_map(|moment| &moment.gpus);
    gpus.any(|gpu| gpu.others.as_ref().is_some_and(|others| !others.value.is_empty()))
}

/// Why transfers between GPUs were not measured.
pub(super) fn why_not_between(arguments: &Check) -> &'static str {
    match (arguments.fabric_budget, arguments.op.is_empty()) {
        (Some(0), _) => "--fabric-budget 0 was given",
        (None, false) => "--op was given; --fabric-budget enables it",
        _ => "no time remained, or only one GPU finished its part",
    }
}

/// Why no matrix product ran on all GPUs at once.
pub(super) fn why_not_under_load(arguments: &Check) -> &'static str {
    match (arguments.sustain, under_load(arguments)) {
        (Some(0), _) => "--sustain 0 was given",
        (None, 0) => "--quick, --op or --budget was given; --sustain enables it",
        (None, _) => {
            "other programs use memory of a GPU, and it would slow them down; --sustain enables it"
        }
        (Some(_), _) => "no time remained for it",
    }
}
