//! What NVIDIA's driver wrote into the kernel's log about errors, each with a number (Xid).

use crate::Source;
use crate::source::Command;
use facts::{Fact, Machine, Xid};

/// The log is a ring in memory: reading it takes thousandths of a second.
const PROGRAM: &str = "dmesg";

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    if machine.driver.is_none() {
        return;
    }
    let limit = source.patience();
    let command = Command { record: "dmesg", program: PROGRAM, args: &[], limit };
    // On most systems the log is root's alone, and a container may not have the program: then nothing is known.
    if let Ok(text) = source.run(&command) {
        machine.xids = Some(Fact::new(parse(&text), PROGRAM));
    }
}

/// Every error by GPU and number, in the order of their first lines:
/// `[93297.02] NVRM: Xid (PCI:0000:43:00): 13, pid=4711, name=python, Graphics Exception: ..`.
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
    use super::parse;
    use facts::Xid;

    #[test]
    fn lines_that_machines_wrote() {
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
    fn what_is_no_error_is_none() {
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
