//! `firstlight remote HOST`: runs firstlight on another machine, through the user's ssh.
//!
//! Invariant: no file is overwritten on either machine, and every copy and command is shown before it is done. The
//! first call only reads the machine's facts and files.

mod account;
mod binary;
mod copy;
mod execute;
mod fetch;
mod file_system;
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
