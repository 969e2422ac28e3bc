//! `firstlight ask-nvml`, hidden: the process that calls into the driver for the others, so that they always answer.

use crate::Outcome;
use crate::cli::Waiting;
use crate::own_program::own_program;
use probe::{Source, nvml};
use std::time::Duration;

pub(super) fn run() -> anyhow::Result<Outcome> {
    nvml::tell(&Source::live(), &mut std::io::stdout().lock());
    Ok(Outcome::Good)
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
