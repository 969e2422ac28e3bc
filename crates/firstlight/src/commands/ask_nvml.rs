//! `firstlight ask-nvml`, hidden: the process that calls into the driver for the others, so that they always answer.

use crate::Outcome;
use crate::cli::{AskNvml, Waiting};
use crate::own_program::own_program;
use crate::telling::{Telling, tell};
use facts::LoadState;
use probe::{Source, nvml};
use std::time::Duration;

/// The state of each GPU by its index, at one moment.
pub(super) type Seen = Vec<(u32, LoadState)>;

/// How often GPUs under load are looked at.
const EVERY: Duration = Duration::from_millis(500);

pub(super) fn run(arguments: &AskNvml) -> anyhow::Result<Outcome> {
    match arguments.every {
        None if arguments.moment => {
            nvml::tell_moment(&Source::live(), &mut std::io::stdout().lock());
        }
        None => nvml::tell(&Source::live(), &mut std::io::stdout().lock()),
        // Nobody listens any more where it cannot be told.
        Some(millis) => {
            let every = Duration::from_millis(millis);
            nvml::watch(&Source::live(), every, |seen| tell(&seen).is_ok());
        }
    }
    Ok(Outcome::Good)
}

/// A process that looks at the GPUs again and again, until it is dropped.
pub(super) fn watched() -> std::io::Result<Telling<Seen>> {
    Telling::start(|command| {
        command.args(["ask-nvml", "--every", &EVERY.as_millis().to_string()]);
    })
}

/// This machine, whose driver is asked through this very program.
pub(super) fn live(waiting: &Waiting) -> Source {
    let patience = waiting.wait.map_or(Source::PATIENCE, Duration::from_secs_f64);
    let source = Source::live().with_patience(patience);
    match own_program() {
        Some(own) => source.with_nvml_helper(own, &["ask-nvml"]),
        None => source,
    }
}
