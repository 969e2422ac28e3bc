//! Runs a firstlight command on the machine: copies the program and its files, runs it, and fetches the run folders
//! that it wrote.

use super::account::RemoteReport;
use super::copy::CopiedFile;
use super::ssh::{CommandEnd, Ssh};
use super::survey::RemoteMachine;
use super::{binary, fetch};
use crate::Outcome;
use crate::cli::Remote;
use crate::confirm;
use crate::failure::Failure;
use crate::output::Output;
use crate::redact;
use std::time::Duration;

const RUN: &str = include_str!("run.sh");

pub(super) fn run(arguments: &Remote, ssh: &Ssh, output: &Output) -> anyhow::Result<Outcome> {
    let addresses = ssh.addresses()?;
    let mut files = vec![binary::read(arguments.binary.as_deref())?];
    for path in &arguments.send {
        files.push(CopiedFile::read(path)?);
    }
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let machine = RemoteMachine::ask(ssh, &arguments.at, &paths)?;
    binary::fits(&files[0], &machine)?;
    for file in &mut files {
        file.check_remote(&machine)?;
    }
    check_free_space(&files, &machine)?;
    let mut account = RemoteReport::new(&machine);
    (account.files, account.command) = (files, arguments.command.clone());
    if arguments.dry_run {
        output.either(&account, |_| account.intended())?;
        return Ok(Outcome::Good);
    }
    eprint!("{}", account.intended());
    if !confirm::agreed(
        arguments.yes,
        "proceed?",
        "add --yes, or use --dry-run to see what would be done",
    )? {
        return Ok(Outcome::Bad);
    }
    for file in &mut account.files {
        file.send(ssh, &machine)?;
    }
    let program = format!("./{}", account.files[0].path);
    starts(ssh, &machine, &program)?;
    let ended = execute(ssh, &machine, &program, &addresses, arguments, output, &mut account)?;
    // Its results are fetched whatever the outcome, unless the connection is lost.
    let result = outcome(ended, &machine, arguments);
    let after = match (RemoteMachine::ask(ssh, &arguments.at, &[]), &result) {
        (Err(_), Err(_)) => return result,
        (after, _) => after?,
    };
    let mut runs = fetch::list_runs(&after, &arguments.output);
    for run in runs.iter_mut().filter(|run| !run.is_here && !machine.runs.contains(&run.manifest)) {
        run.fetch(ssh, &after)?;
        account.fetched.push(run.path.display().to_string());
    }
    account.leave(&after, &runs);
    match &result {
        Ok(_) => output.either(&account, |_| account.done())?,
        Err(_) => eprint!("{}", account.done()),
    }
    result
}

/// Checks that the copies fit on the disk.
fn check_free_space(files: &[CopiedFile], machine: &RemoteMachine) -> anyhow::Result<()> {
    let bytes: usize = files.iter().filter(|file| !file.is_there).map(|file| file.bytes).sum();
    match bytes as u64 <= machine.free_bytes {
        true => Ok(()),
        false => Err(Failure::hinted(
            format!(
                "{} bytes have to be copied, and {} has {} free",
                bytes, machine.folder, machine.free_bytes
            ),
            "free some space there, or use another file system: --at DIR",
        )),
    }
}

/// Runs the program with `--version` first: a loader that lacks a C library version exits with the status of a finding.
fn starts(ssh: &Ssh, machine: &RemoteMachine, program: &str) -> anyhow::Result<()> {
    let script = "cd \"$1\" && exec \"$2\" --version";
    let said = ssh.feed(script, &[&machine.folder, program], Vec::new())?;
    match said.status.success() && said.out.starts_with(b"firstlight ") {
        true => Ok(()),
        false => {
            let hint = "build firstlight on a system with an older C library, or there, and name it: --binary FILE";
            Err(ssh.failed(&said, "cannot run the firstlight that was copied", hint))
        }
    }
}

fn execute(
    ssh: &Ssh,
    machine: &RemoteMachine,
    program: &str,
    addresses: &[String],
    arguments: &Remote,
    output: &Output,
    account: &mut RemoteReport,
) -> anyhow::Result<CommandEnd> {
    let redact = format!("{}={}", redact::VARIABLE, addresses.join(" "));
    let mut words = vec![machine.folder.as_str(), "env", &redact, program];
    words.extend(arguments.command.iter().map(String::as_str));
    let limit = Duration::from_secs_f64(arguments.limit);
    let (ended, said) = ssh.run(RUN, &words, limit, output.json)?;
    account.output = said;
    if let CommandEnd::Status(status) = ended {
        account.status = Some(status);
    }
    Ok(ended)
}

/// The command's outcome, if it has one.
fn outcome(
    ended: CommandEnd,
    machine: &RemoteMachine,
    arguments: &Remote,
) -> anyhow::Result<Outcome> {
    let name = &machine.name;
    let (what, hint) = match ended {
        CommandEnd::Status(0) => return Ok(Outcome::Good),
        CommandEnd::Status(1) => return Ok(Outcome::Bad),
        CommandEnd::Status(status) => (
            format!("the command failed on {name} (exit status {status})"),
            "its output is above".to_owned(),
        ),
        CommandEnd::Signal(signal) => (
            format!("the command was ended by signal {signal} on {name}"),
            "signal 9 usually means that the machine ran out of memory: check dmesg there"
                .to_owned(),
        ),
        CommandEnd::Late => (
            format!("the command took longer than {} s on {name}, and was ended", arguments.limit),
            "unwritten results are lost; allow more time with --limit SECONDS".to_owned(),
        ),
        CommandEnd::Lost => (
            format!("the connection to {name} was lost, and the command there ends with it"),
            "fetch its results with: firstlight remote HOST --fetch".to_owned(),
        ),
    };
    Err(Failure::hinted(what, hint))
}
