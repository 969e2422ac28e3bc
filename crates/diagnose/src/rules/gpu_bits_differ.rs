use super::Rule;
use crate::fleet::device;
use facts::CompactCollect;
use facts::{
    BitDifference, Confidence, Finding, FleetReport, GpuKind, GpusReport, ParityRow, Severity,
};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const RULE: Rule = Rule {
    id: "gpu-bits-differ",
    title: "one GPU's results differ bitwise from its siblings",
    about: "\
The kernels that `firstlight check` compares are deterministic: the same binary with the same inputs gives the same bits
on every GPU of the same model. Each kernel runs twice on each GPU, and a kernel whose two runs differ on all GPUs is
not compared. Any other difference is silent data corruption: a GPU computes, transfers or stores a value wrongly
without an error. Such a GPU can pass every test with a tolerance and still ruin a training run or a generated answer.

Detected by comparing the SHA-256 of each check's outputs between GPUs of one name. If a majority agrees, the GPUs that
differ are named; if only two GPUs differ from each other, both are named.

Run a longer memory test on the GPU, read its ECC error counts and the kernel log, and run the check again. If it
differs again, return the GPU to its vendor (RMA). Until then do not schedule work on it.",
    links: &["https://docs.nvidia.com/deploy/rma-process/index.html"],
    remedy: |_| commands(&[0]),
    check_gpus: Some(check),
    check_fleet: Some(in_fleet),
    ..Rule::BLANK
};

/// Maximum number of checks in a finding.
const LISTED: usize = 6;

fn check(gpus: &GpusReport) -> Vec<Finding> {
    let name = |gpu: u32| format!("GPU {gpu}");
    gpus.kinds.iter().flat_map(|kind| of_kind(kind, &name, &|gpu| gpu)).collect()
}

fn in_fleet(fleet: &FleetReport) -> Vec<Finding> {
    let name = |at: u32| device(fleet, at);
    // The commands run on the GPU's host and need the driver's index there.
    let index =
        |at: u32| fleet.devices.get(at as usize).and_then(|device| device.gpu).unwrap_or(at);
    fleet.kinds.iter().flat_map(|kind| of_kind(kind, &name, &index)).collect()
}

/// The display name of a GPU, by its number in the comparison.
type Name<'a> = &'a dyn Fn(u32) -> String;

fn of_kind(kind: &GpuKind, name: Name<'_>, index: &dyn Fn(u32) -> u32) -> Vec<Finding> {
    let mut by_odd: BTreeMap<&[u32], Vec<&BitDifference>> = BTreeMap::new();
    for differ in &kind.differing {
        by_odd.entry(&differ.odd).or_default().push(differ);
    }
    by_odd.into_iter().map(|(odd, checks)| finding((kind, name, index), odd, &checks)).collect()
}

fn finding(
    (kind, call, index): (&GpuKind, Name<'_>, &dyn Fn(u32) -> u32),
    odd: &[u32],
    checks: &[&BitDifference],
) -> Finding {
    let GpuKind { name, compared, .. } = kind;
    let list = |all: &[u32]| all.iter().map(|gpu| call(*gpu)).collect::<Vec<_>>().join(", ");
    let count = format!("{} of {compared} checks", checks.len());
    let voters: BTreeSet<u32> = checks.iter().flat_map(|it| it.bits.keys()).copied().compact_set();
    let voters: Vec<u32> = voters.into_iter().collect();
    let (named, title, confidence) = match odd {
        [] => {
            let title = format!("{} ({name}) differ in the bits of {count}", list(&voters));
            (&voters[..], title, Confidence::Certain)
        }
        odd => {
            let verb = if odd.len() == 1 { "computes" } else { "compute" };
            let title = format!(
                "{} ({name}) {verb} different bits than most of the {} of its kind: {count}",
                list(odd),
                voters.len()
            );
            (odd, title, Confidence::Likely)
        }
    };
    let mut draft = RULE.finding(Severity::Error, confidence, title);
    for differ in checks.iter().take(LISTED) {
        let each = differ.bits.iter().map(|(gpu, bits)| match bits.as_str() {
            ParityRow::VARIES => format!("{} other bits each time", call(*gpu)),
            bits => format!("{} {}", call(*gpu), bits.get(..12).unwrap_or(bits)),
        });
        let each: Vec<String> = each.collect();
        draft = draft.evidence(
            format!("{}: {}", differ.check, each.join(", ")),
            "SHA-256 of the outputs in parity.csv of each",
        );
    }
    let cause = "The same binary with the same inputs gave other bits on this GPU, though it is deterministic on others: \
                 the GPU computes, transfers or stores a value wrongly without an error.";
    let named: Vec<u32> = named.iter().map(|gpu| index(*gpu)).collect();
    draft.cause(cause).fix(commands(&named)).finish()
}

/// Commands to diagnose these GPUs, by driver index.
fn commands(gpus: &[u32]) -> Vec<String> {
    let each: Vec<String> = gpus.iter().map(u32::to_string).collect();
    let each = each.join(",");
    vec![
        format!("nvidia-smi --query --display=ECC,ROW_REMAPPER,PAGE_RETIREMENT --id={each}"),
        "sudo dmesg | grep -E 'NVRM|Xid'".to_owned(),
        "# a longer memory test; if the GPU differs again, take it out of service and return it (RMA):".to_owned(),
        format!("firstlight check --gpu {each} --memory-budget 300"),
    ]
}

#[cfg(test)]
mod tests {
    use crate::gpus::records::{checked, part};
    use crate::{GpuRows, gpus, run_on_gpus};

    #[test]
    fn names_gpus_with_minority_hashes() {
        let check = |bits: &[&str], expect: &[&str]| {
            let parity: Vec<_> = bits
                .iter()
                .map(|bits| [checked("a", Some(bits)), checked("b", Some("same"))])
                .collect();
            let rows: Vec<GpuRows<'_>> = (0..)
                .zip(&parity)
                .map(|(index, rows)| GpuRows {
                    backend: facts::BackendKind::Cuda,
                    part: part(index),
                    parity: rows,
                    bench: None,
                })
                .collect();
            let found = run_on_gpus(&gpus(&rows));
            assert_eq!(found.len(), usize::from(!expect.is_empty()), "{found:?}");
            for (finding, expect) in found.iter().zip([expect]) {
                let text = format!("{finding:?}");
                assert!(expect.iter().all(|words| text.contains(words)), "{expect:?} in {text}");
                assert!(!finding.fix.is_empty() && finding.severity == facts::Severity::Error);
            }
        };
        check(&["aa", "aa", "aa"], &[]);
        check(
            &["aa", "aa", "bb"],
            &[
                "GPU 2 (NVIDIA H200) computes different bits than most of the 3 of its kind: 1 of 2 checks",
                "ssd a bf16 chunk: GPU 0 aa, GPU 1 aa, GPU 2 bb",
                "--gpu 2 ",
            ],
        );
        check(&["aa", "bb"], &["GPU 0, GPU 1 (NVIDIA H200) differ in the bits of 1 of 2 checks"]);
        check(&["aa", "varies", "aa"], &["GPU 1 (NVIDIA H200)", "GPU 1 other bits each time"]);
    }
}
