use super::Rule;
use crate::fleet::{backend_of_kind, device};
use facts::{BackendKind, Finding, FleetReport, GpuKind, GpuSpeed};

pub(super) const RULE: Rule = Rule {
    id: "processor-slower",
    title: "one node's CPU is slower than its siblings",
    about: "\
A node with a slow CPU launches GPU work late, and a job on many nodes waits for it. A missing memory module, a power
profile, another tenant on the same host or a thermal limit has no other symptom than time.

Detected by timing the same verified kernels on CPUs of one model with the same number of cores for the process: the
median time ratio to the siblings is more than 25 % above 1. Other processes and ranks share the CPU, so smaller
differences and single measurements such as a ceiling are ignored.",
    remedy: |_| commands(),
    check_fleet: Some(|fleet: &FleetReport| {
        let there = fleet.kinds.iter().filter(|kind| backend_of_kind(fleet, kind) == BackendKind::Cpu);
        there.flat_map(|kind| kind.speed.iter().filter_map(|speed| judge(fleet, kind, speed))).collect()
    }),
    ..Rule::BLANK
};

/// Highest accepted median ratio of kernel times to the siblings'.
const SLOWER: f64 = 1.25;

fn judge(fleet: &FleetReport, kind: &GpuKind, speed: &GpuSpeed) -> Option<Finding> {
    let processor = format!("{} ({})", device(fleet, speed.gpu), kind.name);
    let draft = super::gpu_slower::draft(&RULE, &processor, speed, (SLOWER, f64::INFINITY))?;
    let cause = "Other processes use it, its clocks are throttled, or its memory is slower than the others'.";
    Some(draft.cause(cause).fix(commands()).finish())
}

fn commands() -> Vec<String> {
    vec![
        "# on that node: other processes, clock rates, and memory modules".to_owned(),
        "ps -eo pcpu,comm --sort=-pcpu | head".to_owned(),
        "lscpu | grep -i mhz".to_owned(),
        "sudo dmidecode --type memory | grep -E 'Size|Speed'".to_owned(),
    ]
}
