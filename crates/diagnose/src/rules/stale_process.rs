use super::{Context, Need, Rule, Text};
use crate::host;
use facts::{Confidence, Finding, GpuProcess, Severity};
pub(super) const RULE: Rule = Rule {
    id: "stale-process",
    title: "an orphaned process holds GPU memory",
    about: "\
A server starts worker processes that hold the GPU's memory. If the server is killed with SIGKILL or by the
out-of-memory killer, the workers keep running: the port is free, but a new server fails to start for lack of memory.
The workers' parent is then process 1, or the shell that started the server. A process that has ended but was never
reaped by its parent (a zombie) can keep memory too, and a process that waits inside the driver (uvm_...) cannot be
ended by any signal.

It shows as an out-of-memory error at the start, with nvidia-smi listing
  VLLM::EngineCore

Detected by joining NVML's list of processes with their parents, states and wait channels in /proc.

Stop that process by its PID (`firstlight ps --stop PID`), never by a name pattern; a process stuck in the driver ends
only with a reboot.",
    links: &[
        "https://github.com/vllm-project/vllm/issues/34643",
        "https://github.com/vllm-project/vllm/issues/25127",
        "https://github.com/vllm-project/vllm/issues/55510",
    ],
    texts: &[
        Text::new("Free memory on device * on startup is less than desired GPU memory utilization", "ValueError: Free memory on device (1.52/22.3 GiB) on startup is less than desired GPU memory utilization (0.9, 20.07 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."),
        Text::new("C VLLM::EngineCore", "|    0   N/A  N/A          396079      C   VLLM::EngineCore                       20284MiB |"),
    ],
    remedy: |_| vec!["firstlight ps".into()],
    needs: &[Need::Driver],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// Name parts of worker processes, which are useless without the program that started them.
const WORKERS: [&str; 9] = [
    "VLLM::",
    "sglang::",
    "ray::",
    "multiprocessing.spawn",
    "multiprocessing.forkserver",
    "multiprocessing-fork",
    "--local-rank",
    "--local_rank",
    "text-generation-launcher",
];

/// Init processes and shells: as the parent of a worker they show that the program that started it has ended.
const REAPERS: [&str; 13] = [
    "systemd",
    "init",
    "tini",
    "dumb-init",
    "docker-init",
    "catatonit",
    "podman-init",
    "pause",
    "bash",
    "sh",
    "zsh",
    "fish",
    "sshd",
];

fn check(context: &Context) -> Vec<Finding> {
    let inside = host::container(context.machine).is_some();
    context.machine.gpu_processes.iter().filter_map(|process| judge(process, inside)).collect()
}

fn judge(process: &GpuProcess, inside: bool) -> Option<Finding> {
    let state = process.state.as_ref().map(|fact| fact.value.as_str());
    let waits = process
        .waits_in
        .as_ref()
        .filter(|fact| fact.value.starts_with("uvm_") || fact.value.starts_with("nv"));
    let stuck = waits.filter(|_| matches!(state, Some("D" | "Z")));
    let command = process.command.as_ref().or(process.name.as_ref());
    let words = command.map_or("", |fact| fact.value.as_str());
    let (parent, parent_name) = process.parent.as_ref().map(|fact| fact.value.clone())?;
    let worker = WORKERS.iter().any(|name| words.contains(name));
    // In a container, process 1 is usually the server itself, so it does not count as an adopter.
    let adopted = (parent == 1 && !inside) || REAPERS.contains(&parent_name.as_str());
    // Process 1 is the regular parent of a process that a service manager or a container runtime started.
    let placed = process.unit.is_some() || process.container.is_some();
    let (what, confidence, cause) = if state == Some("Z") {
        (
            format!("process {} has ended and still holds GPU memory", process.pid),
            Confidence::Certain,
            format!("Its parent, process {parent} ({parent_name}), has not reaped it."),
        )
    } else if stuck.is_some() {
        (
            format!("process {} is stuck in the driver and holds GPU memory", process.pid),
            Confidence::Certain,
            "It waits inside the driver and takes no signal.".to_owned(),
        )
    } else if worker && adopted {
        (
            format!("process {} ({}) is orphaned and holds GPU memory", process.pid, short(words)),
            Confidence::Likely,
            format!(
                "It is a worker, and its parent is process {parent} ({parent_name}): the program that started it is gone."
            ),
        )
    } else if parent == 1 && !placed && !inside {
        (
            format!("process {} ({}) runs without the program that started it", process.pid, short(words)),
            Confidence::Possible,
            "Its parent is process 1 and it belongs to no service: the program that started it has ended. A detached \
             program (nohup, setsid) looks the same."
                .to_owned(),
        )
    } else {
        return None;
    };
    // A detached process may be intended: information only.
    let severity =
        if confidence == Confidence::Possible { Severity::Info } else { Severity::Warning };
    let fix = match (state, &stuck) {
        (Some("Z"), None) => vec![format!("firstlight ps --stop {parent}")],
        (_, Some(_)) => vec!["sudo reboot".to_owned()],
        _ => vec![format!("firstlight ps --stop {}", process.pid)],
    };
    let mut draft = RULE.finding(severity, confidence, what);
    for it in &process.uses {
        let bytes = it.bytes.map_or("memory that is not counted".to_owned(), |bytes| {
            format!("{} MiB", bytes >> 20)
        });
        draft = draft.evidence(
            format!("{bytes} of GPU {}", it.gpu),
            "NVML nvmlDeviceGetComputeRunningProcesses",
        );
    }
    draft = draft
        .fact("state", process.state.as_ref())
        .fact("command", process.command.as_ref())
        .fact("age in seconds", process.age_seconds.as_ref())
        .fact("waits in", process.waits_in.as_ref());
    if let Some(fact) = &process.parent {
        draft = draft.evidence(format!("parent {parent} ({parent_name})"), fact.source.clone());
    }
    Some(draft.cause(cause).fix(fix).finish())
}

fn short(words: &str) -> String {
    words.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines, processes::process};
    use facts::{Confidence::*, Fact, Machine, Severity::*};

    fn with(process: facts::GpuProcess) -> Machine {
        let mut machine = machines::a10();
        machine.gpu_processes = vec![process];
        machine
    }

    pub(super) fn cases() -> Vec<Case> {
        let engine =
            |parent: u32, name: &str| process(396_079, "VLLM::EngineCore", parent, name, 20_284);
        let mut stuck = engine(1, "systemd");
        stuck.state = Some(Fact::new("D".into(), "/proc/396079/stat"));
        stuck.waits_in = Some(Fact::new("uvm_va_space_mm_shutdown".into(), "/proc/396079/wchan"));
        let mut zombie = process(77, "python train.py", 70, "python", 6_451);
        zombie.state = Some(Fact::new("Z".into(), "/proc/77/stat"));
        let mut service = process(88, "ollama serve", 1, "systemd", 4_000);
        service.unit = Some(Fact::new("ollama.service".into(), "/proc/88/cgroup"));
        vec![
            Case::new("an engine whose server is gone", with(engine(1, "systemd")), vec![]).finds(
                Warning,
                Likely,
                &[
                    "process 396079 (VLLM::EngineCore) is orphaned",
                    "20284 MiB of GPU 0 [NVML",
                    "parent 1 (systemd) [/proc/396079/stat]",
                    "firstlight ps --stop 396079",
                ],
            ),
            Case::new("adopted by the shell that started it", with(engine(910, "bash")), vec![])
                .finds(Warning, Likely, &["parent is process 910 (bash)"]),
            Case::new("stuck in the driver", with(stuck), vec![])
                .finds(
                    Warning,
                    Certain,
                    &["takes no signal", "uvm_va_space_mm_shutdown", "sudo reboot"],
                )
                .without(&["--stop"]),
            Case::new("a zombie", with(zombie), vec![]).finds(
                Warning,
                Certain,
                &[
                    "process 77 has ended",
                    "process 70 (python), has not reaped it",
                    "firstlight ps --stop 70",
                ],
            ),
            Case::new("nohup", with(process(99, "python train.py", 1, "systemd", 6_451)), vec![])
                .finds(Info, Possible, &["runs without the program that started it", "nohup"]),
            Case::new("an engine with its server", with(engine(395_000, "vllm")), vec![]),
            Case::new("a service", with(service), vec![]),
            Case::new(
                "an engine whose server is process 1 of their container",
                machines::in_container(with(engine(1, "vllm"))),
                vec![],
            ),
            Case::new(
                "an engine whose server is gone in a container with an init",
                machines::in_container(with(engine(1, "tini"))),
                vec![],
            )
            .finds(Warning, Likely, &["parent is process 1 (tini)"]),
            Case::new(
                "an ordinary run",
                with(process(99, "python train.py", 910, "bash", 6_451)),
                vec![],
            ),
            Case::new("no process", machines::a10(), vec![]),
        ]
    }
}
