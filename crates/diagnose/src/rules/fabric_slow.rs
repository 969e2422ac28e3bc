use super::Rule;
use facts::CompactSort;
use facts::{CollectiveKind, Confidence, FabricReport, Finding, GpusReport, PeerCopy, Severity};

pub(super) const RULE: Rule = Rule {
    id: "fabric-slow",
    title: "peer-to-peer copies are slower than the links or the other GPU pairs",
    about: "\
A tensor-parallel model waits for the slowest GPU pair at every layer. A pair is slow if an NVLink is down, a PCIe slot
has fewer lanes, copies are routed through the CPU (ACS, IOMMU), the two GPUs are attached to different sockets, or the
link has errors and retransmits.

Detected by verified copies of 256 MiB between each pair of GPUs, in each direction: one direction is more than 10 %
below the median of those with the same links, or below 60 % of the nominal NVLink bandwidth or 40 % of the nominal PCIe
bandwidth; or the bus bandwidth of NCCL's large all-reduce is below half of the nominal NVLink bandwidth.

Compare the links with nvidia-smi, check their error counters, and check the topology between the two GPUs.",
    links: &[
        "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md",
        "https://github.com/NVIDIA/nvbandwidth",
    ],
    remedy: |_| commands(),
    check_gpus: Some(|gpus: &GpusReport| {
        let fabric = gpus.fabric.as_ref();
        fabric.map(|fabric| [pairs(fabric), sums(fabric)].into_iter().flatten().collect()).unwrap_or_default()
    }),
    ..Rule::BLANK
};

/// Lowest accepted fraction of the median rate of GPU pairs with the same links.
const OF_SIBLINGS: f64 = 0.9;
/// Lowest accepted fraction of the nominal link bandwidth. Peer copies reach 4/5 of NVLink, and 7/8 of PCIe without a
/// bridge in between.
const OF_NVLINKS: f64 = 0.6;
const OF_PCIE: f64 = 0.4;
/// Lowest accepted fraction of the nominal NVLink bandwidth for NCCL's bus bandwidth.
const OF_SUMS: f64 = 0.5;
/// Transfer sizes in bytes from which bandwidth, not latency, dominates.
const LARGE_COPY: u64 = 16 << 20;
const LARGE_SUM: u64 = 128 << 20;
const SOURCE: &str = "gpus.json";

fn pairs(fabric: &FabricReport) -> Option<Finding> {
    let large: Vec<&PeerCopy> =
        fabric.copies.iter().filter(|copy| copy.direct && copy.bytes >= LARGE_COPY).collect();
    let alike = |one: &PeerCopy, other: &PeerCopy| {
        let words = |copy: &PeerCopy| copy.links.as_ref().map(|links| links.words.clone());
        words(one) == words(other) && (one.from, one.to) != (other.from, other.to)
    };
    let mut slow: Vec<(f64, &PeerCopy, String)> = Vec::new();
    for copy in &large {
        let Some(gbps) = copy.gbps else { continue };
        let siblings = large.iter().filter(|other| alike(copy, other));
        let usual = median(siblings.filter_map(|other| other.gbps).collect());
        let below = usual.filter(|usual| gbps < OF_SIBLINGS * usual);
        let limit = copy.links.as_ref().filter(|links| {
            let least = if links.words.contains("NVLink") { OF_NVLINKS } else { OF_PCIE };
            gbps < least * links.gbps
        });
        let (of, words) = match (below, limit) {
            (Some(usual), _) => (usual, format!("the same links elsewhere reach {usual:.0} GB/s")),
            (None, Some(links)) => {
                (links.gbps, format!("{} carry {:.0} GB/s", links.words, links.gbps))
            }
            (None, None) => continue,
        };
        slow.push((gbps / of, copy, format!("{gbps:.0} GB/s, {words}")));
    }
    slow.compact_sort_by(|a, b| a.0.total_cmp(&b.0));
    let (share, worst, _) = slow.first()?;
    let title = format!(
        "copies from GPU {} to GPU {} are slow: {:.0} % of the expected rate",
        worst.from,
        worst.to,
        100.0 * share
    );
    let mut draft = RULE.finding(Severity::Warning, Confidence::Likely, title);
    for (_, copy, words) in &slow {
        draft = draft.evidence(format!("GPU {} to GPU {}: {words}", copy.from, copy.to), SOURCE);
    }
    let cause = "A link between the two is down, narrow or retransmits, or their copies take a longer route than others.";
    Some(draft.cause(cause).fix(commands()).finish())
}

