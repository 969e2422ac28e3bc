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
/// Seconds of the models and of reading the machine.
const BESIDE: f64 = 4.0;
/// Seconds that a workload takes beside its samples, for its inputs and its check.
const OF_WORKLOAD: f64 = 0.25;
/// The same on a GPU, whose workloads are larger.
const OF_GPU_WORKLOAD: f64 = 0.5;

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
    // References and inputs are shared by the backends; a GPU's launches come on top.
    let share = match arguments.op.len() {
        0 => 1.0,
        named => named as f64 / kernels::OPS.len() as f64,
    };
    let verified = share * work / cores as f64 * if backends.len() > 1 { 1.5 } else { 1.0 };
    let timed: f64 = backends.iter().map(|backend| of_bench(*backend, size, &arguments.op)).sum();
    // Installed kernels have a minute to be verified, and all of them two to be timed.
    let installed = if peers { 180.0 } else { 0.0 };
    let on_gpu = backends.contains(&BackendKind::Cuda);
    let load = if on_gpu { group::under_load(arguments) as f64 } else { 0.0 };
    BESIDE + verified + timed + installed + load
}

fn of_bench(backend: BackendKind, size: Size, ops: &[String]) -> f64 {
    let names = ops.iter().filter(|op| *op != MODEL).cloned().collect();
    let plan = ::bench::Plan { names, backend, size, reference: false, sweep: None, until: None };
    let each = ::bench::budget(size, backend)
        + Duration::from_secs_f64(if backend == BackendKind::Cpu {
            OF_WORKLOAD
        } else {
            OF_GPU_WORKLOAD
        });
    // The ceilings, before and after.
    5.0 + each.as_secs_f64() * ::bench::count(&plan) as f64
}

/// Seconds as a person says them.
fn rounded(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 90.0 => format!("{:.0} s", (seconds / 5.0).ceil() * 5.0),
        seconds => format!("{:.0} minutes", (seconds / 60.0).ceil()),
    }
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn a_time_is_said_as_people_say_it() {
        for (seconds, expect) in [
            (3.0, "5 s"),
            (41.0, "45 s"),
            (89.0, "90 s"),
            (91.0, "2 minutes"),
            (240.0, "4 minutes"),
        ] {
            assert_eq!(rounded(seconds), expect);
        }
    }
}
