use super::{Context, Need, Rule, Text};
use crate::host;
use facts::{Confidence, DriverTrouble, Finding, Machine, Severity};

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
        "cat /proc/driver/nvidia/version; ls /lib/firmware/nvidia/",
        "# the firmware package of the same release (Debian and Ubuntu: nvidia-firmware-BRANCH, libnvidia-gpucomp-BRANCH), then:",
        "sudo update-initramfs -u  # Fedora and Red Hat: sudo dracut --force",
        "sudo reboot",
    ];
    host::where_the_driver_is(machine).into_iter().chain(lines.map(str::to_owned)).collect()
}

/// A log keeps lines of an earlier attempt: where the driver lists GPUs, it has passed.
fn check(context: &Context) -> Vec<Finding> {
    let Some(log) = &context.machine.driver_lines else { return Vec::new() };
    let mut lines =
        log.value.iter().filter(|line| line.trouble == DriverTrouble::Firmware).peekable();
    if lines.peek().is_none() || crate::gpu::nvidia(context.machine).next().is_some() {
        return Vec::new();
    }
    let draft = RULE.finding(
        Severity::Error,
        Confidence::Likely,
        "the GPU's GSP firmware is missing or does not start",
    );
    let draft =
        lines.fold(draft, |draft, line| draft.evidence(line.words.clone(), log.source.clone()));
    vec![draft.cause("The driver needs a firmware file of exactly its own release, and did not find or could not start it.").fix(commands(context.machine)).done()]
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
        let mut works = logged(DriverTrouble::Firmware);
        works.gpus = machines::h200().gpus;
        vec![
            Case::new("logged", logged(DriverTrouble::Firmware), Vec::new()).finds(
                Error,
                Likely,
                &["Firmware [dmesg]"],
            ),
            Case::new("another line", logged(DriverTrouble::OpenModulesRequired), Vec::new()),
            Case::new("the GPUs work", works, Vec::new()),
            Case::new("an unreadable log", machines::h200(), Vec::new()),
        ]
    }
}
