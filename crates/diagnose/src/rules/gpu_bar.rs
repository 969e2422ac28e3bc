use super::{Need, Rule, Text};
use crate::driver_trouble;
use facts::DriverTrouble;

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
    remedy: |seen| driver_trouble::commands(seen.machine(), DriverTrouble::Bar),
    needs: &[Need::KernelLog],
    check: Some(|context| driver_trouble::check(&RULE, context, DriverTrouble::Bar)),
    #[cfg(test)]
    cases: || driver_trouble::cases(DriverTrouble::Bar),
    ..Rule::BLANK
};
