use super::{Context, Need, Rule, Text};
use crate::host;
use facts::CompactSort;
use facts::{Confidence, Finding, Machine, Severity, Xid};
use knowledge::xids::{self, Origin, Weight};

pub(super) const RULE: Rule = Rule {
    id: "xid",
    title: "the driver wrote a numbered error (Xid) into the kernel's log",
    about: "\
NVIDIA's driver numbers the errors of a GPU. 13, 31 and 43 usually come from the running program (an invalid address or
instruction) and rarely from the GPU; 45 follows another error. 48, 63, 64, 92, 94, 95 and 140 are memory errors, 74 and
144 to 150 NVLink errors, 79 means the GPU fell off the bus, and 119 and 120 that its firmware stopped answering. 154 is
not an error: it states the recovery action for the others. The named process got a CUDA error at the same time. Only
the number is reliable; the text after it differs between drivers.

It shows as
  NVRM: Xid (PCI:0000:43:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception: ESR 0x52e7b0=0x101000e

Detected in the kernel log (dmesg), if it is readable: since the last boot, as far back as the ring buffer reaches.

Run a program that caused 13 or 31 under compute-sanitizer, and on another GPU as well: an error on only one GPU points
to the hardware. Memory errors: reset the GPU when it is idle. A lost GPU needs a reboot.",
    links: &["https://docs.nvidia.com/deploy/xid-errors/index.html"],
    texts: &[
        // https://github.com/vllm-project/vllm/issues/5901
        Text::new("NVRM: Xid (PCI:*): {number}", "[93297.027938] NVRM: Xid (PCI:0000:43:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception: ESR 0x52e7b0=0x101000e 0x52e7b4=0x4 0x52e7a8=0xc81eb60 0x52e7ac=0x1174"),
    ],
    remedy: |seen| {
        let mut lines: Vec<String> = host::driver_location_remark(seen.machine()).into_iter().collect();
        lines.push("sudo dmesg | grep -E 'NVRM|Xid'".into());
        lines.push("firstlight doctor".into());
        lines
    },
    needs: &[Need::KernelLog],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    let Some(log) = &context.machine.xids else { return Vec::new() };
    let mut numbers: Vec<u32> = log.value.iter().map(|xid| xid.number).collect();
    numbers.compact_sort();
    numbers.dedup();
    let of = |number: u32| {
        let lines: Vec<&Xid> = log.value.iter().filter(|xid| xid.number == number).collect();
        finding(context.machine, number, &lines, &log.source)
    };
    numbers.into_iter().map(of).collect()
}

fn finding(machine: &Machine, number: u32, lines: &[&Xid], source: &str) -> Finding {
    let known = xids::xid(number);
    let severity = match known.map(|xid| xid.weight) {
        Some(Weight::Error) => Severity::Error,
        Some(Weight::Warning) => Severity::Warning,
        Some(Weight::Note) | None => Severity::Info,
    };
    let words = known.map_or("not in firstlight's table", |xid| xid.words.as_str());
    let title = format!("the kernel's log has Xid {number}: {words}");
    let mut draft = RULE.finding(severity, Confidence::Certain, title);
    for xid in lines {
        let gpu = machine.gpus.iter().find(|gpu| {
            let bus = gpu.pci_bus.as_deref().unwrap_or_default().to_ascii_lowercase();
            bus.contains(&xid.pci_bus.to_ascii_lowercase())
        });
        let gpu = gpu.map_or(String::new(), |gpu| format!(" (GPU {})", gpu.index));
        let times = if xid.count == 1 { "once".to_owned() } else { format!("{} times", xid.count) };
        draft = draft.evidence(format!("{}{gpu}, {times}: {}", xid.pci_bus, xid.words), source);
    }
    let inspect = "sudo dmesg | grep -E 'NVRM|Xid'".to_owned();
    let reset = |gpu: &str| format!("sudo nvidia-smi --gpu-reset --id={gpu}");
    let bus = lines.first().map_or("", |xid| xid.pci_bus.as_str());
    let (cause, fix) = match known.map(|xid| xid.of) {
        Some(Origin::Program) => (
            "The program on the GPU used an invalid address or instruction; the GPU is usable again when the program has \
             ended. If the same program fails on only one GPU, that GPU may be faulty.",
            vec![inspect, "compute-sanitizer python your_program.py".to_owned()],
        ),
        Some(Origin::Cleanup) => (
            "The driver ended a program's work on the GPU after another error, or because the program was killed.",
            vec![inspect],
        ),
        Some(Origin::Memory) => (
            "The GPU's memory has errors. A contained error ended the program that used the memory; the row or page is \
             replaced at the next reset, and a GPU without spare rows has to be replaced.",
            vec![
                "nvidia-smi --query --display=ECC,ROW_REMAPPER,PAGE_RETIREMENT".to_owned(),
                "# with no program on it:".to_owned(),
                reset(bus),
            ],
        ),
        Some(Origin::Link) => (
            "A link between GPUs failed, and programs that used it ended. If it fails again, the bridge, baseboard or GPU is bad.",
            vec!["nvidia-smi nvlink --errorcounters".to_owned(), inspect],
        ),
        Some(Origin::Lost) => (
            "The GPU or its firmware stopped answering. It comes back with a reset or a reboot; one that is lost again has a bad \
             slot, riser, power cable or board.",
            vec![inspect, "sudo reboot".to_owned()],
        ),
        Some(Origin::Driver) => {
            ("The driver or the GPU's firmware reports an internal error.", vec![inspect])
        }
        None => ("NVIDIA's catalogue of Xid errors says what this number means.", vec![inspect]),
    };
    let here = host::driver_location_remark(machine).into_iter();
    draft.cause(cause).fix(here.chain(fix)).finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, Fact, Severity::*};

    fn logged(number: u32, words: &str, count: u32) -> Machine {
        let mut machine = machines::h200();
        machine.gpus[0].pci_bus = Some("00000000:3B:00.0".into());
        let xid = Xid { pci_bus: "0000:3b:00".into(), number, words: words.into(), count };
        machine.xids = Some(Fact::new(vec![xid], "dmesg"));
        machine
    }

    pub(super) fn cases() -> Vec<Case> {
        let mut empty = machines::h200();
        empty.xids = Some(Fact::new(Vec::new(), "dmesg"));
        let case = |what, number, words: &str, count| {
            Case::new(what, logged(number, words, count), Vec::new())
        };
        vec![
            case("a program's fault", 31, "pid=7, name=python, MMU Fault", 2).finds(
                Info,
                Certain,
                &["Xid 31: GPU memory page fault", "(GPU 0), 2 times: pid=7", "compute-sanitizer"],
            ),
            case("the end of one", 45, "pid=7", 1).finds(Info, Certain, &["once"]),
            case("an error of the memory", 63, "Row Remapper: New row", 1).finds(
                Info,
                Certain,
                &["Xid 63", "sudo nvidia-smi --gpu-reset --id=0000:3b:00"],
            ),
            case("memory without spare rows", 64, "", 1).finds(Error, Certain, &["Xid 64"]),
            case("a link", 74, "", 3).finds(Warning, Certain, &["NVLINK Error", "nvlink"]),
            case("a lost GPU", 79, "GPU has fallen off the bus.", 1).finds(
                Error,
                Certain,
                &["fallen off the bus", "sudo reboot"],
            ),
            case("a number of later drivers", 9999, "", 1).finds(Info, Certain, &["not in"]),
            Case::new("a log without one", empty, Vec::new()),
            Case::new("a log that cannot be read", machines::h200(), Vec::new()),
        ]
    }
}
