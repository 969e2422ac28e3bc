//! `firstlight ps --stop PID`: stops one process of the user, and then checks that its memory is freed.

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
    end(process, machine, arguments, output)
}

/// The process, if it uses GPU memory: this command is not for others.
fn find(pid: u32, machine: &Machine) -> anyhow::Result<&GpuProcess> {
    machine.gpu_processes.iter().find(|process| process.pid == pid).ok_or_else(|| {
        let known: Vec<String> =
            machine.gpu_processes.iter().map(|process| process.pid.to_string()).collect();
        let unlisted = machine.notes.iter().find(|note| note.contains("cannot be listed"));
        let hint = match (known.is_empty(), unlisted) {
            // Then it may use some: missing data of the driver does not mean none.
            (_, Some(note)) => note.clone(),
            (true, None) => "no process uses GPU memory".to_owned(),
            (false, None) => format!("the processes that do: {}", known.join(", ")),
        };
        Failure::hinted(format!("process {pid} does not use GPU memory"), hint)
    })
}

/// Refuses a process of another user, also for root: only its owner may stop it.
fn owned(process: &GpuProcess, own: u32) -> anyhow::Result<()> {
    match &process.uid {
        Some(uid) if uid.value == own => Ok(()),
        Some(uid) => Err(Failure::hinted(
            format!("process {} belongs to user {}, you are user {own}", process.pid, uid.value),
            "ask its owner; `firstlight ps` shows its command",
        )),
        None => Err(Failure::hinted(
            format!("the owner of process {} cannot be read", process.pid),
            "it has ended, or it is outside this container: stop it there",
        )),
    }
}

#[cfg(not(target_os = "linux"))]
fn end(process: &GpuProcess, _: &Machine, _: &Ps, _: &Output) -> anyhow::Result<Outcome> {
    owned(process, 0)?;
    Err(Failure::hinted("stopping a process works only on Linux", "stop it where it was started"))
}

#[cfg(target_os = "linux")]
use on_linux::end;

#[cfg(target_os = "linux")]
mod on_linux {
    use super::super::signal::PidHandle;
    use super::*;
    use crate::cli::DriverTimeout;
    use crate::commands::ask_nvml::live;
    use crate::confirm;
    use anyhow::Context;
    use serde::Serialize;
    use std::io::IsTerminal;
    use std::time::{Duration, Instant};

    /// Time that the driver needs to free a large process's memory.
    const COLLECTION: Duration = Duration::from_secs(5);

    #[derive(Serialize)]
    struct StopReport {
        schema: u32,
        pid: u32,
        ended: bool,
        signal: &'static str,
        /// Its memory before; `null` if the driver does not report it.
        had_bytes: Option<u64>,
        /// Whether the driver no longer lists it; `null` if the driver does not answer.
        memory_came_back: Option<bool>,
        /// Bytes in use on each of its GPUs, before and after.
        gpus: Vec<Memory>,
    }

    #[derive(Serialize)]
    struct Memory {
        gpu: u32,
        used_before_bytes: Option<u64>,
        used_after_bytes: Option<u64>,
    }

