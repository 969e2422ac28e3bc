//! `firstlight ps --stop PID`: one process, by its number, if it is the user's; then a look whether the memory came back.

use crate::Outcome;
use crate::cli::Ps;
use crate::failure::Failure;
use crate::output::Output;
use facts::{GpuProcess, Machine};

pub(super) fn run(
    pid: u32,
    arguments: &Ps,
    machine: &Machine,
    output: &Output,
) -> anyhow::Result<Outcome> {
    if arguments.recorded.is_some() {
        let hint = "leave out --recorded to stop a process of this machine";
        return Err(Failure::hinted("a process of a recorded machine cannot be stopped", hint));
    }
    let process = find(pid, machine)?;
    end(process, arguments, output)
}

/// The process, if it has GPU memory at all: this command is not for others.
fn find(pid: u32, machine: &Machine) -> anyhow::Result<&GpuProcess> {
    machine.gpu_processes.iter().find(|process| process.pid == pid).ok_or_else(|| {
        let known: Vec<String> =
            machine.gpu_processes.iter().map(|process| process.pid.to_string()).collect();
        let hint = match known.is_empty() {
            true => "no process has GPU memory".to_owned(),
            false => format!("those that have: {}", known.join(", ")),
        };
        Failure::hinted(format!("process {pid} has no GPU memory"), hint)
    })
}

/// Refuses a process of somebody else, also to root: who may end it is its owner's to say.
fn owned(process: &GpuProcess, own: u32) -> anyhow::Result<()> {
    match &process.uid {
        Some(uid) if uid.value == own => Ok(()),
        Some(uid) => Err(Failure::hinted(
            format!("process {} belongs to user {}, you are user {own}", process.pid, uid.value),
            "ask its owner; `firstlight ps` shows its command",
        )),
        None => Err(Failure::hinted(
            format!("the owner of process {} cannot be read", process.pid),
            "it has ended, or it is outside this container: stop it where it was started",
        )),
    }
}

#[cfg(not(target_os = "linux"))]
fn end(process: &GpuProcess, _: &Ps, _: &Output) -> anyhow::Result<Outcome> {
    owned(process, 0)?;
    Err(Failure::hinted("stopping a process is made for Linux", "stop it where it was started"))
}

#[cfg(target_os = "linux")]
use on_linux::end;

#[cfg(target_os = "linux")]
mod on_linux {
    use super::super::signal::Held;
    use super::*;
    use anyhow::Context;
    use probe::Source;
    use serde::Serialize;
    use std::io::{BufRead, IsTerminal, Write};
    use std::time::Duration;

    /// What a server needs to write its state and leave.
    const PATIENCE: Duration = Duration::from_secs(10);
    /// What the driver needs to take a large process's memory back.
    const COLLECTION: Duration = Duration::from_secs(5);

    #[derive(Serialize)]
    struct Stopped {
        schema: u32,
        pid: u32,
        ended: bool,
        signal: &'static str,
        /// What it had before; `null` where the driver does not count.
        had_bytes: Option<u64>,
        /// Whether the driver no longer lists it.
        memory_came_back: bool,
    }

