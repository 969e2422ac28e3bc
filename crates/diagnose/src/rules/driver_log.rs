//! Kernel log lines of NVIDIA's driver about a GPU that it cannot initialize: one rule for each kind of line of
//! [`driver_trouble`].

use super::{Need, Rule, Text};
use crate::driver_trouble;
use facts::DriverTrouble;

/// The rules, by kind of line: id, title, meaning, links and texts.
macro_rules! rules {
    ($($name:ident = $trouble:path: $id:literal, $title:literal, $about:literal, $links:expr, $texts:expr;)*) => {
        $(pub(super) const $name: Rule = Rule {
            id: $id,
            title: $title,
            about: $about,
            links: $links,
            texts: $texts,
            remedy: |seen| driver_trouble::commands(seen.machine(), $trouble),
            needs: &[Need::KernelLog],
            check: Some(|context| driver_trouble::check(&$name, context, $trouble)),
            #[cfg(test)]
            cases: || driver_trouble::cases($trouble),
            ..Rule::BLANK
        };)*
    };
}

rules! {
    OPEN_MODULES = DriverTrouble::OpenModulesRequired: "open-kernel-modules", "this GPU needs NVIDIA's open kernel modules, and the proprietary ones are installed", "\
NVIDIA's driver has two sets of kernel modules for one release: the proprietary ones and the open ones. GPUs since
Blackwell (RTX 50, RTX PRO Blackwell, B200, GB200) work only with the open modules; Turing to Hopper work with both.
With the proprietary modules the driver loads, initializes no GPU, and nvidia-smi answers `No devices were found`.

It shows as
  NVRM: installed in this system requires use of the NVIDIA open kernel modules.
  NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)

Detected in the kernel's log.

Install the same driver release with open modules: the packages whose name ends in -open, or the installer with
--kernel-module-type=open. Then reboot.",
        &[
        "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html",
        "https://download.nvidia.com/XFree86/Linux-x86_64/560.35.03/README/kernel_open.html",
    ],
        &[Text::new("requires use of the NVIDIA open kernel modules", "[    5.120001] NVRM: installed in this system requires use of the NVIDIA open kernel modules.")];

    GSP_FIRMWARE = DriverTrouble::Firmware: "gsp-firmware", "the firmware of the GPU System Processor (GSP) is missing or does not start", "\
Since Turing, a processor on the GPU (GSP) runs most of the driver, from a firmware file of exactly the driver's release
(/lib/firmware/nvidia/RELEASE/gsp_*.bin). The file is missing after an incomplete install, after a driver update
without a reboot, or if the initramfs has the module but not the firmware.

It shows as
  nvidia 0000:01:00.0: Direct firmware load for nvidia/580.65.06/gsp_ga10x.bin failed with error -2
  NVRM: GPU 0000:01:00.0: RmFetchGspRmImages: No firmware image found

Detected in the kernel's log, while the driver lists no GPU.

Install the driver's firmware package of the same release, rebuild the initramfs, and reboot.",
        &[
        "https://download.nvidia.com/XFree86/Linux-x86_64/580.65.06/README/gsp.html",
    ],
        &[
        Text::new("RmFetchGspRmImages: No firmware image found", "NVRM: GPU 0000:01:00.0: RmFetchGspRmImages: No firmware image found"),
        Text::new("Cannot initialize GSP firmware RM", "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM"),
        Text::new("attempting to boot GSP", "NVRM: kgspBootstrap_GH100: GSP-FMC reported an error while attempting to boot GSP: 0xb"),
    ];

    BAR = DriverTrouble::Bar: "gpu-bar", "a BAR of the GPU has no address space", "\
A GPU maps its registers and memory into the CPU's physical address space through BARs, which the firmware (BIOS) or the
hypervisor assigns. A data-centre GPU needs more than 4 GiB of address space, so `Above 4G Decoding` has to be on; a
virtual machine needs a firmware (UEFI, OVMF) with a large enough 64-bit MMIO window.

It shows as
  NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:
  NVRM: BAR1 is 0M @ 0x0 (PCI:0000:04:00.0)

Detected in the kernel's log, while the driver lists no GPU.

Turn on Above 4G Decoding (and Resizable BAR) in the firmware's setup, and boot by UEFI; in a virtual machine enlarge
the MMIO window (QEMU: -fw_cfg opt/ovmf/X-PciMmio64Mb). If the firmware cannot be changed, the kernel's pci=realloc may
help.",
        &[
        "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/344",
        "https://github.com/Dunedan/mbp-2016-linux/issues/60",
    ],
        &[
        Text::new("This PCI I/O region assigned to your NVIDIA device is invalid", "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\nNVRM: BAR1 is 0M @ 0x0 (PCI:0000:04:00.0)"),
    ];

    INITIALIZATION = DriverTrouble::Initialization: "gpu-init-failed", "the driver is loaded and could not initialize the GPU", "\
The kernel module found the GPU on the bus but failed to initialize it, so nvidia-smi answers `No devices were found`.
The numbers in parentheses are NVIDIA's internal error codes. Causes, the most often reported first: a GPU that needs
the open kernel modules (the log then has a line about it), a driver too old for the GPU, no address space for its BARs,
a GPU in a bad state after a crash or a suspend, incomplete passthrough to a virtual machine, a power cable or a faulty
board.

It shows as
  NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x26:0xffff:1375)
  NVRM: rm_init_adapter failed for device bearing minor number 0
  No devices were found

Detected in the kernel's log, while the driver lists no GPU.

Read the lines around it. Power the machine off and on (a reboot does not reset the board), install the newest driver
with open modules, and try the GPU in another slot or machine.",
        &[
        "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html",
        "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/862",
    ],
        &[
        Text::new("RmInitAdapter failed", "[   10.5] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x26:0xffff:1375)"),
        Text::new("rm_init_adapter failed", "NVRM: rm_init_adapter failed for device bearing minor number 0"),
    ];
}
