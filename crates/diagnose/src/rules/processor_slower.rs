use super::Rule;
use crate::fleet::{backend_of_kind, device};
use facts::{BackendKind, Finding, FleetReport, GpuKind, GpuSpeed};

pub(super) const RULE: Rule = Rule {
    id: "processor-slower",
    title: "one node's processor is slower than its siblings",
    about: "\
A node whose processor is slow feeds its GPUs late, and a job on many nodes waits for it. A memory module that
is missing, a power profile, a neighbour on the same host or a thermal limit show in nothing but time.

Seen by timing the same verified kernels on processors of one model with as many cores for the process: the
median over all of them is more than 25 % above the siblings'. A processor is shared with the rest of its
machine, other ranks among it: what is less than that, and a single measurement such as a ceiling, is no news
about it.",
    remedy: |_| commands(),
    check_fleet: Some(|fleet: &FleetReport| {
        let there = fleet.kinds.iter().filter(|kind| backend_of_kind(fleet, kind) == BackendKind::Cpu);
        there.flat_map(|kind| kind.speed.iter().filter_map(|speed| judge(fleet, kind, speed))).collect()
    }),
    ..Rule::BLANK
};

/// How much longer kernels may take, as the median of all.
const SLOWER: f64 = 1.25;

fn judge(fleet: &FleetReport, kind: &GpuKind, speed: &GpuSpeed) -> Option<Finding> {
    let processor = format!("{} ({})", device(fleet, speed.gpu), kind.name);
    let draft = super::gpu_slower::draft(&RULE, &processor, speed, (SLOWER, f64::INFINITY))?;
    let cause = "Something else uses it, its clocks are held down, or its memory is slower than the others'.";
    Some(draft.cause(cause).fix(commands()).finish())
}

fn commands() -> Vec<String> {
    vec![
        "# on that node: what else runs, how fast its cores are, and its memory modules".to_owned(),
        "ps -eo pcpu,comm --sort=-pcpu | head".to_owned(),
        "lscpu | grep -i mhz".to_owned(),
        "sudo dmidecode --type memory | grep -E 'Size|Speed'".to_owned(),
    ]
}
