//! Disturbances of a run's times, with the limits above which they count.

use crate::format;
use facts::{
    BackendKind, BenchReport, BenchRow, CeilingDrift, CeilingKind, Conditions, RooflineBound,
};

/// Maximum change of a ceiling during the run, in percent, on a quiet machine.
pub(crate) const MOVED_PCT: f64 = 10.0;
/// Maximum share of the usable cores, in percent, that other processes may use.
const OTHERS_PCT: f64 = 10.0;
/// Maximum share of the cores' time, in percent, that the hypervisor may steal.
const STOLEN_PCT: f64 = 2.0;
/// Throttle reasons that mean a fault of cooling or power. A power cap alone is normal under load.
const ALARMS: [&str; 4] =
    ["SW_THERMAL_SLOWDOWN", "HW_THERMAL_SLOWDOWN", "HW_SLOWDOWN", "HW_POWER_BRAKE_SLOWDOWN"];

/// Reasons why a backend's times may be affected by other load, one sentence each; empty if there was none.
pub(crate) fn disturbances(conditions: &Conditions) -> Vec<String> {
    let mut found = Vec::new();
    let meanwhile = &conditions.meanwhile;
    // Load on the cores does not affect kernels on a GPU.
    if conditions.backend == BackendKind::Cpu {
        let cores = f64::from(meanwhile.cores);
        if let Some(others) = &meanwhile.others_cores
            && 100.0 * others.value > OTHERS_PCT * cores
        {
            found.push(format!(
                "other processes kept {} of {cores} cores busy",
                format::significant(others.value, 2)
            ));
        }
        if let Some(stolen) = &meanwhile.stolen_pct
            && stolen.value > STOLEN_PCT
        {
            found.push(format!(
                "the hypervisor gave {} of the cores' time to other machines",
                format::percent(stolen.value)
            ));
        }
    }
    for (when, moment) in [("before", &conditions.before), ("after", &conditions.after)] {
        for gpu in moment.gpus.iter().filter(|_| conditions.backend == BackendKind::Cuda) {
            if let Some(others) = gpu.others.as_ref().filter(|others| !others.value.is_empty()) {
                found.push(format!(
                    "GPU {} had other processes {when} the timing: {}",
                    gpu.gpu,
                    others.value.join(", ")
                ));
            }
            let names = gpu.held_down_by.iter().flat_map(|names| &names.value);
            let alarms: Vec<&str> =
                names.map(String::as_str).filter(|name| ALARMS.contains(name)).collect();
            if !alarms.is_empty() {
                found.push(format!(
                    "the clocks of GPU {} were held down {when} the timing: {}",
                    gpu.gpu,
                    alarms.join(", ")
                ));
            }
        }
    }
    found.extend(conditions.ceilings.iter().filter_map(moved));
    found
}

fn moved(twice: &CeilingDrift) -> Option<String> {
    (twice.moved_pct() > MOVED_PCT).then(|| {
        format!(
            "the ceiling of the {} moved by {}: {} {unit} before and {} {unit} after the kernels",
            twice.ceiling.words(),
            format::percent(twice.moved_pct()),
            format::significant(twice.before, 4),
            format::significant(twice.after, 4),
            unit = twice.ceiling.unit()
        )
    })
}

/// Whether the ceiling of a row changed while kernels were timed, so that the row's share of it is not valid.
pub(crate) fn ceiling_moved(bench: &BenchReport, row: &BenchRow) -> bool {
    let Some(conditions) = of(Some(bench), row.backend) else { return false };
    let moved = |twice: &&CeilingDrift| twice.moved_pct() > MOVED_PCT;
    let limits = |twice: &CeilingDrift| match (row.against, row.bound) {
        (Some(against), _) => twice.ceiling == against,
        (None, RooflineBound::Memory) => {
            matches!(twice.ceiling, CeilingKind::Copy | CeilingKind::Read)
        }
        (None, RooflineBound::Compute) => {
            matches!(twice.ceiling, CeilingKind::GemmF32 | CeilingKind::GemmBf16)
        }
    };
    conditions.ceilings.iter().filter(moved).any(limits)
}

/// The conditions of a backend, if they were recorded.
pub(crate) fn of(bench: Option<&BenchReport>, backend: BackendKind) -> Option<&Conditions> {
    bench?.conditions.iter().find(|conditions| conditions.backend == backend)
}

/// Every disturbance of a run: `cpu: other processes kept 1.3 of 2 cores busy`.
pub(crate) fn all(bench: &BenchReport) -> Vec<String> {
    let of_backend = |conditions: &Conditions| {
        let backend = conditions.backend;
        disturbances(conditions).into_iter().map(move |why| format!("{backend}: {why}"))
    };
    bench.conditions.iter().flat_map(of_backend).collect()
}