    pub(super) fn end(
        process: &GpuProcess,
        arguments: &Ps,
        output: &Output,
    ) -> anyhow::Result<Outcome> {
        owned(process, rustix::process::getuid().as_raw())?;
        let pid = process.pid;
        let held = Held::open(pid).with_context(|| format!("process {pid} cannot be reached"))?;
        if !arguments.yes && !ask(&format!("stop process {pid} ({})?", describe(process)))? {
            output.text("nothing was stopped")?;
            return Ok(Outcome::Good);
        }
        // Held first and listed again: the number still means the process that was shown.
        let again = listed(pid);
        if again.as_ref().and_then(|now| now.command.as_ref()) != process.command.as_ref() {
            return Err(Failure::hinted(
                format!("process {pid} is no longer the one that was listed"),
                "list them again with `firstlight ps`",
            ));
        }
        let failed = || format!("process {pid} cannot be signalled");
        held.terminate().with_context(failed)?;
        let mut signal = "TERM";
        let mut ended = held.ended_within(PATIENCE)?;
        if !ended && (arguments.kill || may_ask() && ask(&deaf(pid))?) {
            held.kill().with_context(failed)?;
            signal = "KILL";
            ended = held.ended_within(COLLECTION)?;
        }
        let memory_came_back = ended && collected(pid);
        let had_bytes = process.bytes();
        let stopped =
            Stopped { schema: facts::SCHEMA, pid, ended, signal, had_bytes, memory_came_back };
        output.either(&stopped, |_| say(&stopped))?;
        Ok(if ended && memory_came_back { Outcome::Good } else { Outcome::Bad })
    }

    fn describe(process: &GpuProcess) -> String {
        let command = process.command.as_ref().or(process.name.as_ref());
        let mut words = command.map_or("no command", |fact| fact.value.as_str()).to_owned();
        if let Some(bytes) = process.bytes() {
            words.push_str(&format!("; {} MiB", bytes >> 20));
        }
        if let Some(age) = &process.age_seconds {
            words.push_str(&format!("; running {} min", age.value / 60));
        }
        words
    }

    fn deaf(pid: u32) -> String {
        format!("process {pid} does not end on TERM; kill it (what it has not saved is lost)?")
    }

    fn say(stopped: &Stopped) -> String {
        let pid = stopped.pid;
        match (stopped.ended, stopped.memory_came_back) {
            (true, true) => {
                let bytes = stopped
                    .had_bytes
                    .map_or(String::new(), |bytes| format!(" ({} MiB)", bytes >> 20));
                format!(
                    "process {pid} ended on {}; its GPU memory came back{bytes}\n",
                    stopped.signal
                )
            }
            (true, false) => format!(
                "process {pid} ended on {}, but the driver still lists its memory: `firstlight ps` shows who has it\n",
                stopped.signal
            ),
            (false, _) => format!(
                "process {pid} did not end on {}; add --kill to end it without asking it\n",
                stopped.signal
            ),
        }
    }

    fn listed(pid: u32) -> Option<GpuProcess> {
        let options = probe::Options { source: Source::live(), site_packages: Vec::new() };
        let machine = probe::machine(&options);
        machine.gpu_processes.into_iter().find(|process| process.pid == pid)
    }

    fn collected(pid: u32) -> bool {
        let steps = 10;
        (0..steps).any(|step| {
            if step > 0 {
                std::thread::sleep(COLLECTION / steps);
            }
            listed(pid).is_none()
        })
    }

    fn may_ask() -> bool {
        std::io::stdin().is_terminal()
    }

    /// The question goes to standard error, so that `--json` stays one document.
    fn ask(question: &str) -> anyhow::Result<bool> {
        if !may_ask() {
            let hint = "add --yes to stop it without being asked";
            return Err(Failure::hinted(
                "there is nobody to ask: standard input is no terminal",
                hint,
            ));
        }
        eprint!("{question} [y/N] ");
        std::io::stderr().flush()?;
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use facts::Fact;

    #[test]
    fn only_the_user_s_own_process_may_be_stopped() {
        let process = |uid: Option<u32>| GpuProcess {
            pid: 7,
            uid: uid.map(|uid| Fact::new(uid, "/proc/7/status")),
            ..GpuProcess::default()
        };
        assert!(owned(&process(Some(1000)), 1000).is_ok());
        let refused = |uid, own| owned(&process(uid), own).unwrap_err().to_string();
        assert_eq!(refused(Some(1001), 1000), "process 7 belongs to user 1001, you are user 1000");
        assert!(refused(Some(1000), 0).contains("you are user 0"));
        assert!(refused(None, 1000).contains("cannot be read"));
    }
}
