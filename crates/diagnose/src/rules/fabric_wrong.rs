use super::Rule;
use facts::{Confidence, FabricReport, Finding, GpusReport, Severity};

pub(super) const RULE: Rule = Rule {
    id: "fabric-wrong",
    title: "transfers between GPUs deliver wrong data",
    about: "\
`firstlight check` copies known words from each GPU to every other GPU, and runs NCCL collectives over known values,
into buffers filled with NaN. Values that differ or were not written are listed with the two GPUs or the collective. No
multi-GPU program can be correct on such a machine: losses become NaN, or a model generates noise on two GPUs but not on
one. Transfers that never end have the same causes.

Known causes: PCIe access control (ACS) or an IOMMU that redirects peer-to-peer copies, a virtual machine without
support for them, a faulty bridge or switch, a riser cable.

Copy through the host until it is fixed (NCCL_P2P_DISABLE=1), check the kernel log for errors, and disable ACS and the
IOMMU for the GPUs, or stop using the pair.",
    links: &[
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
        "https://github.com/NVIDIA/nccl-tests",
    ],
    remedy: |_| commands(),
    check_gpus: Some(|gpus: &GpusReport| {
        let fabric = gpus.fabric.as_ref();
        fabric.map(|fabric| [wrong(fabric), ended(fabric)].into_iter().flatten().collect()).unwrap_or_default()
    }),
    ..Rule::BLANK
};

const SOURCE: &str = "gpus.json";

fn wrong(fabric: &FabricReport) -> Option<Finding> {
    let copies = fabric.copies.iter().filter(|copy| copy.wrong > 0).map(|copy| {
        let bytes = copy.bytes;
        let what = format!("{} words of copies of {bytes} bytes are wrong", copy.wrong);
        (format!("from GPU {} to GPU {}", copy.from, copy.to), what)
    });
    let sums = fabric.collectives.iter().filter(|sum| sum.wrong > 0).map(|sum| {
        let what = format!("{} values of {} bytes are wrong", sum.wrong, sum.bytes);
        (format!("in NCCL's {}", sum.kind.as_str()), what)
    });
    let recorded = fabric.recorded.iter().filter(|sum| sum.wrong > 0).map(|sum| {
        let what =
            format!("{} values of {} bytes in a recorded graph are wrong", sum.wrong, sum.bytes);
        (format!("in sums by {}", sum.by), what)
    });
    let all: Vec<(String, String)> = copies.chain(sums).chain(recorded).collect();
    let (first, _) = all.first()?;
    let more = if all.len() > 1 { format!(" and {} more", all.len() - 1) } else { String::new() };
    let title = format!("transfers between GPUs deliver wrong data: {first}{more}");
    let mut draft = RULE.finding(Severity::Error, Confidence::Certain, title);
    for (where_, what) in &all {
        draft = draft.evidence(format!("{where_}: {what}"), SOURCE);
    }
    if let Some(nccl) = &fabric.nccl {
        draft = draft.evidence(nccl, SOURCE);
    }
    let cause =
        "The path between these GPUs corrupts or loses data, or writes it to another address.";
    Some(draft.cause(cause).fix(commands()).done())
}

fn ended(fabric: &FabricReport) -> Option<Finding> {
    let why = fabric.broke.as_ref()?;
    let done = format!(
        "{} copies and {} collectives were measured before",
        fabric.copies.len(),
        fabric.collectives.len()
    );
    let title = "the measurement between the GPUs did not finish";
    let draft = RULE.finding(Severity::Error, Confidence::Certain, title);
    let mut draft = draft.evidence(why, "the process that measures").evidence(done, SOURCE);
    if let Some(nccl) = &fabric.nccl {
        draft = draft.evidence(nccl, SOURCE);
    }
    let cause = "A transfer hung or was refused, or the process lost a GPU.";
    Some(draft.cause(cause).fix(commands()).done())
}

fn commands() -> Vec<String> {
    vec![
        "sudo dmesg | grep -E 'NVRM|Xid|DMAR|AER'".to_owned(),
        "nvidia-smi topo -p2p rw".to_owned(),
        "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.log firstlight bench fabric".to_owned(),
        "# until it is fixed, copy through the host:".to_owned(),
        "export NCCL_P2P_DISABLE=1".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::fabric::records::{fabric, report};
    use crate::run_on_gpus;
    use facts::{FabricReport, RecordedSum, Severity};

    #[test]
    fn wrong_transfers_are_errors_with_their_gpus() {
        let check = |change: &dyn Fn(&mut FabricReport), expect: &[&str]| {
            let mut fabric = fabric(2, 390.0);
            change(&mut fabric);
            let found = run_on_gpus(&report(fabric));
            assert_eq!(found.len(), usize::from(!expect.is_empty()), "{found:?}");
            assert!(found.iter().all(|finding| finding.severity == Severity::Error));
            let text = format!("{found:?}");
            assert!(expect.iter().all(|words| text.contains(words)), "{expect:?} in {text}");
        };
        check(&|_| (), &[]);
        let copy = |fabric: &mut FabricReport| {
            fabric.copies[1].wrong = 7;
            fabric.copies[1].gbps = None;
        };
        check(
            &copy,
            &["deliver wrong data: from GPU 1 to GPU 0\"", "7 words of copies of 268435456"],
        );
        let sum = |fabric: &mut FabricReport| {
            fabric.collectives[0].wrong = 1;
            fabric.collectives[0].bus_gbps = None;
            let by = "decoder.join_peers".to_owned();
            fabric.recorded.push(RecordedSum { by, bytes: 16_384, micros: None, wrong: 3 });
        };
        check(&sum, &["in NCCL's all-reduce and 1 more", "sums by decoder.join_peers: 3 values"]);
        let hung = |fabric: &mut FabricReport| fabric.broke = Some("did not answer".into());
        check(&hung, &["the measurement between the GPUs did not", "2 copies and 1 collectives"]);
    }
}
