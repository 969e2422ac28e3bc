//! The GPUs beside the first, each checked by a process of its own that sees it alone.
//!
//! All are verified at the same time: what is compared there is no time. Timing begins when every GPU is verified, and all GPUs are
//! timed at the same time too: a GPU's kernels are timed by its own clock and have its own memory, and what they share is the host.
//! Its launches would be kept waiting by the draws and checks of the other processes, so each process has cores of its own. The
//! processor's kernels are timed when the GPUs' processes have ended.

use super::chosen::{Chosen, VISIBLE};
use crate::cli::Check;
use crate::commands::check_gpu::{TIME, Told};
use crate::own_program::own_program;
use crate::progress::Progress;
use facts::{BenchReport, GpuPart, ParityReport};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A process may take so much longer than the first GPU's part did, and this many times as long, before it counts as hanging.
const LONGER: Duration = Duration::from_secs(120);
const TIMES: u32 = 2;

/// A GPU with its process.
pub(super) struct Sibling {
    pub(super) part: GpuPart,
    pub(super) parity: Option<ParityReport>,
    pub(super) bench: Option<BenchReport>,
    process: Option<Process>,
}

struct Process {
    child: Child,
    told: Receiver<Told>,
    /// What it writes to standard error; the last line says why it ended.
    said: Option<JoinHandle<String>>,
}

/// Starts the processes of all GPUs but the first; each has cores of its own where there are enough.
pub(super) fn start(gpus: &[Chosen], shares: &[Vec<usize>], arguments: &Check) -> Vec<Sibling> {
    let start = |(gpu, cores): (&Chosen, &Vec<usize>)| {
        let Chosen { index, name, .. } = gpu;
        let (index, name) = (*index, name.clone());
        let folder = format!("gpu-{index}");
        let mut part = GpuPart { index, name, folder, ..GpuPart::default() };
        let process = match Process::start(gpu, cores, arguments) {
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
        if let Some(input) = self.process.as_mut().and_then(|process| process.child.stdin.as_mut())
        {
            // One that has ended is found out by what it does not tell.
            let _ = writeln!(input, "{TIME}").and_then(|()| input.flush());
        }
    }

    /// Waits for its end, no longer than what the first GPU took allows.
    pub(super) fn end(&mut self, first_took: Duration) {
        let _progress = Progress::start(&format!("GPU {} is timed", self.part.index));
        let until = Instant::now() + LONGER + TIMES * first_took;
        while self.hears(until) {}
    }

    /// Takes what it tells next; false once it has ended, or was ended because it does not answer.
    fn hears(&mut self, until: Instant) -> bool {
        let Some(process) = &mut self.process else { return false };
        match process.told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Told::Verified(parity)) => self.parity = Some(parity),
            Ok(Told::Timed(bench)) => self.bench = Some(*bench),
            Ok(Told::Memory(test)) => self.part.memory = Some(test),
            Err(RecvTimeoutError::Timeout) => {
                let _ = process.child.kill();
                self.part.broke = Some("its process did not answer and was ended".to_owned());
                self.process = None;
                return false;
            }
            Err(RecvTimeoutError::Disconnected) => {
                let ended = self.process.take().map(Process::ended);
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

impl Process {
    fn start(gpu: &Chosen, cores: &[usize], arguments: &Check) -> std::io::Result<Self> {
        let own = own_program().ok_or(std::io::ErrorKind::NotFound)?;
        let mut command = Command::new(own);
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
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (send, told) = channel();
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        std::thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
            for line in lines.map_while(Result::ok) {
                // Something that is no word of ours ends it like a crash: what it was, nobody can tell.
                let Ok(told) = serde_json::from_str(&line) else { break };
                if send.send(told).is_err() {
                    break;
                }
            }
        });
        let said = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = errors.map(|mut errors| errors.read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Self { child, told, said: Some(said) })
    }

    /// Why it ended; `None` where it ended well.
    fn ended(mut self) -> Option<String> {
        drop(self.child.stdin.take());
        // What a driver in trouble holds back does not end by itself.
        let until = Instant::now() + Duration::from_secs(10);
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
                _ => return Some("its process told all and did not end".to_owned()),
            }
        };
        let said = self.said.take().and_then(|said| said.join().ok()).unwrap_or_default();
        if status.code().is_some_and(|code| code < 2) {
            return None;
        }
        let last = said.lines().rev().find(|line| line.starts_with("error: "));
        let last = last.or_else(|| said.lines().rev().find(|line| !line.trim().is_empty()));
        let why = last
            .map(|line| format!(": {}", line.trim_start_matches("error: ")))
            .unwrap_or_default();
        Some(format!("its process ended, {status}{why}"))
    }
}

impl Drop for Process {
    /// Nothing of a check outlives it.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
