//! `firstlight remote HOST`: firstlight on another machine, by the user's own ssh.
//!
//! Invariant: nothing is overwritten, there or here; and before something is copied or run, what that will be was shown.
//! The first call asks what the machine is and what lies there, and changes nothing.

mod account;
mod binary;
mod copy;
mod execute;
mod fate;
mod fetch;
mod host;
mod look;
mod ssh;
mod survey;

use crate::Outcome;
use crate::cli::Remote;
use crate::destination;
use crate::output::Output;
use host::Host;
use ssh::Ssh;
use std::time::Duration;

pub(super) fn run(arguments: &Remote, output: &Output) -> anyhow::Result<Outcome> {
    let host = Host::parse(&arguments.host)?;
    if !arguments.dry_run {
        destination::folder(&arguments.output)?;
    }
    let ssh = Ssh::new(host, Duration::from_secs_f64(arguments.wait));
    match arguments.command.is_empty() {
        true => look::run(arguments, &ssh, output),
        false => execute::run(arguments, &ssh, output),
    }
}
