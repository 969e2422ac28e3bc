//! `firstlight ask-nvml`, hidden: the process that calls the driver for others, so that they never hang.

use crate::Outcome;
use crate::cli::{AskNvml, DriverTimeout};
use crate::message_reader::{MessageReader, send_message};
use crate::own_program::own_program;
use facts::LoadState;
use probe::{Source, nvml};
use std::time::Duration;

/// The state of each GPU by its index, at one moment.
pub(super) type GpuStates = Vec<(u32, LoadState)>;

/// Interval between samples of GPUs under load.
const EVERY: Duration = Duration::from_millis(500);

pub(super) fn run(arguments: &AskNvml) -> anyhow::Result<Outcome> {
    match arguments.every {
        None if arguments.moment => {
            nvml::write_moment(&Source::live(), &mut std::io::stdout().lock());
        }
        None => nvml::write_record(&Source::live(), &mut std::io::stdout().lock()),
        // If writing fails, the reader has closed the pipe.
        Some(millis) => {
            let every = Duration::from_millis(millis);
            nvml::watch(&Source::live(), every, |seen| send_message(&seen).is_ok());
        }
    }
    Ok(Outcome::Good)
}

/// A process that samples the GPUs until it is dropped.
pub(super) fn watched() -> std::io::Result<MessageReader<GpuStates>> {
    MessageReader::start(|command| {
        command.args(["ask-nvml", "--every", &EVERY.as_millis().to_string()]);
    })
}

/// This machine; the driver is queried through this program.
pub(super) fn live(waiting: &DriverTimeout) -> Source {
    let patience = waiting.wait.map_or(Source::PATIENCE, Duration::from_secs_f64);
    let source = Source::live().with_patience(patience);
    match own_program() {
        Some(own) => source.with_nvml_helper(own, &["ask-nvml"]),
        None => source,
    }
}
