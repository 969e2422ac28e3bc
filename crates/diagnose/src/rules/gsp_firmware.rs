use super::{Need, Rule, Text};
use crate::driver_trouble;
use facts::DriverTrouble;

pub(super) const RULE: Rule = Rule {
    id: "gsp-firmware",
    title: "the firmware of the GPU System Processor (GSP) is missing or does not start",
    about: "\
Since Turing a processor on the GPU runs most of the driver, from a firmware file of exactly the driver's release
(/lib/firmware/nvidia/RELEASE/gsp_*.bin). The file is missing after an incomplete install, a driver that was updated
without a reboot, or an initial file system that has the module and not the firmware.

It shows as
  nvidia 0000:01:00.0: Direct firmware load for nvidia/580.65.06/gsp_ga10x.bin failed with error -2
  NVRM: GPU 0000:01:00.0: RmFetchGspRmImages: No firmware image found

Seen in the kernel's log, while the driver lists no GPU.

Install the driver's firmware package of the same release, make the initial file system again, and reboot.",
    links: &[
        "https://download.nvidia.com/XFree86/Linux-x86_64/580.65.06/README/gsp.html",
    ],
    texts: &[
        Text {
            pattern: "RmFetchGspRmImages: No firmware image found",
            sample: "NVRM: GPU 0000:01:00.0: RmFetchGspRmImages: No firmware image found",
        },
        Text {
            pattern: "Cannot initialize GSP firmware RM",
            sample: "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
        },
        Text {
            pattern: "attempting to boot GSP",
            sample: "NVRM: kgspBootstrap_GH100: GSP-FMC reported an error while attempting to boot GSP: 0xb",
        },
    ],
    remedy: |seen| driver_trouble::commands(seen.machine(), DriverTrouble::Firmware),
    needs: &[Need::KernelLog],
    check: Some(|context| driver_trouble::check(&RULE, context, DriverTrouble::Firmware)),
    #[cfg(test)]
    cases: || driver_trouble::cases(DriverTrouble::Firmware),
    ..Rule::BLANK
};
