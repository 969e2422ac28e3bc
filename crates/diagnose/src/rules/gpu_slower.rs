use super::Rule;
use crate::draft::Draft;
use crate::fleet::{backend_of_kind, device};
use facts::{
    BackendKind, CeilingRatio, Confidence, Finding, FleetReport, GpuKind, GpuSpeed, GpusReport,
    Severity,
};

pub(super) const RULE: Rule = Rule {
    id: "gpu-slower",
    title: "one GPU is slower than its siblings",
    about: "\
Programs that split their work over GPUs wait for the slowest one. A GPU can pass every check and still run hotter, at
lower clocks, with slower memory or a worse cooler than the others; only the time of each step shows it.

Detected by timing the same verified kernels on GPUs of one name: the median time ratio to the siblings is more than 5 %
above 1, or a measured ceiling (memory copy, memory read, matrix product) is more than 3 % below the siblings'.

Check its clocks, power, temperature and throttle reasons under load. If neither another program, the cooling nor a
power cap explains it, the board may be at fault: ask the provider of a rented machine for another one.",
    links: &["https://docs.nvidia.com/deploy/nvidia-smi/index.html"],
    remedy: |_| commands(0),
    check_gpus: Some(|gpus: &GpusReport| {
        gpus.kinds
            .iter()
            .flat_map(|kind| kind.speed.iter().filter_map(|speed| judge(kind, speed)))
            .collect()
    }),
    check_fleet: Some(|fleet: &FleetReport| {
        let on_gpus = fleet.kinds.iter().filter(|kind| backend_of_kind(fleet, kind) == BackendKind::Cuda);
        on_gpus
            .flat_map(|kind| kind.speed.iter().filter_map(|speed| in_fleet(fleet, kind, speed)))
            .collect()
    }),
    ..Rule::BLANK
};

/// Highest accepted median ratio of kernel times to the siblings'.
const MEDIAN: f64 = 1.05;
/// Highest accepted ratio of the siblings' ceiling to this GPU's.
const CEILING: f64 = 1.03;
/// Maximum number of kernels in a finding.
const LISTED: usize = 5;
const SOURCE: &str = "bench.csv of each";

fn judge(kind: &GpuKind, speed: &GpuSpeed) -> Option<Finding> {
    let gpu = format!("GPU {} ({})", speed.gpu, kind.name);
    Some(
        draft(&RULE, &gpu, speed, (MEDIAN, CEILING))?
            .cause(CAUSE)
            .fix(commands(speed.gpu))
            .finish(),
    )
}

fn in_fleet(fleet: &FleetReport, kind: &GpuKind, speed: &GpuSpeed) -> Option<Finding> {
    let gpu = format!("{} ({})", device(fleet, speed.gpu), kind.name);
    let index = fleet.devices.get(speed.gpu as usize).and_then(|device| device.gpu).unwrap_or(0);
    Some(draft(&RULE, &gpu, speed, (MEDIAN, CEILING))?.cause(CAUSE).fix(commands(index)).finish())
}

const CAUSE: &str = "Its clocks are throttled, another program uses it, or its board or cooling is worse than the others'.";

/// The finding, without cause and fix, about a device that is slower than the limits for kernel times and ceilings allow.
pub(super) fn draft(
    rule: &Rule,
    gpu: &str,
    speed: &GpuSpeed,
    (median, ceiling): (f64, f64),
) -> Option<Draft> {
    let slow = speed.median.filter(|of| *of > median);
    let low = |of: &&CeilingRatio| of.ratio > ceiling;
    let low: Vec<&CeilingRatio> = speed.ceilings.iter().filter(low).collect();
    let over = |ratio: f64| format!("{:.1} %", 100.0 * (ratio - 1.0));
    let title = match (slow, low.first()) {
        (Some(median), _) => {
            format!("{gpu} is slower than its siblings: kernels take {} longer", over(median))
        }
        (None, Some(ceiling)) => format!(
            "{gpu} is slower than its siblings: its {} takes {} longer",
            ceiling.ceiling.words(),
            over(ceiling.ratio)
        ),
        (None, None) => return None,
    };
    let mut draft = rule.finding(Severity::Warning, Confidence::Likely, title);
    if let Some(median) = speed.median {
        let what = format!("median over {} kernels: {median:.3} of the siblings' time", speed.rows);
        draft = draft.evidence(what, SOURCE);
    }
    for row in speed.slowest.iter().take(if slow.is_some() { LISTED } else { 0 }) {
        let what = format!(
            "{}: {:.4} ms, the siblings {:.4} ms ({:.3} times)",
            row.row, row.millis, row.usual_millis, row.ratio
        );
        draft = draft.evidence(what, SOURCE);
    }
    for of in low {
        let what = format!(
            "{}: {:.0} {unit}, the siblings {:.0} {unit}",
            of.ceiling.words(),
            of.rate,
            of.usual,
            unit = of.ceiling.unit()
        );
        draft = draft.evidence(what, SOURCE);
    }
    Some(draft)
}

/// Commands to diagnose the GPU with this index.
fn commands(gpu: u32) -> Vec<String> {
    vec![
        format!("nvidia-smi --query --display=CLOCK,PERFORMANCE,POWER,TEMPERATURE --id={gpu}"),
        "firstlight doctor --verbose".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::gpus::records::{part, timed};
    use crate::{GpuRows, gpus, run_on_gpus};

    #[test]
    fn names_slow_gpus_and_their_kernels() {
        // Times of three kernels on the last GPU, and its ceiling; the siblings have 1 ms and 4000 GB/s.
        let check = |count: u32, millis: [f64; 3], copy: f64, expect: &[&str]| {
            let rows = |millis: [f64; 3]| {
                [("ssd", "a", millis[0]), ("ssd", "b", millis[1]), ("kda", "a", millis[2])]
            };
            let (usual, odd) = (timed(&rows([1.0; 3]), 4000.0), timed(&rows(millis), copy));
            let of = |index| GpuRows {
                backend: facts::BackendKind::Cuda,
                part: part(index),
                parity: &[],
                bench: Some(if index + 1 == count { &odd } else { &usual }),
            };
            let found = run_on_gpus(&gpus(&(0..count).map(of).collect::<Vec<_>>()));
            assert_eq!(found.len(), usize::from(!expect.is_empty()), "{found:?}");
            let text = format!("{found:?}");
            assert!(expect.iter().all(|words| text.contains(words)), "{expect:?} in {text}");
        };
        for count in [2, 3, 8] {
            let name = format!("GPU {} (NVIDIA H200) is slower than its siblings", count - 1);
            check(count, [1.0; 3], 4000.0, &[]);
            check(count, [1.04; 3], 3900.0, &[]);
            // One slow kernel does not make a slow GPU.
            check(count, [2.0, 1.0, 1.0], 4000.0, &[]);
            let slow = "ssd a bf16 chunk: 1.2000 ms, the siblings 1.0000 ms (1.200 times)";
            check(count, [1.2, 1.06, 1.06], 4000.0, &[&name, "kernels take 6.0 % longer", slow]);
            let low = "memory copy: 3800 GB/s, the siblings 4000 GB/s";
            check(count, [1.0; 3], 3800.0, &[&name, "its memory copy takes 5.3 % longer", low]);
        }
        check(1, [2.0; 3], 1.0, &[]);
    }
}
