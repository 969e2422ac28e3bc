//! Errors of NVIDIA's driver in the kernel log, with and without a number (Xid).

use crate::Source;
use crate::source::Command;
use facts::{DriverLine, DriverTrouble, Fact, Machine, Xid};

/// The log is a ring buffer in memory: reading it takes milliseconds.
const PROGRAM: &str = "dmesg";

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    if machine.driver.is_none() {
        return;
    }
    let limit = source.patience();
    let command = Command { record: "dmesg", program: PROGRAM, args: &[], limit };
    // On most systems only root may read the log, and a container may lack the program: then it is not known.
    if let Ok(text) = source.run(&command) {
        machine.xids = Some(Fact::new(parse(&text), PROGRAM));
        machine.driver_lines = Some(Fact::new(driver_lines(&text), PROGRAM));
    }
}

/// Every error by GPU and number, in the order of their first lines: `[93297.02] NVRM: Xid (PCI:0000:43:00): 13,
/// pid=4711, name=python, Graphics Exception: ..`.
pub(crate) fn parse(text: &str) -> Vec<Xid> {
    let mut found: Vec<Xid> = Vec::new();
    for line in text.lines() {
        let Some((pci_bus, number, words)) = xid(line) else { continue };
        match found.iter_mut().find(|xid| xid.number == number && xid.pci_bus == pci_bus) {
            Some(known) => known.count = known.count.saturating_add(1),
            None => found.push(Xid {
                pci_bus: pci_bus.to_string(),
                number,
                words: words.to_string(),
                count: 1,
            }),
        }
    }
    found
}

/// Texts of the driver's lines without a number, and their meaning; the first match counts.
const TROUBLE: [(&str, DriverTrouble); 12] = [
    ("requires use of the NVIDIA open kernel modules", DriverTrouble::OpenModulesRequired),
    ("I/O region assigned to your NVIDIA device is invalid", DriverTrouble::Bar),
    ("NVRM: BAR0 is 0M", DriverTrouble::Bar),
    ("NVRM: BAR1 is 0M", DriverTrouble::Bar),
    ("failed to load firmware image", DriverTrouble::Firmware),
    ("Failed to bootstrap GSP", DriverTrouble::Firmware),
    ("attempting to boot GSP", DriverTrouble::Firmware),
    ("Cannot initialize GSP firmware RM", DriverTrouble::Firmware),
    ("Direct firmware load for nvidia/", DriverTrouble::Firmware),
    ("is not supported by the NVIDIA", DriverTrouble::Unsupported),
    ("RmInitAdapter failed", DriverTrouble::Initialization),
    ("None of the NVIDIA devices were initialized", DriverTrouble::Initialization),
];

/// Lines about problems without an Xid, each kind once per GPU, in the order of their first lines.
pub(crate) fn driver_lines(text: &str) -> Vec<DriverLine> {
    let mut found: Vec<DriverLine> = Vec::new();
    for line in text.lines() {
        // The driver looks for log buffers that it does not ship, and continues without them.
        if line.contains("gsp_log_") {
            continue;
        }
        let of_driver = line.contains("NVRM") || line.contains("nvidia") || line.contains("NVIDIA");
        let Some((_, trouble)) =
            TROUBLE.iter().find(|(words, _)| of_driver && line.contains(words))
        else {
            continue;
        };
        let words =
            line.find("NVRM").or_else(|| line.find("nvidia")).map_or(line, |at| &line[at..]);
        let bus = line.split_once("GPU ").and_then(|(_, rest)| rest.split(' ').next());
        let bus =
            bus.map(|bus| bus.trim_end_matches(':').to_owned()).filter(|bus| bus.contains(':'));
        match found.iter_mut().find(|known| known.trouble == *trouble && known.pci_bus == bus) {
            Some(known) => known.count = known.count.saturating_add(1),
            None => found.push(DriverLine {
                trouble: *trouble,
                pci_bus: bus,
                words: words.trim_end().to_owned(),
                count: 1,
            }),
        }
    }
    found
}

fn xid(line: &str) -> Option<(&str, u32, &str)> {
    let (_, rest) = line.split_once("NVRM: Xid (")?;
    let (place, rest) = rest.split_once("):")?;
    let digits = rest.trim_start();
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    let (number, words) = digits.split_at(end);
    let words = words.trim_start_matches([',', ' ']).trim_end();
    Some((place.trim_start_matches("PCI:"), number.parse().ok()?, words))
}

#[cfg(test)]
mod tests {
    use super::{driver_lines, parse};
    use facts::{DriverTrouble, Xid};

    #[test]
    fn recorded_lines_are_parsed() {
        // https://github.com/vllm-project/vllm/issues/5901, https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1150,
        // and a driver of 2014.
        let text = "\
[93297.027938] NVRM: Xid (PCI:0000:43:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception: ESR 0x52e7b0=0x101000e
[93297.029837] NVRM: Xid (PCI:0000:43:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception: ESR 0x52ef30=0x0
[93299.000000] NVRM: GPU at PCI:0000:dc:00: GPU-8a47641b-dff6-f09f-618c-c3eb58fb430d
kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149
Nov 22 18:29:55 hostname kernel: [ 966.503025] NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000
";
        let xid = |bus: &str, number, words: &str, count| Xid {
            pci_bus: bus.into(),
            number,
            words: words.into(),
            count,
        };
        let graphics =
            "pid='<unknown>', name=<unknown>, Graphics Exception: ESR 0x52e7b0=0x101000e";
        let previous = "pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149";
        let expect = [
            xid("0000:43:00", 13, graphics, 2),
            xid("0000:dc:00", 45, previous, 1),
            xid("0000:01:00", 31, "Ch 0000000b, engmask 00000120, intr 10000000", 1),
        ];
        assert_eq!(parse(text), expect);
    }

    #[test]
    fn driver_errors_without_an_xid_are_found() {
        let text = "\
[    5.120000] NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2b85)
[    5.120001] NVRM: installed in this system requires use of the NVIDIA open kernel modules.
[    5.120100] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)
[    9.120100] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)
[   11.000000] usb 1-1: device descriptor read/64, error -71
[   12.000000] nvidia 0000:01:00.0: Direct firmware load for nvidia/610.57.04/gsp_log_ga10x.bin failed, error -2
";
        let lines = driver_lines(text);
        let shown: Vec<_> =
            lines.iter().map(|line| (line.trouble, line.pci_bus.as_deref(), line.count)).collect();
        assert_eq!(
            shown,
            [
                (DriverTrouble::OpenModulesRequired, None, 1),
                (DriverTrouble::Initialization, Some("0000:01:00.0"), 2),
            ]
        );
        assert!(lines[0].words.starts_with("NVRM: installed in this system"), "{:?}", lines[0]);
    }

    #[test]
    fn lines_without_an_error_are_ignored() {
        for text in [
            "",
            "NVRM: Xid (",
            "NVRM: Xid (PCI:0000:43:00)",
            "NVRM: Xid (PCI:0000:43:00): ",
            "NVRM: Xid (PCI:0000:43:00): 99999999999,",
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04",
        ] {
            assert_eq!(parse(text), [], "{text}");
        }
    }
}