fn sums(fabric: &FabricReport) -> Option<Finding> {
    let links = fabric.links.as_ref().filter(|links| links.words.contains("NVLink"))?;
    // Measured with torch on a healthy pair of H200s: all-reduce 63 % of the links, other collectives 50 to 60 %.
    let large = fabric
        .collectives
        .iter()
        .filter(|sum| sum.kind == CollectiveKind::AllReduce && sum.bytes >= LARGE_SUM);
    let slow = large.filter_map(|sum| Some((sum, sum.bus_gbps?)));
    let (sum, bus) = slow.into_iter().find(|(_, bus)| *bus < OF_SUMS * links.gbps)?;
    let kind = sum.kind.as_str();
    let title =
        format!("NCCL's {kind} has {bus:.0} GB/s of the {:.0} that the links carry", links.gbps);
    let mut draft = RULE
        .finding(Severity::Warning, Confidence::Likely, title)
        .evidence(format!("{kind} of {} bytes: bus bandwidth {bus:.0} GB/s", sum.bytes), SOURCE)
        .evidence(links.words.clone(), links.source.clone());
    if let Some(nccl) = &fabric.nccl {
        draft = draft.evidence(nccl, SOURCE);
    }
    let cause = "NCCL does not use all links (an NCCL_ variable can disable them), or one of the GPUs is slow.";
    Some(draft.cause(cause).fix(commands()).finish())
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.compact_sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn commands() -> Vec<String> {
    vec![
        "nvidia-smi topo -m".to_owned(),
        "nvidia-smi nvlink --status".to_owned(),
        "nvidia-smi nvlink --errorcounters".to_owned(),
        "env | grep NCCL_".to_owned(),
        "firstlight bench fabric".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::fabric::records::{fabric, report};
    use crate::run_on_gpus;
    use facts::FabricReport;

    #[test]
    fn names_slow_gpu_pairs() {
        let check = |count, gbps, change: &dyn Fn(&mut FabricReport), expect: &[&str]| {
            let mut fabric = fabric(count, gbps);
            change(&mut fabric);
            let found = run_on_gpus(&report(fabric));
            assert_eq!(found.len(), usize::from(!expect.is_empty()), "{found:?}");
            let text = format!("{found:?}");
            assert!(expect.iter().all(|words| text.contains(words)), "{expect:?} in {text}");
        };
        check(2, 390.0, &|_| (), &[]);
        check(8, 390.0, &|fabric| fabric.copies[9].gbps = Some(360.0), &[]);
        let one = [
            "from GPU 1 to GPU 3 are slow: 77 %",
            "300 GB/s, the same links elsewhere reach 390 GB/s",
        ];
        check(8, 390.0, &|fabric| fabric.copies[9].gbps = Some(300.0), &one);
        check(2, 390.0, &|fabric| fabric.copies[1].gbps = Some(300.0), &["from GPU 1 to GPU 0"]);
        // All pairs are equally slow, below the nominal bandwidth.
        let all = ["are slow: 42 % of", "18 NVLinks of 26.6 GB/s carry 478 GB/s"];
        check(2, 200.0, &|_| (), &all);
        // Small copies, and copies through the host, do not measure the links.
        check(2, 20.0, &|fabric| fabric.copies.iter_mut().for_each(|copy| copy.bytes = 1024), &[]);
        let pcie = |fabric: &mut FabricReport| {
            for copy in &mut fabric.copies {
                let links = copy.links.as_mut().unwrap();
                (links.gbps, links.words) = (63.0, "PCIe 5.0 x16".into());
            }
        };
        check(2, 30.0, &pcie, &[]);
        check(2, 20.0, &pcie, &["are slow: 32 % of", "PCIe 5.0 x16 carry 63 GB/s"]);
        let low = |fabric: &mut FabricReport| fabric.collectives[0].bus_gbps = Some(120.0);
        check(2, 390.0, &low, &["NCCL's all-reduce has 120 GB/s of the 478"]);
    }
}