    pub(super) fn end(
        process: &GpuProcess,
        before: &Machine,
        arguments: &Ps,
        output: &Output,
    ) -> anyhow::Result<Outcome> {
        owned(process, rustix::process::getuid().as_raw())?;
        let pid = process.pid;
        let grace = Duration::from_secs_f64(arguments.grace);
        let held =
            PidHandle::open(pid).with_context(|| format!("process {pid} cannot be reached"))?;
        if !arguments.yes && !ask(&format!("stop process {pid} ({})?", describe(process)))? {
            output.text("nothing was stopped")?;
            return Ok(Outcome::Good);
        }
        // The pidfd is opened first and the process listed again, so that the PID still refers to the process shown.
        let again = machine(&arguments.waiting);
        let again = again.gpu_processes.iter().find(|now| now.pid == pid);
        if again.and_then(|now| now.command.as_ref()) != process.command.as_ref() {
            return Err(Failure::hinted(
                format!("process {pid} is another process than the one listed"),
                "list them again with `firstlight ps`",
            ));
        }
        let failed = || format!("process {pid} cannot be signalled");
        held.terminate().with_context(failed)?;
        let mut signal = "TERM";
        let mut ended = held.ended_within(grace)?;
        if !ended && (arguments.kill || may_ask() && ask(&unresponsive(pid))?) {
            held.kill().with_context(failed)?;
            signal = "KILL";
            ended = held.ended_within(grace)?;
        }
        let after = if ended { collected(pid, arguments) } else { machine(&arguments.waiting) };
        let memory_came_back = tells(&after).then(|| ended && !lists(&after, pid));
        let stopped = StopReport {
            schema: facts::SCHEMA,
            pid,
            ended,
            signal,
            had_bytes: process.bytes(),
            memory_came_back,
            gpus: process.uses.iter().map(|it| memory(it.gpu, before, &after)).collect(),
        };
        output.either(&stopped, |_| result_sentence(&stopped))?;
        Ok(if memory_came_back == Some(true) { Outcome::Good } else { Outcome::Bad })
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

    fn unresponsive(pid: u32) -> String {
        format!("process {pid} does not end on SIGTERM; kill it (unsaved work is lost)?")
    }

    fn result_sentence(stopped: &StopReport) -> String {
        let pid = stopped.pid;
        let mut text = match (stopped.ended, stopped.memory_came_back) {
            (true, Some(true)) => {
                let bytes = stopped
                    .had_bytes
                    .map_or(String::new(), |bytes| format!(" ({} MiB)", bytes >> 20));
                format!(
                    "process {pid} ended on {}; its GPU memory was freed{bytes}\n",
                    stopped.signal
                )
            }
            (true, Some(false)) => format!(
                "process {pid} ended on {}, but the driver still lists its memory: `firstlight ps` shows the owner\n",
                stopped.signal
            ),
            (true, None) => format!(
                "process {pid} ended on {}; whether its memory was freed is not known, because the driver does not answer: run `firstlight doctor`\n",
                stopped.signal
            ),
            (false, _) if stopped.signal == "KILL" => format!(
                "process {pid} did not end on SIGKILL: it is stuck inside the kernel, most likely in the driver, and only \
                 a reboot ends it\n"
            ),
            (false, _) => {
                format!("process {pid} did not end on SIGTERM; add --kill to send SIGKILL\n")
            }
        };
        for gpu in &stopped.gpus {
            if let (Some(before), Some(after)) = (gpu.used_before_bytes, gpu.used_after_bytes) {
                text.push_str(&format!(
                    "GPU {}: {} MiB in use before, {} MiB now\n",
                    gpu.gpu,
                    before >> 20,
                    after >> 20
                ));
            }
        }
        text
    }

    fn machine(waiting: &DriverTimeout) -> Machine {
        probe::machine(&probe::ProbeOptions { source: live(waiting), site_packages: Vec::new() })
    }

    /// Whether the driver answered: a silent driver proves nothing.
    fn tells(machine: &Machine) -> bool {
        let driver = machine.driver.as_ref();
        driver.is_some_and(|driver| driver.no_answer.is_none() && driver.nvml_error.is_none())
            && !machine.notes.iter().any(|note| note.contains("cannot be listed"))
    }

    fn lists(machine: &Machine, pid: u32) -> bool {
        machine.gpu_processes.iter().any(|process| process.pid == pid)
    }

    fn memory(gpu: u32, before: &Machine, after: &Machine) -> Memory {
        let used = |machine: &Machine| {
            let found = machine.gpus.iter().find(|it| it.index == gpu)?;
            Some(found.memory_used_bytes.as_ref()?.value)
        };
        Memory { gpu, used_before_bytes: used(before), used_after_bytes: used(after) }
    }

    /// The machine after the driver has freed the memory, or after the time limit.
    fn collected(pid: u32, arguments: &Ps) -> Machine {
        let until = Instant::now() + COLLECTION;
        loop {
            let now = machine(&arguments.waiting);
            if !tells(&now) || !lists(&now, pid) || Instant::now() >= until {
                return now;
            }
            std::thread::sleep(COLLECTION / 10);
        }
    }

    fn may_ask() -> bool {
        std::io::stdin().is_terminal()
    }

    fn ask(question: &str) -> anyhow::Result<bool> {
        confirm::agreed(false, question, "add --yes to stop it without confirmation")
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
