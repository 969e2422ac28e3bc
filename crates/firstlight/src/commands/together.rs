//! `firstlight together`, hidden: what several GPUs do together, in one process that sees them all; and what starts it.
//!
//! A transfer that hangs, hangs in the driver: the process that measures can be ended, and what it has told by then is kept. It finds
//! NCCL's setting before it loads NCCL.

pub(super) mod chosen;

use self::chosen::{Chosen, VISIBLE};
use super::ask_nvml::{self, Seen};
use crate::Outcome;
use crate::cli::Together;
use crate::progress::Progress;
use crate::telling::{Heard, Telling, tell};
use ::bench::{FabricPlan, fabric, sustained};
use device::cuda::NCCL_SETTING;
use facts::{FabricReport, Machine, SustainedReport};
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::path::Path;
use std::time::{Duration, Instant};

/// What it tells as it comes, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Told {
    /// All that was measured between the GPUs so far.
    Fabric(FabricReport),
    /// The load begins now.
    Load,
    Sustained(SustainedReport),
}

pub(super) fn run(arguments: &Together) -> anyhow::Result<Outcome> {
    // Whatever this one waits for: without the one who started it nothing comes of it.
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
                lost = tell(&Told::Fabric(report.clone()));
            }
        })?;
        lost?;
        tell(&Told::Fabric(report))?;
    }
    if let Some(seconds) = arguments.sustain {
        let mut begun = Ok(());
        let time = Duration::from_secs(seconds);
        let report = sustained(gpus, time, &mut || begun = tell(&Told::Load))?;
        begun?;
        tell(&Told::Sustained(report))?;
    }
    Ok(Outcome::Good)
}

/// Beside the time that was given: contexts, libraries and the reference.
const LONGER: Duration = Duration::from_secs(90);

/// GPUs that do something together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) gpus: &'a [Chosen],
    /// What is known of their links.
    pub(super) machine: &'a Machine,
    /// The environment whose NCCL is meant, where one was named.
    pub(super) venv: Option<&'a Path>,
    /// When it has to end whatever it does; `None` for a usual patience.
    pub(super) until: Option<Instant>,
}

impl Group<'_> {
    /// What they carry between each other, measured for so long by a process that is ended where it does not answer. Transfers are of
    /// `largest` bytes at the most.
    pub(super) fn between(&self, largest: u64, time: Duration) -> FabricReport {
        let progress = Progress::start("between the GPUs");
        let mut done = FabricReport::default();
        let broke = self.hear(time, "--fabric", largest, |told| {
            if let Told::Fabric(report) = told {
                let (copies, sums) = (report.copies.len(), report.collectives.len());
                progress.say(format!("{copies} copies, {sums} collectives"));
                done = report;
            }
        });
        done.gpus = self.gpus.iter().map(|gpu| gpu.index).collect();
        done.broke = done.broke.or(broke);
        diagnose::links(self.machine, &mut done);
        done
    }

    /// What they do under load for so long, in a process that is ended where it does not answer.
    pub(super) fn under_load(&self, time: Duration) -> SustainedReport {
        let _progress = Progress::start("a product on all GPUs");
        let mut done =
            SustainedReport { seconds: time.as_secs_f64(), ..SustainedReport::default() };
        let mut watched: Option<(f64, Telling<Seen>)> = None;
        let mut begun = Instant::now();
        let broke = self.hear(time, "--sustain", 0, |told| match told {
            Told::Load => {
                begun = Instant::now();
                // A GPU whose state nobody tells is under load all the same.
                let watch = ask_nvml::watched().ok();
                watched = watch.map(|watch| (begun.elapsed().as_secs_f64(), watch));
            }
            Told::Sustained(mut report) => {
                if let Some((late, watch)) = watched.take() {
                    add_states(&mut report, &watch, late);
                }
                done = report;
            }
            Told::Fabric(_) => {}
        });
        done.broke = done.broke.or(broke);
        done
    }

    /// Starts a process and hears it to its end; why it did not come to it.
    fn hear(
        &self,
        time: Duration,
        what: &str,
        largest: u64,
        mut told: impl FnMut(Told),
    ) -> Option<String> {
        let patient = Instant::now() + LONGER + time;
        let until = self.until.map_or(patient, |until| until.min(patient));
        let started = Telling::start(|command| {
            command.args(["together", what, &time.as_secs().to_string()]);
            command.args(["--largest", &largest.to_string()]);
            let numbers: Vec<String> = self.gpus.iter().map(|gpu| gpu.index.to_string()).collect();
            let uuids: Vec<&str> = self.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
            command.args(["--gpus", &numbers.join(",")]).env(VISIBLE, uuids.join(","));
            // What is loaded at its first launch could wait for a kernel that waits for this GPU.
            command.env(NCCL_SETTING.0, NCCL_SETTING.1).env("CUDA_MODULE_LOADING", "EAGER");
            // What NCCL says is no word of ours.
            if std::env::var_os("NCCL_DEBUG_FILE").is_none() {
                command.env("NCCL_DEBUG_FILE", "/dev/stderr");
            }
            command.envs(self.venv.map(|venv| ("VIRTUAL_ENV", venv)));
        });
        let process: Telling<Told> = match started {
            Ok(process) => process,
            Err(error) => return Some(format!("its process could not be started: {error}")),
        };
        loop {
            match process.hears(until) {
                Heard::Word(word) => told(word),
                Heard::Nothing => {
                    return Some("its process did not answer and was ended".to_owned());
                }
                Heard::End => return process.ended(),
            }
        }
    }
}

/// Adds what was seen of the GPUs while they worked; the first look was so many seconds late.
fn add_states(report: &mut SustainedReport, watch: &Telling<Seen>, late: f64) {
    while let Heard::Word(seen) = watch.hears(Instant::now()) {
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
