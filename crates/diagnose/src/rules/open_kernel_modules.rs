use super::{Context, Need, Rule, Text};
use crate::host;
use facts::{Confidence, DriverTrouble, Finding, Machine, Severity};

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
    remedy: |seen| commands(seen.machine()),
    needs: &[Need::KernelLog],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn commands(machine: &Machine) -> Vec<String> {
    let version = machine.driver.as_ref().and_then(|driver| driver.version());
    let branch = version.and_then(|version| version.value.split('.').next()).unwrap_or("580");
    let id = machine.os.id.as_ref().map_or("", |id| id.value.as_str());
    let mut lines: Vec<String> = host::where_the_driver_is(machine).into_iter().collect();
    lines.push(match id {
        "ubuntu" => format!("sudo apt-get install --yes nvidia-driver-{branch}-open  # servers: nvidia-driver-{branch}-server-open"),
        "debian" => "sudo apt-get install --yes nvidia-open".to_owned(),
        "rhel" | "rocky" | "almalinux" | "centos" | "fedora" | "amzn" => {
            "sudo dnf install --assumeyes nvidia-open".to_owned()
        }
        "arch" => "sudo pacman -S nvidia-open".to_owned(),
        _ => "# the package of this driver release whose name ends in -open, or NVIDIA's installer with --kernel-module-type=open".to_owned(),
    });
    lines.push("sudo reboot".to_owned());
    lines.push("cat /proc/driver/nvidia/version  # `Open Kernel Module`".to_owned());
    lines
}

fn check(context: &Context) -> Vec<Finding> {
    let Some(log) = &context.machine.driver_lines else { return Vec::new() };
    let of = |trouble| log.value.iter().filter(move |line| line.trouble == trouble);
    let Some(first) = of(DriverTrouble::OpenModulesRequired).next() else { return Vec::new() };
    // Where the open module runs by now, the line is of an earlier boot of the module.
    let open = context.driver().and_then(|driver| driver.open_module.as_ref());
    if open.is_some_and(|open| open.value) {
        return Vec::new();
    }
    let mut draft = RULE
        .finding(
            Severity::Error,
            Confidence::Certain,
            "the GPU needs the open kernel modules, and the proprietary ones are loaded",
        )
        .evidence(first.words.clone(), log.source.clone())
        .fact("the loaded module is the open one:", open)
        .fact("driver", context.driver().and_then(|driver| driver.version()));
    for line in of(DriverTrouble::Initialization) {
        draft = draft.evidence(line.words.clone(), log.source.clone());
    }
    vec![
        draft
            .cause("GPUs since Blackwell work with the open kernel modules alone; with the proprietary ones the driver initializes none of them.")
            .fix(commands(context.machine))
            .done(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, DriverLine, DriverTrouble, Fact, Machine, Severity::*};

    fn logged(troubles: &[DriverTrouble]) -> Machine {
        let mut machine = machines::h200();
        machine.gpus.clear();
        let line = |trouble: &DriverTrouble| DriverLine {
            trouble: *trouble,
            pci_bus: None,
            words: format!("NVRM: {trouble:?}"),
            count: 1,
        };
        machine.driver_lines = Some(Fact::new(troubles.iter().map(line).collect(), "dmesg"));
        machine
    }

    pub(super) fn cases() -> Vec<Case> {
        use DriverTrouble::{Initialization, OpenModulesRequired};
        let mut open = logged(&[OpenModulesRequired]);
        if let Some(driver) = &mut open.driver {
            driver.open_module = Some(Fact::new(true, "/proc/driver/nvidia/version"));
        }
        vec![
            Case::new("S06", logged(&[OpenModulesRequired, Initialization]), Vec::new()).finds(
                Error,
                Certain,
                &["OpenModulesRequired [dmesg]", "Initialization", "-open", "sudo reboot"],
            ),
            Case::new("the open module by now", open, Vec::new()),
            Case::new("another failure", logged(&[Initialization]), Vec::new()),
            Case::new("an unreadable log", machines::h200(), Vec::new()),
        ]
    }
}
