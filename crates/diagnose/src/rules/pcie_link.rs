use super::{Context, Rule};
use crate::gpu::nvidia;
use facts::{Confidence, Fact, Finding, Gpu, PcieLink, Severity};

pub(super) const RULE: Rule = Rule {
    id: "pcie-link",
    title: "a GPU's PCIe link is slower than the card and its slot allow",
    about: "\
A card and its slot negotiate a number of lanes and a generation when the machine starts. A poorly seated card, a bad
riser, a dirty contact or a second card that shares the lanes leaves x8 or x4 of x16, and copies to the GPU take two or
four times as long; kernel times do not change. An idle GPU lowers the generation to save power, which is normal, but
never the width.

No message reports it: copies from the host are slow, and nvidia-smi -q has a current link width below the maximum.

Detected by comparing NVML's current link with the maximum of card and slot together; the generation counts only while
a program computes on the GPU.

Reseat the card, try another slot or riser, and check for lane sharing in the firmware's settings.",
    links: &["https://docs.nvidia.com/deploy/nvidia-smi/index.html"],
    remedy: |_| inspect(),
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// GPU utilization from which the link should run at its full generation.
const BUSY_PERCENT: u32 = 50;

fn inspect() -> Vec<String> {
    vec![
        "nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max --format=csv".into(),
        "sudo lspci -vv -d 10de: | grep -E 'LnkCap:|LnkSta:'".into(),
    ]
}

fn check(context: &Context) -> Vec<Finding> {
    nvidia(context.machine).filter_map(judge).collect()
}

fn judge(gpu: &Gpu) -> Option<Finding> {
    let Fact { value: link, source } = gpu.health.pcie.as_ref()?;
    let name = format!("GPU {} ({})", gpu.index, gpu.name.value);
    let busy = gpu.health.busy_percent.as_ref().filter(|busy| busy.value >= BUSY_PERCENT);
    let narrow = link.width_most.filter(|most| link.width < *most);
    let slow = link.generation_most.filter(|most| link.generation < *most).zip(busy);
    let (title, cause) = match (narrow, slow) {
        (Some(most), _) => (
            format!("{name} has x{} of x{most} PCIe lanes", link.width),
            "Copies between the host and this GPU take longer in proportion to the missing lanes.",
        ),
        (None, Some((most, _))) => (
            format!("{name} computes with PCIe generation {} of {most}", link.generation),
            "Each missing generation halves the rate of copies between the host and this GPU.",
        ),
        (None, None) => return None,
    };
    let mut draft = RULE
        .finding(Severity::Warning, Confidence::Likely, title)
        .evidence(describe(link), source.clone());
    if let Some((_, busy)) = slow {
        draft = draft.evidence(format!("busy {} % of the time", busy.value), busy.source.clone());
    }
    let mut fix = inspect();
    fix.push("# with the power off: reseat the card, or try another slot or riser".into());
    Some(draft.cause(cause).fix(fix).finish())
}

fn describe(link: &PcieLink) -> String {
    let of = |most: Option<u32>| most.map_or(String::new(), |most| format!(" of {most}"));
    let (generations, lanes) = (of(link.generation_most), of(link.width_most));
    format!("generation {}{generations}, {}{lanes} lanes", link.generation, link.width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let case = |what, [generation, width]: [u32; 2], most: Option<[u32; 2]>, busy: u32| {
            let mut machine = machines::h200();
            let (generation_most, width_most) = (most.map(|it| it[0]), most.map(|it| it[1]));
            let link = PcieLink { generation, width, generation_most, width_most };
            let source = "NVML nvmlDeviceGetCurrPcieLinkGeneration";
            machine.gpus[0].health.pcie = Some(Fact::new(link, source));
            machine.gpus[0].health.busy_percent = Some(Fact::new(busy, "NVML"));
            Case::new(what, machine, Vec::new())
        };
        vec![
            case("half the lanes", [1, 8], Some([5, 16]), 0).finds(
                Warning,
                Likely,
                &["GPU 0 (NVIDIA H200) has x8 of x16", "generation 1 of 5, 8 of 16 lanes", "lspci"],
            ),
            case("a lower generation under load", [3, 16], Some([5, 16]), 98).finds(
                Warning,
                Likely,
                &["computes with PCIe generation 3 of 5", "busy 98 %"],
            ),
            case("an idle GPU", [1, 16], Some([5, 16]), 0),
            case("the full link", [5, 16], Some([5, 16]), 98),
            case("an unknown maximum", [1, 8], None, 98),
            Case::new("no link was read", machines::h200(), Vec::new()),
        ]
    }
}
