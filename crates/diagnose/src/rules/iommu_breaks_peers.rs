use super::{Context, Rule, Text};
use crate::{gpu, host};
use facts::{Confidence, Finding, Severity};

pub(super) const RULE: Rule = Rule {
    id: "iommu-breaks-peers",
    title: "the IOMMU or ACS interferes with PCIe P2P between GPUs without NVLink",
    about: "\
GPUs without NVLink reach each other's memory over PCIe (peer-to-peer, P2P). On bare metal, an IOMMU that translates
addresses, or PCIe bridges whose Access Control Services (ACS) redirect every request to the root complex, can make such
transfers slow, hang, or deliver wrong data; NCCL then hangs in its first collective or computes wrong values. In a
virtual machine the hypervisor controls both, and NVIDIA's driver handles them.

It shows without any log message, or as
  NCCL hangs after `Init COMPLETE`
or as wrong values in p2pBandwidthLatencyTest and simpleP2P.

Detected by the type of the GPUs' IOMMU groups (DMA: translated; identity: passthrough) and by the ACS control registers
of the bridges above them. `firstlight check` proves it by writing through P2P and reading back.

Turn ACS off on the bridges and pass the IOMMU through (iommu=pt, or off); until then NCCL_P2P_DISABLE=1 keeps NCCL
correct.",
    links: &[
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/gpu_troubleshooting.html",
        "https://docs.nvidia.com/maxine/triton/latest/Appendicies/PCIeMultiGPUSystems.html",
    ],
    texts: &[Text::new("PCI Access Control Services (ACS) may cause P2P", "NCCL WARN PCI Access Control Services (ACS) may cause P2P traffic to be routed through the root complex")],
    remedy: |_| commands(),
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn commands() -> Vec<String> {
    [
        "# correct immediately, but slower:",
        "export NCCL_P2P_DISABLE=1",
        "# the cause: pass the IOMMU through (kernel command line), then reboot:",
        "sudo grubby --update-kernel=ALL --args=iommu=pt  # Debian and Ubuntu: GRUB_CMDLINE_LINUX, then update-grub",
        "# and ACS off on each bridge above a GPU, after every boot (or ACS off in the firmware's setup):",
        "sudo setpci -s BRIDGE ECAP_ACS+0x6.w=0000",
        "firstlight check  # writes through P2P and reads back",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    let virtual_machine =
        machine.virtualisation.as_ref().is_some_and(|place| place.machine.is_some());
    let joined = machine
        .interconnect
        .paths
        .as_ref()
        .is_some_and(|paths| paths.value.iter().all(|path| path.nvlinks > 0));
    if gpu::nvidia(machine).count() < 2
        || virtual_machine
        || joined
        || host::container(machine) == Some("wsl")
    {
        return Vec::new();
    }
    let translating = machine
        .interconnect
        .iommu
        .as_ref()
        .filter(|types| types.value.iter().any(|kind| kind.starts_with("DMA")));
    let acs = machine.interconnect.acs_bridges.as_ref().filter(|bridges| !bridges.value.is_empty());
    if translating.is_none() && acs.is_none() {
        return Vec::new();
    }
    // The driver allows no P2P between GeForce boards, so no transfer takes this path.
    let geforce = gpu::all_geforce(machine);
    let severity = if geforce { Severity::Info } else { Severity::Warning };
    let what = match (translating, acs) {
        (Some(_), Some(_)) => "the IOMMU translates and ACS redirects",
        (Some(_), None) => "the IOMMU translates",
        _ => "ACS redirects",
    };
    let mut draft = RULE.finding(
        severity,
        Confidence::Likely,
        format!("{what} PCIe transfers between GPUs without NVLink"),
    );
    if let Some(types) = translating {
        draft = draft.evidence(
            format!("IOMMU groups of the GPUs: {}", types.value.join(", ")),
            types.source.clone(),
        );
    }
    if let Some(bridges) = acs {
        draft = draft.evidence(
            format!("ACS redirects at {}", bridges.value.join(", ")),
            bridges.source.clone(),
        );
    }
    if let Some(paths) = &machine.interconnect.paths {
        for path in paths.value.iter().filter(|path| path.nvlinks == 0).take(2) {
            let (a, b) = path.between;
            draft = draft.evidence(
                format!("GPU {a} and GPU {b} are joined by {}, without NVLink", path.pcie.as_str()),
                paths.source.clone(),
            );
        }
    }
    vec![
        draft
            .cause("Requests between the GPUs go through the root complex and the IOMMU, where they are slow, can hang, or deliver wrong data.")
            .fix(commands())
            .finish(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, Fact, GpuPath, Machine, PciePath, Severity::*, Virtualisation};

    fn pair(iommu: &str, acs: &[&str], nvlinks: u32) -> Machine {
        let mut machine = machines::siblings(2);
        machine.virtualisation = None;
        let path = GpuPath { between: (0, 1), pcie: PciePath::Phb, nvlinks };
        machine.interconnect.paths = Some(Fact::new(vec![path], "NVML"));
        machine.interconnect.iommu =
            Some(Fact::new(vec![iommu.into()], "/sys/kernel/iommu_groups"));
        let bridges = acs.iter().map(|bridge| (*bridge).to_owned()).collect();
        machine.interconnect.acs_bridges =
            Some(Fact::new(bridges, "/sys/bus/pci/devices/*/config"));
        machine
    }

    pub(super) fn cases() -> Vec<Case> {
        let mut guest = pair("DMA", &[], 0);
        let kvm = Some(Fact::new("kvm".into(), "cpuid"));
        guest.virtualisation = Some(Virtualisation { container: None, machine: kvm });
        vec![
            Case::new("S07: a translating IOMMU", pair("DMA-FQ", &[], 0), Vec::new()).finds(
                Warning,
                Likely,
                &[
                    "the IOMMU translates",
                    "DMA-FQ [/sys/kernel/iommu_groups]",
                    "NCCL_P2P_DISABLE",
                    "joined by PHB",
                ],
            ),
            Case::new("S07: ACS", pair("identity", &["0000:00:01.0"], 0), Vec::new()).finds(
                Warning,
                Likely,
                &["ACS redirects", "0000:00:01.0", "setpci"],
            ),
            Case::new("passed through", pair("identity", &[], 0), Vec::new()),
            Case::new("joined by NVLink", pair("DMA", &["0000:00:01.0"], 18), Vec::new()),
            Case::new("a virtual machine", guest, Vec::new()),
            Case::new("one GPU", machines::h200(), Vec::new()),
        ]
    }
}