/// The values before and after the run, as rows of a table.
pub(crate) fn rows(conditions: &Conditions) -> Vec<[String; 4]> {
    let mut rows = Vec::new();
    let absent = || format::ABSENT.to_owned();
    let (before, after) = (&conditions.before, &conditions.after);
    let mut row = |what: String, values: [Option<String>; 2], source: Option<&String>| {
        if let Some(source) = source {
            let [before, after] = values.map(|value| value.unwrap_or_else(absent));
            rows.push([what, before, after, source.clone()]);
        }
    };
    let two = |value: f64| format::significant(value, 3);
    row(
        "Load of the last minute".to_owned(),
        [&before.load, &after.load].map(|load| load.as_ref().map(|load| two(load.value))),
        after.load.as_ref().map(|load| &load.source),
    );
    row(
        "Clock of the cores".to_owned(),
        [&before.cpu_mhz, &after.cpu_mhz]
            .map(|mhz| mhz.as_ref().map(|mhz| format!("{:.0} MHz", mhz.value))),
        after.cpu_mhz.as_ref().map(|mhz| &mhz.source),
    );
    let meanwhile = &conditions.meanwhile;
    let seconds = format::duration(meanwhile.seconds * 1e3);
    if let Some(others) = &meanwhile.others_cores {
        let words = format!("{} of {} cores, over {seconds}", two(others.value), meanwhile.cores);
        row("Kept busy by others".to_owned(), [None, Some(words)], Some(&others.source));
    }
    if let Some(stolen) = &meanwhile.stolen_pct {
        let words = format::percent(stolen.value);
        row("Given to other machines".to_owned(), [None, Some(words)], Some(&stolen.source));
    }
    for gpu in &after.gpus {
        let earlier = before.gpus.iter().find(|other| other.gpu == gpu.gpu);
        let both =
            |of: &dyn Fn(&facts::GpuMoment) -> Option<String>| [earlier.and_then(of), of(gpu)];
        let mhz = |fact: &Option<facts::Fact<u32>>| {
            fact.as_ref().map(|fact| format!("{} MHz", fact.value))
        };
        let name = |what: &str| format!("GPU {}: {what}", gpu.gpu);
        let most = mhz(&gpu.sm_mhz_most).map(|most| format!(" of {most}")).unwrap_or_default();
        row(
            name("clock"),
            both(&|gpu| mhz(&gpu.sm_mhz).map(|now| format!("{now}{most}"))),
            gpu.sm_mhz.as_ref().map(|fact| &fact.source),
        );
        row(
            name("memory clock"),
            both(&|gpu| mhz(&gpu.memory_mhz)),
            gpu.memory_mhz.as_ref().map(|fact| &fact.source),
        );
        row(
            name("temperature"),
            both(&|gpu| gpu.celsius.as_ref().map(|fact| format!("{} °C", fact.value))),
            gpu.celsius.as_ref().map(|fact| &fact.source),
        );
        let listed = |names: &Option<facts::Fact<Vec<String>>>| {
            let names = names.as_ref()?;
            Some(match names.value.as_slice() {
                [] => "nothing".to_owned(),
                names => names.join(", "),
            })
        };
        row(
            name("clocks held down by"),
            both(&|gpu| listed(&gpu.held_down_by)),
            gpu.held_down_by.as_ref().map(|fact| &fact.source),
        );
        row(
            name("other processes"),
            both(&|gpu| listed(&gpu.others)),
            gpu.others.as_ref().map(|fact| &fact.source),
        );
    }
    rows
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use facts::{CeilingKind, ConcurrentLoad, Fact, GpuMoment, Moment};

    /// Conditions of a backend that was timed while other processes used `others` of two cores, with the copy ceiling
    /// before and after.
    pub(crate) fn conditions(
        backend: BackendKind,
        others: f64,
        [before, after]: [f64; 2],
    ) -> Conditions {
        Conditions {
            backend,
            before: Moment::default(),
            after: Moment::default(),
            meanwhile: ConcurrentLoad {
                seconds: 20.0,
                cores: 2,
                others_cores: Some(Fact::new(others, "/proc/stat")),
                stolen_pct: Some(Fact::new(0.0, "/proc/stat")),
            },
            ceilings: vec![CeilingDrift { ceiling: CeilingKind::Copy, before, after }],
        }
    }

    #[test]
    fn only_busy_runs_have_disturbances_with_figures() {
        let check = |conditions: Conditions, expect: &[&str]| {
            assert_eq!(disturbances(&conditions), expect);
        };
        use BackendKind::{Cpu, Cuda};
        check(conditions(Cpu, 0.1, [53.4, 52.0]), &[]);
        check(conditions(Cpu, 1.34, [53.4, 52.0]), &["other processes kept 1.3 of 2 cores busy"]);
        check(
            conditions(Cpu, 0.0, [53.4, 43.6]),
            &[
                "the ceiling of the memory copy moved by 18.4 %: 53.40 GB/s before and 43.60 GB/s after the kernels",
            ],
        );
        // A GPU's kernels do not run on the cores.
        check(conditions(Cuda, 1.9, [4273.0, 4270.0]), &[]);
        let mut stolen = conditions(Cpu, 0.0, [1.0, 1.0]);
        stolen.meanwhile.stolen_pct = Some(Fact::new(7.4, "/proc/stat"));
        check(stolen, &["the hypervisor gave 7.4 % of the cores' time to other machines"]);
        let mut shared = conditions(Cuda, 0.0, [1.0, 1.0]);
        shared.after.gpus = vec![GpuMoment {
            gpu: 3,
            held_down_by: Some(Fact::new(
                vec!["SW_POWER_CAP".into(), "HW_THERMAL_SLOWDOWN".into()],
                "NVML",
            )),
            others: Some(Fact::new(vec!["4711 python".into()], "NVML")),
            ..GpuMoment::default()
        }];
        check(
            shared,
            &[
                "GPU 3 had other processes after the timing: 4711 python",
                "the clocks of GPU 3 were held down after the timing: HW_THERMAL_SLOWDOWN",
            ],
        );
    }
}
