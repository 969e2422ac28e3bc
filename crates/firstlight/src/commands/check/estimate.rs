//! Estimates the duration of a check before it starts.

use super::group;
use crate::cli::Check;
use crate::progress::{SlowNotice, rounded};
use ::bench::Size;
use ::verify::MODEL;
use facts::BackendKind;
use std::time::{Duration, Instant};

/// Core seconds of the quick checks: their inputs and references. Recorded on a Xeon with AVX-512 and a GPU.
const QUICK: f64 = 14.0;
const STANDARD: f64 = 46.0;
const FULL: f64 = 900.0;
/// How many times more core seconds the checks take on a machine without a GPU, whose cores are threads of shared ones:
/// 2601 of the 3075 standard checks took 158 core seconds on two threads of an EPYC 9004 next to other programs.
const WITHOUT_GPU: f64 = 3.0;
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

/// Time for which the share of this process in the cores is measured.
const MEASURED: Duration = Duration::from_millis(300);

/// The cores that other programs leave to this process: one thread per core computes for a moment, and its CPU time is
/// what the system gave it. Priorities, limits of a container and waiting threads count, which no counter of busy cores
/// shows. `None` if the system does not count the time of a thread.
pub(super) fn available_cores() -> Option<f64> {
    available_of(std::thread::available_parallelism().map_or(1, usize::from), MEASURED)
}

fn available_of(cores: usize, time: Duration) -> Option<f64> {
    let share = || {
        let (start, before) = (Instant::now(), thread_seconds()?);
        while start.elapsed() < time {
            (0..1000).for_each(|step| {
                std::hint::black_box(step);
            });
        }
        Some((thread_seconds()? - before) / start.elapsed().as_secs_f64())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(share)).collect();
        threads.into_iter().map(|thread| thread.join().ok().flatten()).sum()
    })
}

