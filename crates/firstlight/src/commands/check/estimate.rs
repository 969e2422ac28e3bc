//! Estimates the duration of a check before it starts.

use super::group;
use crate::cli::Check;
use crate::progress::{SlowNotice, rounded};
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

/// Other programs on the machine before the check starts; unknown on some systems.
#[derive(Debug, Clone, Copy)]
pub(super) struct OtherPrograms {
    /// Cores that they keep busy.
    pub(super) cores: Option<f64>,
    /// The load average of the last minute: threads that run or wait for a core.
    pub(super) load: Option<f64>,
}

impl OtherPrograms {
    /// The busy cores, and how many times longer a check takes next to these programs. Load below a tenth of the cores is
    /// noise.
    fn slowdown(self, cores: f64) -> Option<(f64, f64)> {
        let busy = self.cores.map(|busy| busy.min(cores)).filter(|busy| *busy >= 0.1 * cores)?;
        // Each thread gets an equal share. On cores that are all busy, other threads are waiting too, which only the load
        // average counts; with free cores, nothing waits.
        let threads = match self.load {
            Some(load) if busy >= 0.8 * cores => load.max(busy),
            _ => busy,
        };
        Some((busy, 1.0 + threads / cores))
    }
}

/// The expected duration of a check.
pub(super) struct Estimate {
    cores: usize,
    parts: Parts,
    /// Cores that other programs keep busy, and how many times longer everything takes.
    slowdown: Option<(f64, f64)>,
}

impl Estimate {
    pub(super) fn of(
        arguments: &Check,
        backends: &[BackendKind],
        peers: bool,
        others: OtherPrograms,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            cores,
            parts: Parts::of(arguments, backends, cores, peers),
            slowdown: others.slowdown(cores as f64),
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
        let seconds = self.parts.seconds();
        match self.slowdown {
            None => rounded(seconds),
            Some((busy, times)) => format!(
                "{}: other programs use {busy:.1} of {} cores",
                rounded(seconds * times),
                self.cores
            ),
        }
    }

    /// The notice for a verification that takes much longer than expected; none for a check with a time limit.
    pub(super) fn slow_notice(&self, arguments: &Check) -> Option<SlowNotice> {
        if arguments.budget.is_some() || arguments.fleet.until.is_some() {
            return None;
        }
        let times = self.slowdown.map_or(1.0, |(_, times)| times);
        let hint = match arguments.quick {
            true => "`--budget 60` ends after a minute",
            false => "`--quick` verifies less, `--budget 60` ends after a minute",
        };
        let expected = Duration::from_secs_f64((MODELS + self.parts.verified) * times);
        Some(SlowNotice { expected, hint })
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
            ("timed on the GPU", timed[0], on_gpu),
            ("load", parts.load, under_load - at("bf16 on cuda")),
            ("timed on the processor", timed[1], at("kernels timed") - under_load),
        ] {
            assert!((estimate / took - 1.0).abs() < 0.2, "{part}: {estimate} s, took {took} s");
        }
    }

    #[test]
    fn estimate_grows_with_the_load_of_other_programs() {
        let estimate = |cores, load| {
            let parts =
                Parts { verified: 0.0, timed: vec![120.0 - MODELS], installed: 0.0, load: 0.0 };
            let slowdown = OtherPrograms { cores, load }.slowdown(2.0);
            Estimate { cores: 2, parts, slowdown }.duration()
        };
        for (others, load, expect) in [
            (None, None, "2 minutes"),
            (None, Some(9.0), "2 minutes"),
            (Some(0.19), Some(0.2), "2 minutes"),
            (Some(1.0), None, "3 minutes: other programs use 1.0 of 2 cores"),
            // A core is free, so the load average is that of an earlier minute.
            (Some(1.0), Some(8.0), "3 minutes: other programs use 1.0 of 2 cores"),
            (Some(2.3), None, "4 minutes: other programs use 2.0 of 2 cores"),
            // Eight threads share two cores with the two of the check.
            (Some(1.9), Some(8.0), "10 minutes: other programs use 1.9 of 2 cores"),
            (Some(1.9), Some(1.2), "3 minutes 50 s: other programs use 1.9 of 2 cores"),
        ] {
            assert_eq!(estimate(others, load), expect);
        }
    }

    #[test]
    fn slow_notice_names_shorter_checks() {
        let notice = |line: &[&str]| {
            let line = [&["firstlight", "check"], line].concat();
            let Command::Check(arguments) = Cli::try_parse_from(line).unwrap().command else {
                panic!("`check` is no check");
            };
            let quiet = OtherPrograms { cores: None, load: None };
            Estimate::of(&arguments, &[BackendKind::Cpu], false, quiet).slow_notice(&arguments)
        };
        let standard = notice(&[]).unwrap();
        assert!(standard.hint.contains("--quick") && standard.hint.contains("--budget 60"));
        let quick = notice(&["--quick"]).unwrap();
        assert!(!quick.hint.contains("--quick") && quick.hint.contains("--budget 60"));
        assert!(quick.expected < standard.expected);
        assert!(notice(&["--budget", "60"]).is_none());
    }
}
