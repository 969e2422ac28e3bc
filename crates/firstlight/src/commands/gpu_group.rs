//! `firstlight together`, hidden: measures several GPUs together, in one process that sees them all, and starts that
//! process.
//!
//! A hanging transfer hangs in the driver: the measuring process can be killed, and its messages until then are kept.
//! NCCL's setting is in its environment before NCCL is loaded.

pub(super) mod chosen;

use self::chosen::{VISIBLE, WorkingGpu};
use super::ask_nvml::{self, GpuStates};
use crate::Outcome;
use crate::cli::GroupArguments;
use crate::message_reader::{MessageReader, Received, send_message};
use crate::progress::Progress;
use ::bench::sustained;
use facts::{FabricReport, Machine, SustainedReport};
use ops_cuda::{FabricPlan, NCCL_SETTING, fabric};
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::path::Path;
use std::time::{Duration, Instant};

/// A message about progress, one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum GroupMessage {
    /// All measurements between GPUs so far.
    Fabric(FabricReport),
    /// The load starts now.
    Load,
    Sustained(SustainedReport),
}

pub(super) fn run(arguments: &GroupArguments) -> anyhow::Result<Outcome> {
    // Without its parent, this process has no purpose.
    std::thread::spawn(|| {
        let mut line = String::new();
        while std::io::stdin().lock().read_line(&mut line).is_ok_and(|count| count > 0) {}
        crate::stopping::end_at_once(2);
    });
    let gpus = &arguments.gpus;
    if let Some(seconds) = arguments.fabric {
        let until = Instant::now() + Duration::from_secs(seconds);
        let plan =
            FabricPlan { gpus: gpus.clone(), largest: arguments.largest, until: Some(until) };
        let mut lost = Ok(());
        let report = fabric(&plan, &mut |report| {
            if lost.is_ok() {
                lost = send_message(&GroupMessage::Fabric(report.clone()));
            }
        })?;
        lost?;
        send_message(&GroupMessage::Fabric(report))?;
    }
    if let Some(seconds) = arguments.sustain {
        let mut begun = Ok(());
        let time = Duration::from_secs(seconds);
        let report = sustained(gpus, time, &mut || begun = send_message(&GroupMessage::Load))?;
        begun?;
        send_message(&GroupMessage::Sustained(report))?;
    }
    Ok(Outcome::Good)
}

/// Additional time for contexts, libraries and the reference.
const LONGER: Duration = Duration::from_secs(90);

/// A group of GPUs to measure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) gpus: &'a [WorkingGpu],
    /// Facts about their links.
    pub(super) machine: &'a Machine,
    /// The environment whose NCCL is used, if one was selected.
    pub(super) venv: Option<&'a Path>,
    /// Deadline at which it is killed; `None` for the default limit.
    pub(super) until: Option<Instant>,
}

impl Group<'_> {
    /// Measures transfers for this long in a process that is killed if it does not answer. Transfers have at most
    /// `largest` bytes.
    pub(super) fn between(&self, largest: u64, time: Duration) -> FabricReport {
        let progress = Progress::start("between the GPUs");
        let mut done = FabricReport::default();
        let broke = self.receive_messages(time, "--fabric", largest, |told| {
            if let GroupMessage::Fabric(report) = told {
                let (copies, sums) = (report.copies.len(), report.collectives.len());
                progress.set_step(format!("{copies} copies, {sums} collectives"));
                done = report;
            }
        });
        done.gpus = self.gpus.iter().map(|gpu| gpu.index).collect();
        done.broke = done.broke.or(broke);
        diagnose::links(self.machine, &mut done);
        done
    }

    /// Measures the GPUs under load for this long, in a process that is killed if it does not answer.
    pub(super) fn under_load(&self, time: Duration) -> SustainedReport {
        let _progress = Progress::start("a matrix product on all GPUs");
        let mut done =
            SustainedReport { seconds: time.as_secs_f64(), ..SustainedReport::default() };
        let mut watched: Option<(f64, MessageReader<GpuStates>)> = None;
        let mut begun = Instant::now();
        let broke = self.receive_messages(time, "--sustain", 0, |told| match told {
            GroupMessage::Load => {
                begun = Instant::now();
                // The load also runs without samples of the GPU's state.
                let watch = ask_nvml::watched().ok();
                watched = watch.map(|watch| (begun.elapsed().as_secs_f64(), watch));
            }
            GroupMessage::Sustained(mut report) => {
                if let Some((late, watch)) = watched.take() {
                    add_states(&mut report, &watch, late);
                }
                done = report;
            }
            GroupMessage::Fabric(_) => {}
        });
        done.broke = done.broke.or(broke);
        done
    }

    /// Starts a process and receives its messages until it exits; returns why it failed.
    fn receive_messages(
        &self,
        time: Duration,
        what: &str,
        largest: u64,
        mut told: impl FnMut(GroupMessage),
    ) -> Option<String> {
        let patient = Instant::now() + LONGER + time;
        let until = self.until.map_or(patient, |until| until.min(patient));
        let started = MessageReader::start(|command| {
            command.args(["together", what, &time.as_secs().to_string()]);
            command.args(["--largest", &largest.to_string()]);
            let numbers: Vec<String> = self.gpus.iter().map(|gpu| gpu.index.to_string()).collect();
            let uuids: Vec<&str> = self.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
            command.args(["--gpus", &numbers.join(",")]).env(VISIBLE, uuids.join(","));
            // A kernel module that is loaded at its first launch could wait for a kernel that waits for this GPU.
            command.env(NCCL_SETTING.0, NCCL_SETTING.1).env("CUDA_MODULE_LOADING", "EAGER");
            // NCCL's log must not mix with the messages.
            if std::env::var_os("NCCL_DEBUG_FILE").is_none() {
                command.env("NCCL_DEBUG_FILE", "/dev/stderr");
            }
            command.envs(self.venv.map(|venv| ("VIRTUAL_ENV", venv)));
        });
        let process: MessageReader<GroupMessage> = match started {
            Ok(process) => process,
            Err(error) => return Some(format!("its process could not be started: {error}")),
        };
        loop {
            match process.receive(until) {
                Received::Word(word) => told(word),
                Received::Nothing => {
                    return Some("its process did not answer and was ended".to_owned());
                }
                Received::End => return process.ended(),
            }
        }
    }
}

/// Adds the samples of the GPUs under load; the first sample was this many seconds late.
fn add_states(report: &mut SustainedReport, watch: &MessageReader<GpuStates>, late: f64) {
    while let Received::Word(seen) = watch.receive(Instant::now()) {
        for (index, mut state) in seen {
            state.seconds += late;
            if let Some(load) = report.gpus.iter_mut().find(|load| load.gpu == index)
                && state.seconds <= report.seconds
            {
                load.states.push(state);
            }
        }
    }
}
