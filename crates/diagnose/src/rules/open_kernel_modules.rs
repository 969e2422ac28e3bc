use super::{Need, Rule, Text};
use crate::driver_trouble;
use facts::DriverTrouble;

pub(super) const RULE: Rule = Rule {
    id: "open-kernel-modules",
    title: "this GPU needs NVIDIA's open kernel modules, and the proprietary ones are installed",
    about: "\
NVIDIA's driver has two sets of kernel modules for one release: the proprietary ones and the open ones. GPUs since
Blackwell (RTX 50, RTX PRO Blackwell, B200, GB200) work with the open modules alone; Turing to Hopper work with both.
With the proprietary modules the driver loads, initializes no GPU, and nvidia-smi answers `No devices were found`.

It shows as
  NVRM: installed in this system requires use of the NVIDIA open kernel modules.
  NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)

Seen in the kernel's log.

Install the same driver release with open modules: the packages whose name ends in -open, or the installer with
--kernel-module-type=open. Then reboot.",
    links: &[
        "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/kernel-modules.html",
        "https://download.nvidia.com/XFree86/Linux-x86_64/560.35.03/README/kernel_open.html",
    ],
    texts: &[Text {
        pattern: "requires use of the NVIDIA open kernel modules",
        sample: "[    5.120001] NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
    }],
    remedy: |seen| driver_trouble::commands(seen.machine(), DriverTrouble::OpenModulesRequired),
    needs: &[Need::KernelLog],
    check: Some(|context| driver_trouble::check(&RULE, context, DriverTrouble::OpenModulesRequired)),
    #[cfg(test)]
    cases: || driver_trouble::cases(DriverTrouble::OpenModulesRequired),
    ..Rule::BLANK
};
