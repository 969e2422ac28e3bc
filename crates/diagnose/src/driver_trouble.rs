//! Errors that NVIDIA's driver writes to the kernel log: one table and one check for the rules about single errors.

use crate::host;
use crate::rules::{Context, Rule};
use facts::{Confidence, DriverTrouble, Finding, Machine, Severity};

/// One kind of log line: its finding and its remedy.
pub(crate) struct TroubleRow {
    pub(crate) trouble: DriverTrouble,
    pub(crate) confidence: Confidence,
    pub(crate) title: &'static str,
    pub(crate) cause: &'static str,
    /// Whether the driver has recovered since the line: it lists GPUs, or has loaded the open kernel modules.
    passed: fn(&Context) -> bool,
    steps: fn(&Machine) -> Vec<String>,
    /// Kinds of lines that are consequences of this one.
    consequences: &'static [DriverTrouble],
    /// Kinds of lines that cause this one; this kind is not reported if the log has one of them.
    causes: &'static [DriverTrouble],
}

/// One row per kind. Each other kind can cause a failed initialization.
const TROUBLES: [TroubleRow; 4] = [
    TroubleRow {
        trouble: DriverTrouble::OpenModulesRequired,
        confidence: Confidence::Certain,
        title: "the GPU needs the open kernel modules, and the proprietary ones are loaded",
        cause: "GPUs since Blackwell work with the open kernel modules alone; with the proprietary ones the driver initializes \
                none of them.",
        passed: |context| {
            let open = context.driver().and_then(|driver| driver.open_module.as_ref());
            open.is_some_and(|open| open.value)
        },
        steps: open_modules,
        consequences: &[DriverTrouble::Initialization],
        causes: &[],
    },
    TroubleRow {
        trouble: DriverTrouble::Bar,
        confidence: Confidence::Likely,
        title: "a BAR of a GPU has no address space",
        cause: "The firmware or the hypervisor assigned no or too little address space to the GPU.",
        passed: lists_gpus,
        steps: |_| {
            lines(&[
                "lspci -d 10de: -vv | grep -E 'Region|BAR'",
                "sudo dmesg | grep -iE 'BAR [0-9]+.*(no space|failed to assign|can.t assign)'",
                "# firmware setup: Above 4G Decoding on, boot by UEFI; or, where that cannot be changed:",
                "sudo grubby --update-kernel=ALL --args=pci=realloc  # Debian and Ubuntu: GRUB_CMDLINE_LINUX, then update-grub",
            ])
        },
        consequences: &[],
        causes: &[],
    },
    TroubleRow {
        trouble: DriverTrouble::Firmware,
        confidence: Confidence::Likely,
        title: "the GPU's GSP firmware is missing or does not start",
        cause: "The driver needs a firmware file of exactly its own release, and did not find or could not start it.",
        passed: lists_gpus,
        steps: |_| {
            lines(&[
                "cat /proc/driver/nvidia/version; ls /lib/firmware/nvidia/",
                "# the firmware package of the same release (Debian and Ubuntu: nvidia-firmware-BRANCH, libnvidia-gpucomp-BRANCH), then:",
                "sudo update-initramfs -u  # Fedora and Red Hat: sudo dracut --force",
                "sudo reboot",
            ])
        },
        consequences: &[],
        causes: &[],
    },
    TroubleRow {
        trouble: DriverTrouble::Initialization,
        confidence: Confidence::Likely,
        title: "the driver could not initialize a GPU",
        cause: "The driver found the GPU and could not start it; the lines around this one in the log may say why.",
        passed: lists_gpus,
        steps: |_| {
            lines(&[
                "sudo dmesg | grep -E 'NVRM|nvidia' | tail -40",
                "cat /proc/driver/nvidia/version  # GPUs since Blackwell need `Open Kernel Module`",
                "lspci -d 10de: -vv | grep -E 'Region|LnkSta'",
                "# power the machine off and on, then install the newest driver with open modules",
            ])
        },
        consequences: &[],
        causes: &[
            DriverTrouble::OpenModulesRequired,
            DriverTrouble::Bar,
            DriverTrouble::Firmware,
            DriverTrouble::Unsupported,
        ],
    },
];

fn lines(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn lists_gpus(context: &Context) -> bool {
    crate::gpu::nvidia(context.machine).next().is_some()
}

fn of(trouble: DriverTrouble) -> Option<&'static TroubleRow> {
    TROUBLES.iter().find(|row| row.trouble == trouble)
}

/// The steps of the remedy for a kind of line, on this machine.
pub(crate) fn commands(machine: &Machine, trouble: DriverTrouble) -> Vec<String> {
    let steps = of(trouble).map(|row| (row.steps)(machine)).unwrap_or_default();
    host::driver_location_remark(machine).into_iter().chain(steps).collect()
}

