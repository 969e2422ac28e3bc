//! The GPUs beside the first, each checked by a process of its own that sees it alone.
//!
//! All are verified at the same time: what is compared there is no time. Timing begins when every GPU is verified, and all GPUs are
//! timed at the same time too: a GPU's kernels are timed by its own clock and have its own memory, and what they share is the host.
//! Its launches would be kept waiting by the draws and checks of the other processes, so each process has cores of its own. The
//! processor's kernels are timed when the GPUs' processes have ended.

use crate::cli::Check;
use crate::commands::check_gpu::{TIME, Told};
use crate::commands::together::chosen::{Chosen, VISIBLE};
use crate::progress::Progress;
use crate::telling::{Heard, Telling};
use facts::{BenchReport, GpuPart, ParityReport};
use std::process::Command;
use std::time::{Duration, Instant};

/// A process may take so much longer than the first GPU's part did, and this many times as long, before it counts as hanging.
const LONGER: Duration = Duration::from_secs(120);
const TIMES: u32 = 2;

/// A GPU with its process.
pub(super) struct Sibling {
    pub(super) part: GpuPart,
    pub(super) parity: Option<ParityReport>,
    pub(super) bench: Option<BenchReport>,
    process: Option<Telling<Told>>,
}

/// Starts the processes of all GPUs but the first; each has cores of its own where there are enough.
pub(super) fn start(gpus: &[Chosen], shares: &[Vec<usize>], arguments: &Check) -> Vec<Sibling> {
    let start = |(gpu, cores): (&Chosen, &Vec<usize>)| {
        let Chosen { index, name, .. } = gpu;
        let (index, name) = (*index, name.clone());
        let folder = format!("gpu-{index}");
        let mut part = GpuPart { index, name, folder, ..GpuPart::default() };
        let process = match Telling::start(|command| part_of(command, gpu, cores, arguments)) {
            Ok(process) => Some(process),
            Err(error) => {
                part.broke = Some(format!("its process could not be started: {error}"));
                None
            }
        };
        Sibling { part, parity: None, bench: None, process }
    };
    gpus.iter().zip(shares).skip(1).map(start).collect()
}

/// What is said of them before it begins.
pub(super) fn line(siblings: &[Sibling]) -> String {
    let each = |Sibling { part: GpuPart { index, name, .. }, .. }: &Sibling| {
        format!("GPU {index} ({name})")
    };
    let each: Vec<String> = siblings.iter().map(each).collect();
    let own =
        if each.len() == 1 { "in a process of its own" } else { "each in a process of its own" };
    format!("at the same time: {}, {own}\n", each.join(", "))
}

impl Sibling {
    /// Waits until it is verified, no longer than what the first GPU took allows.
    pub(super) fn verified(&mut self, first_took: Duration) {
        let _progress = Progress::start(&format!("GPU {} is verified", self.part.index));
        let until = Instant::now() + LONGER + TIMES * first_took;
        while self.parity.is_none() && self.hears(until) {}
    }

    /// Lets it go on to be timed.
    pub(super) fn time(&mut self) {
        if let Some(process) = &mut self.process {
            process.tell(TIME);
        }
    }

    /// Waits until its memory is tested, which comes last, or for its end, no longer than what the first GPU took allows.
    pub(super) fn timed(&mut self, first_took: Duration) {
        let _progress = Progress::start(&format!("GPU {} is timed", self.part.index));
        let until = Instant::now() + LONGER + TIMES * first_took;
        while self.part.memory.is_none() && self.hears(until) {}
    }

    /// Waits for its end.
    pub(super) fn end(&mut self) {
        let until = Instant::now() + LONGER;
        while self.hears(until) {}
    }

    /// Takes what it tells next; false once it has ended, or was ended because it does not answer.
    fn hears(&mut self, until: Instant) -> bool {
        let Some(process) = &self.process else { return false };
        match process.hears(until) {
            Heard::Word(Told::Verified(parity)) => self.parity = Some(parity),
            Heard::Word(Told::Timed(bench)) => self.bench = Some(*bench),
            Heard::Word(Told::Memory(test)) => self.part.memory = Some(test),
            Heard::Nothing => {
                self.part.broke = Some("its process did not answer and was ended".to_owned());
                self.process = None;
                return false;
            }
            Heard::End => {
                let ended = self.process.take().map(Telling::ended);
                let done = self.parity.is_some() && self.bench.is_some();
                self.part.broke = ended.flatten().or_else(|| {
                    (!done).then(|| "its process ended before its part was done".to_owned())
                });
                return false;
            }
        }
        true
    }
}

/// The command that checks one GPU on these cores.
fn part_of(command: &mut Command, gpu: &Chosen, cores: &[usize], arguments: &Check) {
    command.arg("check-gpu").args(["--index", &gpu.index.to_string()]);
    if let Some(seconds) = arguments.memory_budget {
        command.args(["--memory-budget", &seconds.to_string()]);
    }
    if !arguments.op.is_empty() {
        command.args(["--op", &arguments.op.join(",")]);
    }
    if let Some(until) = arguments.fleet.until {
        command.args(["--until", &until.to_string()]);
    }
    command.args(arguments.quick.then_some("--quick")).args(arguments.full.then_some("--full"));
    if !cores.is_empty() {
        let cores: Vec<String> = cores.iter().map(usize::to_string).collect();
        command.args(["--cores", &cores.join(",")]);
    }
    command.env(VISIBLE, &gpu.uuid);
}
