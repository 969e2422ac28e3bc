use super::{Need, Rule, Text};
use crate::driver_trouble;
use facts::DriverTrouble;

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
    remedy: |seen| driver_trouble::commands(seen.machine(), DriverTrouble::Initialization),
    needs: &[Need::KernelLog],
    check: Some(|context| driver_trouble::check(&RULE, context, DriverTrouble::Initialization)),
    #[cfg(test)]
    cases: || driver_trouble::cases(DriverTrouble::Initialization),
    ..Rule::BLANK
};