/// The finding of the rule for one kind of line.
pub(crate) fn check(rule: &Rule, context: &Context, trouble: DriverTrouble) -> Vec<Finding> {
    let (Some(row), Some(log)) = (of(trouble), &context.machine.driver_lines) else {
        return Vec::new();
    };
    let has = |wanted: DriverTrouble| log.value.iter().any(|line| line.trouble == wanted);
    if !has(trouble) || (row.passed)(context) || row.causes.iter().any(|cause| has(*cause)) {
        return Vec::new();
    }
    let driver = context.driver();
    let mut draft = rule.finding(Severity::Error, row.confidence, row.title);
    for kind in std::iter::once(&trouble).chain(row.consequences) {
        for line in log.value.iter().filter(|line| line.trouble == *kind) {
            draft = draft.evidence(line.words.clone(), log.source.clone());
        }
    }
    let draft = draft
        .fact("driver", driver.and_then(|driver| driver.version()))
        .fact("the loaded module is the open one:", driver.and_then(|it| it.open_module.as_ref()));
    vec![draft.cause(row.cause).fix(commands(context.machine, trouble)).finish()]
}

fn open_modules(machine: &Machine) -> Vec<String> {
    let version = machine.driver.as_ref().and_then(|driver| driver.version());
    let branch = version.and_then(|version| version.value.split('.').next()).unwrap_or("580");
    let id = machine.os.id.as_ref().map_or("", |id| id.value.as_str());
    let install = match id {
        "ubuntu" => format!(
            "sudo apt-get install --yes nvidia-driver-{branch}-open  # servers: nvidia-driver-{branch}-server-open"
        ),
        "debian" => "sudo apt-get install --yes nvidia-open".to_owned(),
        "rhel" | "rocky" | "almalinux" | "centos" | "fedora" | "amzn" => {
            "sudo dnf install --assumeyes nvidia-open".to_owned()
        }
        "arch" => "sudo pacman -S nvidia-open".to_owned(),
        _ => "# the package of this driver release whose name ends in -open, or NVIDIA's installer with --kernel-module-type=open"
            .to_owned(),
    };
    let check = "cat /proc/driver/nvidia/version  # `Open Kernel Module`";
    vec![install, "sudo reboot".to_owned(), check.to_owned()]
}

/// The test cases of the rule for one kind of line.
#[cfg(test)]
pub(crate) fn cases(trouble: DriverTrouble) -> Vec<crate::test_support::Case> {
    use crate::test_support::{Case, machines};
    use facts::{DriverLine, Fact};
    let logged = |troubles: &[DriverTrouble]| {
        let mut machine = machines::h200();
        machine.gpus.clear();
        let line = |trouble: &DriverTrouble| DriverLine {
            trouble: *trouble,
            pci_bus: Some("0000:01:00.0".into()),
            words: format!("NVRM: {trouble:?}"),
            count: 1,
        };
        machine.driver_lines = Some(Fact::new(troubles.iter().map(line).collect(), "dmesg"));
        machine
    };
    let row = of(trouble).expect("a row");
    let words = match trouble {
        DriverTrouble::Bar => "Bar [dmesg]",
        DriverTrouble::Firmware => "Firmware [dmesg]",
        DriverTrouble::Initialization => "Initialization [dmesg]",
        _ => "OpenModulesRequired [dmesg]",
    };
    let other = match trouble {
        DriverTrouble::Bar => DriverTrouble::Firmware,
        _ => DriverTrouble::Bar,
    };
    // The line of an earlier attempt remains in the log after the driver works.
    let mut works = logged(&[trouble]);
    works.gpus = machines::h200().gpus;
    if let (Some(driver), DriverTrouble::OpenModulesRequired) = (&mut works.driver, trouble) {
        driver.open_module = Some(Fact::new(true, "/proc/driver/nvidia/version"));
    }
    let mut cases = vec![
        Case::new("logged", logged(&[trouble]), Vec::new()).finds(
            Severity::Error,
            row.confidence,
            &[words],
        ),
        Case::new("another line", logged(&[other]), Vec::new()),
        Case::new("it works by now", works, Vec::new()),
        Case::new("an unreadable log", machines::h200(), Vec::new()),
    ];
    for cause in row.causes {
        cases.push(Case::new(
            "a line that is the cause of it",
            logged(&[trouble, *cause]),
            Vec::new(),
        ));
    }
    for consequence in row.consequences {
        let case = Case::new("with its consequence", logged(&[trouble, *consequence]), Vec::new());
        cases.push(case.finds(Severity::Error, row.confidence, &[words, "Initialization [dmesg]"]));
    }
    cases
}
