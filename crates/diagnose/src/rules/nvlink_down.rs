use super::{Context, Rule, Text};
use crate::gpu::nvidia;
use crate::host;
use facts::{Confidence, Finding, Gpu, NvLink, Severity};

pub(super) const RULE: Rule = Rule {
    id: "nvlink-down",
    title: "an NVLink of a GPU is down",
    about: "\
GPUs on one board are connected by several NVLinks each. If some of a GPU's links are down, the others still work:
copies and collectives between GPUs are slower, or use PCIe, without any message. If all of a GPU's links are down while
its siblings' are up, CUDA's peer access fails, and on boards with NVSwitches the GPU may not start at all.

It shows as
  NVML: Unable to retrieve Nvlink information as all links are inActive

Detected by asking NVML for the state of each link, if at least one GPU of the same name has a link up. PCIe cards
without their NVLink bridge have no link up and are not reported.

Look for Xid 74 and 144 to 150 in the kernel log, reset all GPUs of the board together, and check that the fabric
manager runs. If a link stays down, replace the bridge, the baseboard or the GPU.",
    links: &["https://docs.nvidia.com/deploy/xid-errors/index.html"],
    // https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1150
    texts: &[Text::new("Unable to retrieve Nvlink information as all links are inActive", "NVML: Unable to retrieve Nvlink information as all links are inActive")],
    remedy: |seen| commands(seen.machine()),
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn commands(machine: &facts::Machine) -> Vec<String> {
    let mut lines: Vec<String> = host::driver_location_remark(machine).into_iter().collect();
    lines.push("nvidia-smi nvlink --status".into());
    lines.push("sudo dmesg | grep -E 'NVRM|Xid'".into());
    lines
        .push("# with no program on any of them; all GPUs of the board are reset together:".into());
    lines.push("sudo nvidia-smi --gpu-reset".into());
    lines
}

fn up(links: &[NvLink]) -> usize {
    links.iter().filter(|link| link.up).count()
}

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    let links = |gpu: &Gpu| gpu.health.nvlinks.clone();
    let judge = |gpu: &Gpu| {
        let own = links(gpu)?;
        let siblings = nvidia(machine).filter(|other| other.name.value == gpu.name.value);
        let most = siblings.filter_map(|other| Some(up(&links(other)?.value))).max()?;
        let (here, all) = (up(&own.value), own.value.len());
        if most == 0 || here == all {
            return None;
        }
        let down: Vec<String> =
            (0..all).filter(|at| !own.value[*at].up).map(|at| at.to_string()).collect();
        // Links that are down on all GPUs of a name may have no bridge installed.
        let confidence = if here < most { Confidence::Certain } else { Confidence::Possible };
        let severity = if here < most { Severity::Warning } else { Severity::Info };
        let title =
            format!("GPU {} ({}) has {here} of {all} NVLinks up", gpu.index, gpu.name.value);
        let finding = RULE
            .finding(severity, confidence, title)
            .evidence(format!("down: links {}", down.join(", ")), own.source.clone())
            .evidence(format!("a GPU of the same name has {most} up"), own.source.clone())
            .cause("Copies and collectives with this GPU are slower than its links allow, or use PCIe.")
            .fix(commands(machine))
            .finish();
        Some(finding)
    };
    nvidia(machine).filter_map(judge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, Fact, Machine, Severity::*};

    fn linked(counts: &[(usize, usize)]) -> Machine {
        let links = |(here, all): &(usize, usize)| -> Vec<NvLink> {
            let link = |at| NvLink { up: at < *here, megabytes_per_second: None, remote: None };
            (0..*all).map(link).collect()
        };
        let mut machine = machines::siblings(counts.len());
        for (gpu, counts) in machine.gpus.iter_mut().zip(counts) {
            gpu.health.nvlinks = Some(Fact::new(links(counts), "NVML nvmlDeviceGetNvLinkState"));
        }
        machine
    }

    pub(super) fn cases() -> Vec<Case> {
        let case = |what, counts: &[(usize, usize)]| Case::new(what, linked(counts), Vec::new());
        vec![
            case("one link of one GPU", &[(18, 18), (17, 18)]).finds(
                Warning,
                Certain,
                &["GPU 1 (NVIDIA H200) has 17 of 18", "down: links 17", "same name has 18 up"],
            ),
            case("all links of one GPU", &[(18, 18), (0, 18)]).finds(
                Warning,
                Certain,
                &["has 0 of 18"],
            ),
            case("two bridges where three fit", &[(8, 12), (8, 12)])
                .finds(Info, Possible, &["GPU 0"])
                .finds(Info, Possible, &["GPU 1"]),
            case("all up", &[(18, 18), (18, 18)]),
            case("cards without a bridge", &[(0, 12), (0, 12)]),
            Case::new("no NVLinks", machines::rtx4090(), Vec::new()),
        ]
    }
}
