use super::{Context, Need, Rule, Text};
use crate::host;
use facts::{Confidence, DriverTrouble, Finding, Machine, Severity};

pub(super) const RULE: Rule = Rule {
    id: "gpu-init-failed",
    title: "the driver is loaded and could not initialize the GPU",
    about: "\
The kernel module found the GPU on the bus and gave up on it, so that nvidia-smi answers `No devices were found`. The
numbers in brackets are for NVIDIA. Causes by how often they are reported: a GPU that needs the open kernel modules
(the log then has a line that says so), a driver too old for the GPU, no address space for its BARs, a GPU in a bad
state after a crash or a suspend, a virtual machine that passes it through incompletely, a power cable or a bad board.

It shows as
  NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x26:0xffff:1375)
  NVRM: rm_init_adapter failed for device bearing minor number 0
  No devices were found

Seen in the kernel's log, while the driver lists no GPU.

Read the lines around it. Power the machine off and on (a reboot does not reset the board), install the newest driver
with open modules, and try the GPU in another slot or machine.",
    links: &[
        "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html",
        "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/862",
    ],
    texts: &[
        Text {
            pattern: "RmInitAdapter failed",
            sample: "[   10.5] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x26:0xffff:1375)",
        },
        Text {
            pattern: "rm_init_adapter failed",
            sample: "NVRM: rm_init_adapter failed for device bearing minor number 0",
        },
    ],
    remedy: |seen| commands(seen.machine()),
    needs: &[Need::KernelLog],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn commands(machine: &Machine) -> Vec<String> {
    let lines = [
        "sudo dmesg | grep -E 'NVRM|nvidia' | tail -40",
        "cat /proc/driver/nvidia/version  # GPUs since Blackwell need `Open Kernel Module`",
        "lspci -d 10de: -vv | grep -E 'Region|LnkSta'",
        "# power the machine off and on, then install the newest driver with open modules",
    ];
    host::where_the_driver_is(machine).into_iter().chain(lines.map(str::to_owned)).collect()
}

/// A log keeps lines of an earlier attempt: where the driver lists GPUs, it has passed.
fn check(context: &Context) -> Vec<Finding> {
    let Some(log) = &context.machine.driver_lines else { return Vec::new() };
    let mut lines =
        log.value.iter().filter(|line| line.trouble == DriverTrouble::Initialization).peekable();
    if lines.peek().is_none()
        || crate::gpu::nvidia(context.machine).next().is_some()
        || log.value.iter().any(|line| line.trouble != DriverTrouble::Initialization)
    {
        return Vec::new();
    }
    let draft =
        RULE.finding(Severity::Error, Confidence::Likely, "the driver could not initialize a GPU");
    let draft =
        lines.fold(draft, |draft, line| draft.evidence(line.words.clone(), log.source.clone()));
    vec![draft.cause("The driver found the GPU and could not start it; the lines around this one in the log may say why.").fix(commands(context.machine)).done()]
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, DriverLine, DriverTrouble, Fact, Machine, Severity::*};

    fn logged(trouble: DriverTrouble) -> Machine {
        let mut machine = machines::h200();
        machine.gpus.clear();
        let words = format!("NVRM: {trouble:?}");
        let line = DriverLine { trouble, pci_bus: Some("0000:01:00.0".into()), words, count: 1 };
        machine.driver_lines = Some(Fact::new(vec![line], "dmesg"));
        machine
    }

    pub(super) fn cases() -> Vec<Case> {
        let mut works = logged(DriverTrouble::Initialization);
        works.gpus = machines::h200().gpus;
        vec![
            Case::new("logged", logged(DriverTrouble::Initialization), Vec::new()).finds(
                Error,
                Likely,
                &["Initialization [dmesg]"],
            ),
            Case::new("another line", logged(DriverTrouble::OpenModulesRequired), Vec::new()),
            Case::new("the GPUs work", works, Vec::new()),
            Case::new("an unreadable log", machines::h200(), Vec::new()),
        ]
    }
}
