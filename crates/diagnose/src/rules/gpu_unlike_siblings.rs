use super::{Context, Rule};
use crate::gpu::nvidia;
use facts::CompactSort;
use facts::{Confidence, Fact, Finding, Gpu, Severity};

pub(super) const RULE: Rule = Rule {
    id: "gpu-unlike-siblings",
    title: "one GPU's configuration differs from its siblings",
    about: "\
Programs that split their work over the GPUs of a machine wait for the slowest one. A GPU of the same name with another
power cap, another maximum clock, less memory, ECC off, MIG on, a narrower slot or fewer NVLinks than the others slows
down every step, or fails where the others do not.

No message reports it: all-reduce takes longer than expected, or one rank runs out of memory.

Detected by comparing NVML's values of all GPUs of one name. If a majority agrees, the GPUs that differ are named; if
only two GPUs differ from each other, both are named.

Configure the GPU as the others, or find out why it differs: it may be a board of another revision.",
    links: &["https://docs.nvidia.com/deploy/nvidia-smi/index.html"],
    remedy: |_| inspect(),
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn inspect() -> Vec<String> {
    vec!["nvidia-smi --query-gpu=index,name,memory.total,power.limit,clocks.max.sm,ecc.mode.current,mig.mode.current,pcie.link.width.max --format=csv".into()]
}

/// A compared property: its name, and a function that returns a GPU's value and its source.
type Trait = (&'static str, fn(&Gpu) -> Option<(String, String)>);

fn fact<T>(fact: &Option<Fact<T>>, words: impl Fn(&T) -> String) -> Option<(String, String)> {
    fact.as_ref().map(|fact| (words(&fact.value), fact.source.clone()))
}

const TRAITS: [Trait; 8] = [
    ("memory", |gpu| fact(&gpu.memory_total_bytes, |bytes| format!("{} MiB", bytes >> 20))),
    ("power cap", |gpu| {
        fact(&gpu.health.power_cap_milliwatts, |milliwatts| format!("{} W", milliwatts / 1000))
    }),
    ("highest clock", |gpu| fact(&gpu.health.sm_mhz_most, |mhz| format!("{mhz} MHz"))),
    ("error correction", |gpu| fact(&gpu.health.ecc, |on| switch(*on))),
    ("MIG", |gpu| Some((switch(gpu.mig?), "NVML nvmlDeviceGetMigMode".into()))),
    ("PCIe lanes of card and slot", |gpu| {
        let link = gpu.health.pcie.as_ref()?;
        Some((format!("x{}", link.value.width_most?), link.source.clone()))
    }),
    ("PCIe generation of card and slot", |gpu| {
        let link = gpu.health.pcie.as_ref()?;
        Some((link.value.generation_most?.to_string(), link.source.clone()))
    }),
    ("NVLinks up", |gpu| {
        let up = |links: &Vec<facts::NvLink>| links.iter().filter(|link| link.up).count();
        fact(&gpu.health.nvlinks, |links| up(links).to_string())
    }),
];

fn switch(on: bool) -> String {
    if on { "on".into() } else { "off".into() }
}

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    let mut names: Vec<&str> = nvidia(machine).map(|gpu| gpu.name.value.as_str()).collect();
    names.compact_sort();
    names.dedup();
    let of_name = |name: &&str| {
        let gpus: Vec<&Gpu> = nvidia(machine).filter(|gpu| gpu.name.value == **name).collect();
        TRAITS.iter().filter_map(|it| compare(name, &gpus, it)).collect::<Vec<_>>()
    };
    names.iter().flat_map(of_name).collect()
}

fn compare(name: &str, gpus: &[&Gpu], (what, of): &Trait) -> Option<Finding> {
    let values: Vec<(u32, String, String)> = gpus
        .iter()
        .filter_map(|gpu| of(gpu).map(|(value, source)| (gpu.index, value, source)))
        .collect();
    let votes = |value: &str| values.iter().filter(|(_, other, _)| other == value).count();
    let usual = values.iter().map(|(_, value, _)| value).max_by_key(|value| votes(value))?;
    if votes(usual) == values.len() {
        return None;
    }
    let odd: Vec<&(u32, String, String)> =
        values.iter().filter(|(_, value, _)| value != usual).collect();
    let majority = 2 * votes(usual) > values.len();
    let list = |indices: &[u32]| {
        indices.iter().map(|index| format!("GPU {index}")).collect::<Vec<_>>().join(", ")
    };
    let title = if majority {
        let who = list(&odd.iter().map(|(index, ..)| *index).collect::<Vec<_>>());
        format!("{who} ({name}) differs from its siblings: {what}")
    } else {
        let who = list(&values.iter().map(|(index, ..)| *index).collect::<Vec<_>>());
        format!("{who} ({name}) differ: {what}")
    };
    let mut draft = RULE.finding(Severity::Warning, Confidence::Certain, title);
    for (index, value, source) in &values {
        draft = draft.evidence(format!("GPU {index}: {what} {value}"), source.clone());
    }
    let cause = "A program that splits its work over these GPUs waits for the slowest of them, or fails on one of them.";
    Some(draft.cause(cause).fix(inspect()).finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, Machine, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let capped = |caps: &[u32]| {
            let mut machine = machines::siblings(caps.len());
            for (gpu, watts) in machine.gpus.iter_mut().zip(caps) {
                gpu.health.power_cap_milliwatts = Some(Fact::new(watts * 1000, "NVML"));
            }
            machine
        };
        let mut mig = machines::siblings(4);
        mig.gpus.iter_mut().for_each(|gpu| gpu.mig = Some(gpu.index == 3));
        let mut mixed = machines::siblings(2);
        mixed.gpus[1] = machines::gpu("NVIDIA A10", (8, 6), 23_028);
        let mut silent = capped(&[700, 700, 700]);
        silent.gpus[2].health.power_cap_milliwatts = None;
        let case = |what, machine: Machine| Case::new(what, machine, Vec::new());
        vec![
            case("one lower cap of three", capped(&[700, 500, 700])).finds(
                Warning,
                Certain,
                &[
                    "GPU 1 (NVIDIA H200) differs from its siblings: power cap",
                    "GPU 1: power cap 500 W",
                ],
            ),
            case("two that differ", capped(&[700, 500])).finds(
                Warning,
                Certain,
                &["GPU 0, GPU 1 (NVIDIA H200) differ: power cap", "GPU 0: power cap 700 W"],
            ),
            case("one with MIG", mig).finds(Warning, Certain, &["GPU 3", "GPU 3: MIG on"]),
            case("equal caps", capped(&[700, 700])),
            case("two kinds of card", mixed),
            case("one without a value", silent),
            case("a single GPU", machines::h200()),
        ]
    }
}
