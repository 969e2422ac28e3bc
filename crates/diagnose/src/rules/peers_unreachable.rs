use super::Rule;
use facts::{Confidence, FabricReport, Finding, GpusReport, Severity};

pub(super) const RULE: Rule = Rule {
    id: "peers-unreachable",
    title: "two GPUs have no peer access to each other's memory",
    about: "\
GPUs with peer access copy directly and all-reduce small messages in microseconds. Without peer access, every transfer
goes through host memory: NCCL works, at a fraction of the speed, and kernels that write to other GPUs cannot be used.

Known causes: GeForce boards without NVLink, for which the driver does not allow it; GPUs of different models or on
different sockets; virtual machines; MIG partitions, which never have peer access. If NVLinks connect the two, it is a
fault: the fabric manager does not run, or links are down.

Detected by asking the driver (cuDeviceCanAccessPeer) for each pair of GPUs of a check.",
    links: &[
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#peer-to-peer-memory-access",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ],
    remedy: |_| commands(),
    check_gpus: Some(|gpus: &GpusReport| gpus.fabric.as_ref().and_then(judge).into_iter().collect()),
    ..Rule::BLANK
};

fn judge(fabric: &FabricReport) -> Option<Finding> {
    let apart = fabric.copies.iter().filter(|copy| !copy.direct && copy.from < copy.to);
    let apart: Vec<_> = apart.collect();
    let first = apart.first()?;
    let joined = |copy: &&facts::PeerCopy| {
        copy.links.as_ref().is_some_and(|links| links.words.contains("NVLink"))
    };
    let by_links = apart.iter().copied().find(joined);
    let pair = by_links.unwrap_or(first);
    let more = if apart.len() > 1 {
        format!(", nor do {} other pairs", apart.len() - 1)
    } else {
        String::new()
    };
    let title =
        format!("GPU {} and GPU {} do not reach each other's memory{more}", pair.from, pair.to);
    let severity = if by_links.is_some() { Severity::Warning } else { Severity::Info };
    let mut draft = RULE.finding(severity, Confidence::Certain, title);
    for copy in &apart {
        let rate =
            copy.gbps.map_or(String::new(), |gbps| format!(", {gbps:.1} GB/s through the host"));
        let what = format!("GPU {} to GPU {}{rate}", copy.from, copy.to);
        draft = draft.evidence(what, "cuDeviceCanAccessPeer");
    }
    if let Some(links) = by_links.and_then(|copy| copy.links.as_ref()) {
        draft = draft.evidence(links.words.clone(), links.source.clone());
    }
    let cause = match by_links {
        Some(_) => {
            "NVLinks connect them but are not initialized: the fabric manager does not run, or the links are down."
        }
        None => {
            "The driver does not allow it for these boards, or the PCIe topology between them does not support it."
        }
    };
    Some(draft.cause(cause).fix(commands()).finish())
}

fn commands() -> Vec<String> {
    vec![
        "nvidia-smi topo -p2p rw".to_owned(),
        "nvidia-smi topo -m".to_owned(),
        "systemctl status nvidia-fabricmanager".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::fabric::records::{fabric, report};
    use crate::run_on_gpus;
    use facts::{FabricReport, Severity};

    #[test]
    fn names_pairs_without_peer_access() {
        let apart = |fabric: &mut FabricReport, joined: bool| {
            for copy in fabric.copies.iter_mut().filter(|copy| copy.from.min(copy.to) == 0) {
                (copy.direct, copy.gbps) = (false, Some(11.0));
                copy.links = copy.links.take().filter(|_| joined);
            }
        };
        for (count, joined, severity, title) in [
            (2, true, Severity::Warning, "GPU 0 and GPU 1 do not reach each other's memory"),
            (2, false, Severity::Info, "GPU 0 and GPU 1 do not reach each other's memory"),
            (3, false, Severity::Info, "each other's memory, nor do 1 other pairs"),
        ] {
            let mut fabric = fabric(count, 390.0);
            apart(&mut fabric, joined);
            let found = run_on_gpus(&report(fabric));
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].severity, severity);
            assert!(found[0].title.ends_with(title), "{found:?}");
            assert!(format!("{found:?}").contains("11.0 GB/s through the host"), "{found:?}");
        }
        assert!(run_on_gpus(&report(fabric(2, 390.0))).is_empty());
    }
}
