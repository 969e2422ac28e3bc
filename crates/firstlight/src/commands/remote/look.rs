//! Without a command: lists the machine's files, which of them exist locally, and what a stop or a termination would
//! lose.

use super::account::RemoteReport;
use super::fetch;
use super::ssh::Ssh;
use super::survey::RemoteMachine;
use crate::Outcome;
use crate::cli::Remote;
use crate::output::Output;

pub(super) fn run(arguments: &Remote, ssh: &Ssh, output: &Output) -> anyhow::Result<Outcome> {
    let machine = RemoteMachine::ask(ssh, &arguments.at, &[])?;
    let mut runs = fetch::list_runs(&machine, &arguments.output);
    let mut account = RemoteReport::new(&machine);
    if arguments.fetch && !arguments.dry_run {
        for run in runs.iter_mut().filter(|run| !run.is_here) {
            run.fetch(ssh, &machine)?;
            account.fetched.push(run.path.display().to_string());
        }
    }
    account.leave(&machine, &runs);
    output.either(&account, |_| account.done())?;
    let is_missing = runs.iter().any(|run| !run.is_here);
    Ok(if is_missing { Outcome::Bad } else { Outcome::Good })
}