/// CPU time of the current thread.
fn thread_seconds() -> Option<f64> {
    #[cfg(target_os = "linux")]
    {
        use rustix::time::{ClockId, clock_gettime};
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Some(now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9)
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// The expected duration of a check.
pub(super) struct Estimate {
    cores: usize,
    parts: Parts,
    /// The cores that other programs leave to the check, if they take more than a tenth.
    available: Option<f64>,
}

impl Estimate {
    pub(super) fn of(
        arguments: &Check,
        backends: &[BackendKind],
        peers: bool,
        available: Option<f64>,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            cores,
            parts: Parts::of(arguments, backends, cores, peers),
            available: available.filter(|available| *available < 0.9 * cores as f64),
        }
    }

    /// `kernels on the GPU and the processor will be verified and timed, in about 4 minutes`.
    pub(super) fn words(&self, backends: &[BackendKind]) -> String {
        let names: Vec<&str> = backends
            .iter()
            .map(|backend| match backend {
                BackendKind::Cpu => "the processor",
                BackendKind::Cuda | BackendKind::Metal => "the GPU",
            })
            .collect();
        let names = names.join(" and ");
        format!("kernels on {names} will be verified and timed, in about {}", self.duration())
    }

    fn duration(&self) -> String {
        let time = rounded(self.parts.seconds(self.slowdown()));
        match self.available {
            None => time,
            Some(available) => {
                format!("{time}: other programs leave it {available:.1} of {} cores", self.cores)
            }
        }
    }

    /// How many times longer work on all cores takes next to other programs.
    fn slowdown(&self) -> f64 {
        // A share near 0 is that of a moment.
        self.available.map_or(1.0, |available| self.cores as f64 / available.max(0.05))
    }

    /// The notice for a verification that takes much longer than expected; none for a check with a time limit.
    pub(super) fn slow_notice(&self, arguments: &Check) -> Option<SlowNotice> {
        if arguments.budget.is_some() || arguments.fleet.until.is_some() {
            return None;
        }
        let hint = match arguments.quick {
            true => "`--budget 60` ends after a minute",
            false => "`--quick` verifies less, `--budget 60` ends after a minute",
        };
        let expected = (MODELS + self.parts.verified) * self.slowdown();
        let expected = Duration::from_secs_f64(expected);
        Some(SlowNotice { expected, hint })
    }
}

/// Seconds of each part.
struct Parts {
    verified: f64,
    /// In the order of the backends.
    timed: Vec<TimedPart>,
    /// Seconds of installed kernels.
    installed: f64,
    /// Seconds of the test of free memory, and of the matrix product on all GPUs.
    load: f64,
}

/// Seconds of a backend's timings.
struct TimedPart {
    /// Samples, which have a time limit on any machine.
    sampled: f64,
    /// Inputs and checks of the workloads.
    prepared: f64,
}

impl TimedPart {
    fn seconds(&self, slowdown: f64) -> f64 {
        self.sampled + self.prepared * slowdown
    }
}

impl Parts {
    /// All parts, where work on all cores takes `slowdown` times longer.
    fn seconds(&self, slowdown: f64) -> f64 {
        let timed: f64 = self.timed.iter().map(|part| part.seconds(slowdown)).sum();
        (MODELS + self.verified) * slowdown + timed + self.installed + self.load
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
        let work = work * if on_gpu { 1.0 + GPU_CHECKS } else { WITHOUT_GPU };
        let verified = share * work / cores as f64;
        let timed = backends.iter().map(|backend| of_bench(*backend, size, cores, &arguments.op));
        // Installed kernels have one minute for verification, and two minutes in total for timing.
        let installed = if peers { 180.0 } else { 0.0 };
        let load = if on_gpu { group::under_load(arguments) as f64 + AROUND_LOAD } else { 0.0 };
        Self { verified, timed: timed.collect(), installed, load }
    }
}

fn of_bench(backend: BackendKind, size: Size, cores: usize, ops: &[String]) -> TimedPart {
    let names = ops.iter().filter(|op| *op != MODEL).cloned().collect();
    let plan =
        ::bench::BenchPlan { names, backend, size, reference: false, sweep: None, until: None };
    let (prepared, around) = match backend {
        BackendKind::Cpu => (OF_WORKLOAD / cores as f64, AROUND_WORKLOAD),
        BackendKind::Cuda | BackendKind::Metal => (OF_GPU_WORKLOAD, 0.0),
    };
    let count = ::bench::count(&plan) as f64;
    let sampled = ::bench::budget(size, backend).as_secs_f64() + around;
    // The ceilings, before and after.
    TimedPart { sampled: 5.0 + sampled * count, prepared: prepared * count }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn parts_follow_a_recorded_check() {
        // One H200 and 16 cores of a Xeon with AVX-512, commit 72b5a1b2, which had no gradients to time: the times of its log, in seconds.
        let log = include_str!("../../../../../benchmarks/runs/2026-11-29-h200-check-2/times.txt");
        let at = |what: &str| -> f64 {
            let line = log.lines().rfind(|line| line.contains(what)).unwrap();
            line.trim_start().split(' ').next().unwrap().parse().unwrap()
        };
        let parts = |arguments: &[&str]| {
            let command = Cli::try_parse_from([&["firstlight", "check"], arguments].concat());
            let Command::Check(arguments) = command.unwrap().command else {
                panic!("`check` is no check");
            };
            Parts::of(&arguments, &[BackendKind::Cuda, BackendKind::Cpu], 16, false)
        };
        let names = ops::OPS.iter().map(|op| op.spec().name);
        let forward: Vec<&str> = names.filter(|name| !name.ends_with("_backward")).collect();
        let timed = parts(&["--op", &forward.join(",")]).timed;
        let parts = parts(&[]);
        let (verified, under_load) = (at("models verified on cpu"), at("a product on all GPUs"));
        let on_gpu = at("bf16 on cuda") - verified;
        for (part, estimate, took) in [
            ("verified", parts.verified, verified),
            ("timed on the GPU", timed[0].seconds(1.0), on_gpu),
            ("load", parts.load, under_load - at("bf16 on cuda")),
            ("timed on the processor", timed[1].seconds(1.0), at("kernels timed") - under_load),
        ] {
            assert!((estimate / took - 1.0).abs() < 0.2, "{part}: {estimate} s, took {took} s");
        }
    }

    #[test]
    fn estimate_grows_as_other_programs_leave_fewer_cores() {
        let estimate = |available| {
            // A minute of work on all cores, and a minute of samples, which have a time limit.
            let timed = vec![TimedPart { sampled: 50.0, prepared: 0.0 }];
            let parts = Parts { verified: 60.0 - MODELS, timed, installed: 10.0, load: 0.0 };
            let available = Estimate { cores: 2, parts, available };
            available.duration()
        };
        for (available, expect) in [
            (None, "2 minutes"),
            (Some(1.0), "3 minutes: other programs leave it 1.0 of 2 cores"),
            (Some(0.4), "6 minutes: other programs leave it 0.4 of 2 cores"),
        ] {
            assert_eq!(estimate(available), expect);
        }
        let quiet = |available| {
            let command = Cli::try_parse_from(["firstlight", "check"]).unwrap().command;
            let Command::Check(arguments) = command else { panic!("`check` is no check") };
            Estimate::of(&arguments, &[BackendKind::Cpu], false, available).available
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        assert_eq!(quiet(Some(0.95 * cores)), None, "less than a tenth is noise");
        assert_eq!(quiet(Some(0.5 * cores)), Some(0.5 * cores));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn available_cores_shrink_with_waiting_threads() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let alone = available_of(cores, MEASURED).unwrap();
        assert!(alone > 0.0 && alone < 1.05 * cores as f64, "{alone} of {cores}");
        let done = AtomicBool::new(false);
        let among = std::thread::scope(|scope| {
            for _ in 0..8 * cores {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let among = available_of(cores, MEASURED).unwrap();
            done.store(true, Ordering::Relaxed);
            among
        });
        assert!(among < 0.7 * alone, "{among} with eight other threads per core, {alone} without");
    }

    #[test]
    fn slow_notice_names_shorter_checks() {
        let notice = |line: &[&str]| {
            let line = [&["firstlight", "check"], line].concat();
            let Command::Check(arguments) = Cli::try_parse_from(line).unwrap().command else {
                panic!("`check` is no check");
            };
            Estimate::of(&arguments, &[BackendKind::Cpu], false, None).slow_notice(&arguments)
        };
        let standard = notice(&[]).unwrap();
        assert!(standard.hint.contains("--quick") && standard.hint.contains("--budget 60"));
        let quick = notice(&["--quick"]).unwrap();
        assert!(!quick.hint.contains("--quick") && quick.hint.contains("--budget 60"));
        assert!(quick.expected < standard.expected);
        assert!(notice(&["--budget", "60"]).is_none());
    }
}
