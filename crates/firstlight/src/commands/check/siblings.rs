//! Checks the further GPUs, each in a separate process that sees only that GPU.
//!
//! All are verified at the same time, because verification measures no time. Timing starts when every GPU is verified,
//! and all GPUs are timed at the same time too: a GPU has its own clock and memory, and they share only the host. Input
//! generation and checks of other processes would delay launches, so each process has separate cores. The processor's
//! kernels are timed after the GPUs' processes have ended.

use crate::cli::Check;
use crate::commands::check_gpu::{GpuMessage, TIME};
use crate::commands::gpu_group::chosen::{VISIBLE, WorkingGpu};
use crate::message_reader::{MessageReader, Received};
use crate::progress::Progress;
use facts::{BenchReport, GpuPart, ParityReport};
use std::process::Command;
use std::time::{Duration, Instant};

/// A process counts as hanging when it takes this much, and this many times, longer than the first GPU.
const LONGER: Duration = Duration::from_secs(120);
const TIMES: u32 = 2;

/// A GPU with its process.
pub(super) struct Sibling {
    pub(super) part: GpuPart,
    pub(super) parity: Option<ParityReport>,
    pub(super) bench: Option<BenchReport>,
    process: Option<MessageReader<GpuMessage>>,
}

/// Starts the processes of all GPUs but the first; each has separate cores if there are enough.
pub(super) fn start(gpus: &[WorkingGpu], shares: &[Vec<usize>], arguments: &Check) -> Vec<Sibling> {
    let start = |(gpu, cores): (&WorkingGpu, &Vec<usize>)| {
        let WorkingGpu { index, name, .. } = gpu;
        let (index, name) = (*index, name.clone());
        let folder = format!("gpu-{index}");
        let mut part = GpuPart { index, name, folder, ..GpuPart::default() };
        let process = match MessageReader::start(|command| part_of(command, gpu, cores, arguments))
        {
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

/// The notice about them.
pub(super) fn line(siblings: &[Sibling]) -> String {
    let each = |Sibling { part: GpuPart { index, name, .. }, .. }: &Sibling| {
        format!("GPU {index} ({name})")
    };
    let each: Vec<String> = siblings.iter().map(each).collect();
    let own = if each.len() == 1 { "in a separate process" } else { "each in a separate process" };
    format!("at the same time: {}, {own}\n", each.join(", "))
}

impl Sibling {
    /// Waits until it is verified, with a limit derived from the first GPU's time.
    pub(super) fn verified(&mut self, first_took: Duration) {
        let _progress = Progress::start(&format!("GPU {} is verified", self.part.index));
        let until = Instant::now() + LONGER + TIMES * first_took;
        while self.parity.is_none() && self.receive(until) {}
    }

    /// Lets it start timing.
    pub(super) fn time(&mut self) {
        if let Some(process) = &mut self.process {
            process.send(TIME);
        }
    }

    /// Waits until its memory is tested, which is the last step, or for its exit, with a limit derived from the first
    /// GPU's time.
    pub(super) fn timed(&mut self, first_took: Duration) {
        let _progress = Progress::start(&format!("GPU {} is timed", self.part.index));
        let until = Instant::now() + LONGER + TIMES * first_took;
        while self.part.memory.is_none() && self.receive(until) {}
    }

    /// Waits for its exit.
    pub(super) fn end(&mut self) {
        let until = Instant::now() + LONGER;
        while self.receive(until) {}
    }

    /// Receives its next message; false once it has exited, or was killed because it did not answer.
    fn receive(&mut self, until: Instant) -> bool {
        let Some(process) = &self.process else { return false };
        match process.receive(until) {
            Received::Word(GpuMessage::Verified(parity)) => self.parity = Some(parity),
            Received::Word(GpuMessage::Timed(bench)) => self.bench = Some(*bench),
            Received::Word(GpuMessage::Memory(test)) => self.part.memory = Some(test),
            Received::Nothing => {
                self.part.broke = Some("its process did not answer and was ended".to_owned());
                self.process = None;
                return false;
            }
            Received::End => {
                let ended = self.process.take().map(MessageReader::ended);
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
fn part_of(command: &mut Command, gpu: &WorkingGpu, cores: &[usize], arguments: &Check) {
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
