//! Estimates the duration of a check before it starts.

use super::group;
use crate::cli::Check;
use ::bench::Size;
use ::verify::MODEL;
use facts::BackendKind;
use std::time::Duration;

/// Core seconds of the quick checks: their inputs and references. Recorded on a Xeon with AVX-512.
const QUICK: f64 = 14.0;
const STANDARD: f64 = 46.0;
const FULL: f64 = 900.0;
/// Seconds of a GPU's checks: most of it is NVRTC, which compiles the edge cases that are not in the bundle.
const GPU_CHECKS: f64 = 11.5;
/// Seconds of the models, which are verified concurrently with the kernels on all backends, and of reading the machine.
const MODELS: f64 = 4.0;
/// Core seconds, and others, that a workload takes in addition to its samples, for its inputs and its check.
const OF_WORKLOAD: f64 = 0.4;
const AROUND_WORKLOAD: f64 = 0.05;
/// The same on a GPU, whose workloads are larger and whose samples often take less than their limit: 120 workloads took
/// 85 s on an H200.
const OF_GPU_WORKLOAD: f64 = 0.17;
/// Seconds to start a matrix product on all GPUs, and for the test of free memory.
const AROUND_LOAD: f64 = 4.0;

/// `the kernels of cuda and cpu are verified and timed in about 4 minutes`.
///
/// `others` are the cores that other programs keep busy; unknown on some systems.
pub(super) fn words(
    arguments: &Check,
    backends: &[BackendKind],
    peers: bool,
    others: Option<f64>,
) -> String {
    let names: Vec<&str> = backends
        .iter()
        .map(|backend| match backend {
            BackendKind::Cpu => "the processor",
            BackendKind::Cuda | BackendKind::Metal => "the GPU",
        })
        .collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let parts = Parts::of(arguments, backends, cores, peers);
    format!(
        "kernels on {} will be verified and timed, in about {}",
        names.join(" and "),
        on_busy_cores(parts.seconds(), others, cores)
    )
}

/// The duration, on cores that are shared with other programs; load below a tenth of the cores is noise.
fn on_busy_cores(seconds: f64, others: Option<f64>, cores: usize) -> String {
    let cores = cores as f64;
    match others.map(|others| others.min(cores)).filter(|others| *others >= 0.1 * cores) {
        None => rounded(seconds),
        Some(others) => format!(
            "{}: other programs use {others:.1} of {cores} cores",
            rounded(seconds * (1.0 + others / cores))
        ),
    }
}

/// Seconds of each part.
struct Parts {
    verified: f64,
    /// In the order of the backends.
    timed: Vec<f64>,
    /// Seconds of installed kernels.
    installed: f64,
    /// Seconds of the test of free memory, and of the matrix product on all GPUs.
    load: f64,
}

impl Parts {
    fn seconds(&self) -> f64 {
        MODELS + self.verified + self.timed.iter().sum::<f64>() + self.installed + self.load
    }

    fn of(arguments: &Check, backends: &[BackendKind], cores: usize, peers: bool) -> Self {
        let (work, size) = match (arguments.quick, arguments.full) {
            (true, _) => (QUICK, Size::Quick),
            (_, true) => (FULL, Size::Standard),
            _ => (STANDARD, Size::Standard),
        };
        let share = match arguments.op.len() {
            0 => 1.0,
            named => named as f64 / ops::OPS.len() as f64,
        };
        let on_gpu = backends.contains(&BackendKind::Cuda);
        let work = if on_gpu { work * (1.0 + GPU_CHECKS) } else { work };
        let verified = share * work / cores as f64;
        let timed = backends.iter().map(|backend| of_bench(*backend, size, cores, &arguments.op));
        // Installed kernels have one minute for verification, and two minutes in total for timing.
        let installed = if peers { 180.0 } else { 0.0 };
        let load = if on_gpu { group::under_load(arguments) as f64 + AROUND_LOAD } else { 0.0 };
        Self { verified, timed: timed.collect(), installed, load }
    }
}

fn of_bench(backend: BackendKind, size: Size, cores: usize, ops: &[String]) -> f64 {
    let names = ops.iter().filter(|op| *op != MODEL).cloned().collect();
    let plan =
        ::bench::BenchPlan { names, backend, size, reference: false, sweep: None, until: None };
    let each = ::bench::budget(size, backend)
        + Duration::from_secs_f64(if backend == BackendKind::Cpu {
            OF_WORKLOAD / cores as f64 + AROUND_WORKLOAD
        } else {
            OF_GPU_WORKLOAD
        });
    // The ceilings, before and after.
    5.0 + each.as_secs_f64() * ::bench::count(&plan) as f64
}

/// Rounds seconds: to 5 s below a minute and a half, to 10 s below ten minutes, and then to minutes.
fn rounded(seconds: f64) -> String {
    if seconds < 90.0 {
        return format!("{:.0} s", (seconds / 5.0).ceil() * 5.0);
    }
    let whole = match seconds {
        seconds if seconds < 600.0 => (seconds / 10.0).round() as u64 * 10,
        seconds => (seconds / 60.0).round() as u64 * 60,
    };
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    match (whole / 60, whole % 60) {
        (minutes, 0) => format!("{minutes} minute{}", plural(minutes)),
        (minutes, seconds) => format!("{minutes} minute{} {seconds} s", plural(minutes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn parts_follow_a_recorded_check() {
        let Command::Check(arguments) =
            Cli::try_parse_from(["firstlight", "check"]).unwrap().command
        else {
            panic!("`check` is no check");
        };
        // One H200 and 16 cores of a Xeon with AVX-512, commit 72b5a1b2: the times of its log, in seconds.
        let log = include_str!("../../../../../benchmarks/runs/2026-11-29-h200-check-2/times.txt");
        let at = |what: &str| -> f64 {
            let line = log.lines().rfind(|line| line.contains(what)).unwrap();
            line.trim_start().split(' ').next().unwrap().parse().unwrap()
        };
        let parts = Parts::of(&arguments, &[BackendKind::Cuda, BackendKind::Cpu], 16, false);
        let (verified, under_load) = (at("models verified on cpu"), at("a product on all GPUs"));
        let on_gpu = at("bf16 on cuda") - verified;
        for (part, estimate, took) in [
            ("verified", parts.verified, verified),
            ("timed on the GPU", parts.timed[0], on_gpu),
            ("load", parts.load, under_load - at("bf16 on cuda")),
            ("timed on the processor", parts.timed[1], at("kernels timed") - under_load),
        ] {
            assert!((estimate / took - 1.0).abs() < 0.2, "{part}: {estimate} s, took {took} s");
        }
    }

    #[test]
    fn estimate_grows_with_the_load_of_other_programs() {
        for (others, expect) in [
            (None, "2 minutes"),
            (Some(0.19), "2 minutes"),
            (Some(1.0), "3 minutes: other programs use 1.0 of 2 cores"),
            (Some(2.3), "4 minutes: other programs use 2.0 of 2 cores"),
        ] {
            assert_eq!(on_busy_cores(120.0, others, 2), expect);
        }
    }

    #[test]
    fn rounds_within_a_tenth() {
        for (seconds, expect) in [
            (3.0, "5 s"),
            (41.0, "45 s"),
            (89.0, "90 s"),
            (91.0, "1 minute 30 s"),
            (118.0, "2 minutes"),
            (193.0, "3 minutes 10 s"),
            (240.0, "4 minutes"),
            (640.0, "11 minutes"),
        ] {
            assert_eq!(rounded(seconds), expect);
        }
    }
}
