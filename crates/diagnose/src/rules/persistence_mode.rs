use super::{Context, Need, Role, Rule, Text};
use crate::{gpu, host};
use facts::{Confidence, Finding, Severity};

pub(super) const RULE: Rule = Rule {
    id: "persistence-mode",
    title: "the driver deinitializes the GPU between programs",
    about: "\
With persistence mode off, the driver tears down a GPU's state when the last program that uses it ends, and initializes
the GPU again for the next: about a second for each GPU at every start of nvidia-smi or of a CUDA program, and clocks
start low. Programs still run; turn it on for servers without a display. Initializing many GPUs can take longer than the
container toolkit's timeout.

It shows as slow first calls, as `Persistence-M: Off` in nvidia-smi, and as
  Warning: persistence mode is disabled on device 00000000:01:00.0.
and at the start of a container, as
  nvidia-container-cli: initialization error: driver rpc error: timed out: unknown.

Detected by asking NVML for each GPU.

Start NVIDIA's persistence daemon, which keeps the mode on across reboots.",
    links: &[
        "https://docs.nvidia.com/deploy/driver-persistence/index.html",
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/202",
    ],
    texts: &[
        Text::new("persistence mode is disabled on device", "Warning: persistence mode is disabled on device 00000000:01:00.0. See the Known Issues section of the nvidia-smi(1) man page for more information."),
        Text::new("nvidia-container-cli: initialization error: driver rpc error: timed out", "nvidia-container-cli: initialization error: driver rpc error: timed out: unknown."),
    ],
    role: Role::Notice,
    remedy: |seen| commands(seen.machine()),
    needs: &[Need::Gpu],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn commands(machine: &facts::Machine) -> Vec<String> {
    let mut lines: Vec<String> = host::driver_location_remark(machine).into_iter().collect();
    lines.push("sudo systemctl enable --now nvidia-persistenced".into());
    lines.push("# or until the next boot:".into());
    lines.push("sudo nvidia-smi -pm 1".into());
    lines
}

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    let off: Vec<_> = gpu::nvidia(machine).filter(|gpu| gpu.persistence == Some(false)).collect();
    // A display keeps its GPU initialized, and on WSL Windows manages it.
    if off.is_empty() || gpu::all_geforce(machine) || host::container(machine) == Some("wsl") {
        return Vec::new();
    }
    let title = format!(
        "persistence mode is off on {} of {} GPUs",
        off.len(),
        gpu::nvidia(machine).count()
    );
    let mut draft = RULE.finding(Severity::Info, Confidence::Certain, title);
    for gpu in off {
        let what = format!("GPU {}: {}", gpu.index, gpu::describe(gpu));
        draft = draft.evidence(what, "NVML nvmlDeviceGetPersistenceMode");
    }
    let cause = "The driver initializes a GPU again for each program, about a second for each GPU.";
    vec![draft.cause(cause).fix(commands(machine)).finish()]
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, Machine, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let mode = |mut machine: Machine, on: bool| {
            machine.gpus.iter_mut().for_each(|gpu| gpu.persistence = Some(on));
            machine
        };
        vec![
            Case::new("a server", mode(machines::a10(), false), vec![]).finds(
                Info,
                Certain,
                &["off on 1 of 1", "nvmlDeviceGetPersistenceMode", "nvidia-persistenced"],
            ),
            Case::new(
                "in a container",
                mode(machines::in_container(machines::a10()), false),
                vec![],
            )
            .finds(Info, Certain, &["# on the host"]),
            Case::new("on", mode(machines::a10(), true), vec![]),
            Case::new("unknown", machines::a10(), vec![]),
            Case::new("a desktop", mode(machines::rtx4090(), false), vec![]),
        ]
    }
}
