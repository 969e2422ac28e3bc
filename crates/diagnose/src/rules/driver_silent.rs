use super::{Context, Rule, Text};
use crate::{gpu, host};
use facts::{Confidence, Finding, Severity};
pub(super) const RULE: Rule = Rule {
    id: "driver-silent",
    title: "the NVIDIA driver does not come back from a call",
    about: "\
A call into the driver can hang: a GPU fell off the bus (Xid 79), its firmware stopped answering (Xid 119), or a process
that is stuck inside the driver holds a lock. nvidia-smi then hangs too, CUDA programs hang at their first call, and
what waits inside the driver cannot be ended by any signal. A driver that only is slow looks the same for a while: with
persistence mode off it wakes every GPU anew for each program, about a second each.

It shows as one of
  Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost. Reboot the system to recover this GPU
  NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus
  NVRM: Xid (PCI:0000:61:00): 119, ... Timeout waiting for RPC from GSP!

Seen by asking NVML in a process of its own, which is given up after --wait seconds.

Ask again with more patience; then look into the kernel's log. A lost GPU comes back with a reboot, often only after the
power was off; one that is lost again has a bad slot, riser, power cable or board.",
    links: &[
        "https://docs.nvidia.com/deploy/xid-errors/index.html",
        "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/446",
        "https://github.com/NVIDIA/NVSentinel/issues/155",
    ],
    texts: &[
        Text::new("GPU is lost. Reboot the system to recover this GPU", "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost. Reboot the system to recover this GPU"),
        Text::new("NVRM: fallen off the bus and is not responding to commands", "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands."),
        Text::new("Unable to determine the device handle for GPU*Unknown Error", "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error"),
    ],
    remedy: |seen| {
        let mut lines: Vec<String> = host::driver_location_remark(seen.machine()).into_iter().collect();
        lines.extend(inspect_commands());
        lines
    },
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn inspect_commands() -> [String; 4] {
    [
        "sudo dmesg | grep -E 'NVRM|Xid'".into(),
        "sudo fuser --verbose /dev/nvidia*".into(),
        "# where the log tells of a lost GPU, or a process cannot be ended:".into(),
        "sudo reboot".into(),
    ]
}

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    let Some(words) = machine.driver.as_ref().and_then(|driver| driver.no_answer.as_ref()) else {
        return Vec::new();
    };
    let mut draft = RULE
        .finding(
            Severity::Error,
            Confidence::Likely,
            format!("the NVIDIA driver does not answer: {}", words.value),
        )
        .evidence(words.value.clone(), words.source.clone());
    for gpu in gpu::nvidia(machine) {
        draft = draft.evidence(gpu::describe(gpu), gpu.name.source.clone());
    }
    let mut fix = vec!["firstlight doctor --wait 30".to_owned()];
    fix.extend(host::driver_location_remark(machine));
    fix.extend(inspect_commands());
    let cause = "A GPU that is lost, firmware that stopped, or a process stuck inside the driver keeps the call from \
                 returning; what it would have told is missing above. Waking many GPUs without persistence mode takes \
                 long as well.";
    vec![draft.cause(cause).fix(fix).finish()]
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, Fact, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let silent = |mut machine: facts::Machine| {
            machine.driver.get_or_insert_default().no_answer = Some(Fact::new(
                "nvmlInit_v2 did not return within 2.0 s".into(),
                "NVML (libnvidia-ml.so.1)",
            ));
            machine
        };
        vec![
            Case::new("a call that never returned", silent(machines::a10()), vec![]).finds(
                Error,
                Likely,
                &[
                    "does not answer: nvmlInit_v2 did not return within 2.0 s",
                    "NVIDIA A10",
                    "firstlight doctor --wait 30",
                    "sudo dmesg | grep -E 'NVRM|Xid'",
                ],
            ),
            Case::new("in a container", silent(machines::in_container(machines::a10())), vec![])
                .finds(Error, Likely, &["# on the host, not in this"]),
            Case::new("a driver that answers", machines::a10(), vec![]),
            Case::new("no driver", machines::x86(), vec![]),
        ]
    }
}
