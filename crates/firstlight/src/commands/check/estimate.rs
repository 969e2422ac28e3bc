//! About how long a check will take, said before it begins.

use super::group;
use crate::cli::Check;
use ::bench::Size;
use ::verify::MODEL;
use facts::BackendKind;
use std::time::Duration;

/// Seconds of one core that the checks of a tier take: their inputs and their references. Recorded on a Xeon with AVX-512.
const QUICK: f64 = 14.0;
const STANDARD: f64 = 46.0;
const FULL: f64 = 900.0;
/// The same of a GPU's checks, whose cases are larger: 35 s on the 16 cores of a machine with an H200, standard tier.
const GPU_CHECKS: f64 = 11.0;
/// Seconds of the models on each backend, and of reading the machine.
const MODELS: f64 = 4.0;
/// Seconds of one core, and others, that a workload takes in addition to its samples, for its inputs and its check.
const OF_WORKLOAD: f64 = 0.4;
const AROUND_WORKLOAD: f64 = 0.05;
/// The same on a GPU, whose workloads are larger.
const OF_GPU_WORKLOAD: f64 = 0.35;
/// Seconds around a product on all GPUs: its start, and the test of free memory.
const AROUND_LOAD: f64 = 4.0;

/// `the kernels of cuda and cpu are verified and timed in about 4 minutes`.
pub(super) fn words(arguments: &Check, backends: &[BackendKind], peers: bool) -> String {
    let names: Vec<&str> = backends
        .iter()
        .map(|backend| match backend {
            BackendKind::Cpu => "the processor",
            BackendKind::Cuda | BackendKind::Metal => "the GPU",
        })
        .collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let seconds = seconds(arguments, backends, cores, peers);
    format!(
        "kernels on {} will be verified and timed, in about {}",
        names.join(" and "),
        rounded(seconds)
    )
}

fn seconds(arguments: &Check, backends: &[BackendKind], cores: usize, peers: bool) -> f64 {
    let (work, size) = match (arguments.quick, arguments.full) {
        (true, _) => (QUICK, Size::Quick),
        (_, true) => (FULL, Size::Standard),
        _ => (STANDARD, Size::Standard),
    };
    let share = match arguments.op.len() {
        0 => 1.0,
        named => named as f64 / kernels::OPS.len() as f64,
    };
    let on_gpu = backends.contains(&BackendKind::Cuda);
    let work = if on_gpu { work * (1.0 + GPU_CHECKS) } else { work };
    let verified = share * work / cores as f64;
    let timed: f64 =
        backends.iter().map(|backend| of_bench(*backend, size, cores, &arguments.op)).sum();
    // Installed kernels have a minute to be verified, and all of them two to be timed.
    let installed = if peers { 180.0 } else { 0.0 };
    let load = if on_gpu { group::under_load(arguments) as f64 + AROUND_LOAD } else { 0.0 };
    MODELS * backends.len() as f64 + verified + timed + installed + load
}

fn of_bench(backend: BackendKind, size: Size, cores: usize, ops: &[String]) -> f64 {
    let names = ops.iter().filter(|op| *op != MODEL).cloned().collect();
    let plan = ::bench::Plan { names, backend, size, reference: false, sweep: None, until: None };
    let each = ::bench::budget(size, backend)
        + Duration::from_secs_f64(if backend == BackendKind::Cpu {
            OF_WORKLOAD / cores as f64 + AROUND_WORKLOAD
        } else {
            OF_GPU_WORKLOAD
        });
    // The ceilings, before and after.
    5.0 + each.as_secs_f64() * ::bench::count(&plan) as f64
}

/// Seconds as people say them: to 5 s below a minute and a half, to 10 s below ten minutes, then to minutes.
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
    fn estimates_a_recorded_check_within_a_fifth() {
        let Command::Check(arguments) =
            Cli::try_parse_from(["firstlight", "check"]).unwrap().command
        else {
            panic!("`check` is no check");
        };
        // One H200 and a Xeon with AVX-512, commit b701d324: seconds from the start to the end.
        let took = 204.4;
        let estimate = seconds(&arguments, &[BackendKind::Cuda, BackendKind::Cpu], 16, false);
        assert!((estimate / took - 1.0).abs() < 0.2, "{estimate} s, took {took} s");
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
