use super::Rule;
use facts::CompactSort;
use facts::{CollectiveKind, Confidence, FabricReport, Finding, GpusReport, PeerCopy, Severity};

pub(super) const RULE: Rule = Rule {
    id: "fabric-slow",
    title: "GPUs are slower between each other than their links or their siblings",
    about: "\
A model that is split over GPUs waits for the slowest way between two of them at every layer. A way is slow where an
NVLink is down, a PCIe slot gives fewer lanes, copies go up to the processor and down again (ACS, IOMMU), the two GPUs
hang on different sockets, or the link runs with errors and sends again.

Seen by copies of 256 MiB between each two GPUs, verified: one way is more than 10 % below the median of the ways with
the same links, or below 60 % of what NVLinks or 40 % of what PCIe carries by number and rate; or NCCL's large
all-reduce is below half of it over NVLinks.

Compare the links with nvidia-smi, count their errors, and look at what lies between the two.",
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

/// Of the median of ways with the same links.
const OF_SIBLINGS: f64 = 0.9;
/// Of what the links carry: copy engines reach four fifths of NVLinks, and seven eighths of PCIe where no bridge is between.
const OF_NVLINKS: f64 = 0.6;
const OF_PCIE: f64 = 0.4;
/// NCCL's bus bandwidth of what NVLinks carry.
const OF_SUMS: f64 = 0.5;
/// Sizes from which a rate is the links' and not the start's.
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
            (Some(usual), _) => (usual, format!("the ways like it have {usual:.0} GB/s")),
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
        "copies from GPU {} to GPU {} are slow: {:.0} % of what they should be",
        worst.from,
        worst.to,
        100.0 * share
    );
    let mut draft = RULE.finding(Severity::Warning, Confidence::Likely, title);
    for (_, copy, words) in &slow {
        draft = draft.evidence(format!("GPU {} to GPU {}: {words}", copy.from, copy.to), SOURCE);
    }
    let cause = "A link between the two is down, narrow or sends again, or copies take a longer way than the others'.";
    Some(draft.cause(cause).fix(commands()).finish())
}

fn sums(fabric: &FabricReport) -> Option<Finding> {
    let links = fabric.links.as_ref().filter(|links| links.words.contains("NVLink"))?;
    // A good pair of H200s has 63 % of its links in this one, and 50 to 60 in the others, with torch as here.
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
    let cause = "NCCL does not use all links: a setting of its environment keeps it from them, or one of the GPUs is slow.";
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
    fn a_way_that_is_slow_is_named() {
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
        let one =
            ["from GPU 1 to GPU 3 are slow: 77 %", "300 GB/s, the ways like it have 390 GB/s"];
        check(8, 390.0, &|fabric| fabric.copies[9].gbps = Some(300.0), &one);
        check(2, 390.0, &|fabric| fabric.copies[1].gbps = Some(300.0), &["from GPU 1 to GPU 0"]);
        // All of them alike, and below what the links carry.
        let all = ["are slow: 42 % of", "18 NVLinks of 26.6 GB/s carry 478 GB/s"];
        check(2, 200.0, &|_| (), &all);
        // What goes through the host, or is small, is no measure of the links.
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
