use super::{Context, Need, Rule, Text};
use crate::host;
use facts::{Confidence, DriverTrouble, Finding, Machine, Severity};

pub(super) const RULE: Rule = Rule {
    id: "gpu-bar",
    title: "a BAR of the GPU has no address space",
    about: "\
A GPU maps its registers and memory into the processor's address space by BARs, which the firmware (BIOS) or the
hypervisor assigns. Data centre GPUs need more than 4 GiB of it for each, so that `Above 4G Decoding` has to be on; a
virtual machine needs a firmware (UEFI, OVMF) with a large enough 64-bit MMIO window.

It shows as
  NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:
  NVRM: BAR1 is 0M @ 0x0 (PCI:0000:04:00.0)

Seen in the kernel's log, while the driver lists no GPU.

Turn on Above 4G Decoding (and Resizable BAR) in the firmware's setup, and boot by UEFI; in a virtual machine enlarge
the MMIO window (QEMU: -fw_cfg opt/ovmf/X-PciMmio64Mb). The kernel's pci=realloc helps where the firmware cannot be
changed.",
    links: &[
        "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/344",
        "https://github.com/Dunedan/mbp-2016-linux/issues/60",
    ],
    texts: &[
        Text {
            pattern: "This PCI I/O region assigned to your NVIDIA device is invalid",
            sample: "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\nNVRM: BAR1 is 0M @ 0x0 (PCI:0000:04:00.0)",
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
        "lspci -d 10de: -vv | grep -E 'Region|BAR'",
        "sudo dmesg | grep -iE 'BAR [0-9]+.*(no space|failed to assign|can.t assign)'",
        "# firmware setup: Above 4G Decoding on, boot by UEFI; or, where that cannot be changed:",
        "sudo grubby --update-kernel=ALL --args=pci=realloc  # Debian and Ubuntu: GRUB_CMDLINE_LINUX, then update-grub",
    ];
    host::where_the_driver_is(machine).into_iter().chain(lines.map(str::to_owned)).collect()
}

/// A log keeps lines of an earlier attempt: where the driver lists GPUs, it has passed.
fn check(context: &Context) -> Vec<Finding> {
    let Some(log) = &context.machine.driver_lines else { return Vec::new() };
    let mut lines = log.value.iter().filter(|line| line.trouble == DriverTrouble::Bar).peekable();
    if lines.peek().is_none() || crate::gpu::nvidia(context.machine).next().is_some() {
        return Vec::new();
    }
    let draft =
        RULE.finding(Severity::Error, Confidence::Likely, "a BAR of a GPU has no address space");
    let draft =
        lines.fold(draft, |draft, line| draft.evidence(line.words.clone(), log.source.clone()));
    vec![draft.cause("The firmware or the hypervisor assigned no or too little address space to the GPU.").fix(commands(context.machine)).done()]
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
        let mut works = logged(DriverTrouble::Bar);
        works.gpus = machines::h200().gpus;
        vec![
            Case::new("logged", logged(DriverTrouble::Bar), Vec::new()).finds(
                Error,
                Likely,
                &["Bar [dmesg]"],
            ),
            Case::new("another line", logged(DriverTrouble::OpenModulesRequired), Vec::new()),
            Case::new("the GPUs work", works, Vec::new()),
            Case::new("an unreadable log", machines::h200(), Vec::new()),
        ]
    }
}
