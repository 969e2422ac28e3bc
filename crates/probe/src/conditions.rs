//! Other load on a machine: read before and after kernels are timed.

use crate::nvml::{Nvml, NvmlDevice};
use crate::probes::processes::Stat;
use crate::{Source, text};
use facts::{ConcurrentLoad, Fact, GpuMoment, Moment};
use std::collections::BTreeSet;

const STAT: &str = "/proc/stat";
const LOADAVG: &str = "/proc/loadavg";

/// CPU time of the cores that this process may use, in the kernel's ticks since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    /// Cores.
    cores: u32,
    /// Total time, idle or not.
    all: u64,
    /// Busy time.
    busy: u64,
    /// Time stolen by the hypervisor for other machines.
    stolen: u64,
    /// Time of this process and its children.
    own: u64,
}

/// The current state. A driver is queried if `gpus` is set.
pub fn moment(source: &Source, gpus: bool) -> (Moment, Option<Ticks>) {
    let load = source.text(LOADAVG).as_deref().and_then(parse_load);
    let moment = Moment {
        load: load.map(|load| Fact::new(load, LOADAVG)),
        cpu_mhz: clock(source),
        gpus: if gpus { of_gpus(source) } else { Vec::new() },
    };
    (moment, ticks(source))
}

/// The load between two moments.
pub fn meanwhile(before: Option<Ticks>, after: Option<Ticks>, seconds: f64) -> ConcurrentLoad {
    let Some((before, after)) = before.zip(after) else {
        return ConcurrentLoad { seconds, ..ConcurrentLoad::default() };
    };
    let passed = |of: fn(&Ticks) -> u64| of(&after).saturating_sub(of(&before)) as f64;
    let (all, own) = (passed(|ticks| ticks.all), passed(|ticks| ticks.own));
    let busy = passed(|ticks| ticks.busy);
    // In some sandboxes the counters of the cores do not advance.
    let counts = all > 0.0 && busy >= 0.5 * own;
    let share = |ticks: f64| if all > 0.0 { ticks / all } else { 0.0 };
    let others = f64::from(after.cores) * share((busy - own).max(0.0));
    let stolen = 100.0 * share(passed(|ticks| ticks.stolen));
    ConcurrentLoad {
        seconds,
        cores: after.cores,
        others_cores: counts
            .then(|| Fact::new(others, format!("{STAT}, less this run's own in /proc/PID/stat"))),
        stolen_pct: counts.then(|| Fact::new(stolen, STAT)),
    }
}

/// The load average of the last minute.
pub(crate) fn parse_load(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok().filter(|load: &f64| load.is_finite())
}

/// The mean clock of the cores: from the kernel's governor, or else from cpuinfo.
fn clock(source: &Source) -> Option<Fact<f64>> {
    let folder = "/sys/devices/system/cpu";
    let khz = |name: &String| -> Option<f64> {
        source.word(format!("{folder}/{name}/cpufreq/scaling_cur_freq"))?.parse().ok()
    };
    let governed: Vec<f64> =
        source.list(folder).iter().filter_map(khz).map(|khz| khz / 1e3).collect();
    if let Some(mean) = mean(&governed) {
        return Some(Fact::new(mean, format!("{folder}/cpu*/cpufreq/scaling_cur_freq")));
    }
    let text = source.text("/proc/cpuinfo")?;
    mean(&parse_mhz(&text)).map(|mean| Fact::new(mean, "/proc/cpuinfo cpu MHz"))
}

pub(crate) fn parse_mhz(text: &str) -> Vec<f64> {
    let of_line = |line: &str| line.strip_prefix("cpu MHz")?.split_once(':')?.1.trim().parse().ok();
    text.lines().filter_map(of_line).filter(|mhz: &f64| mhz.is_finite()).collect()
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn ticks(source: &Source) -> Option<Ticks> {
    let status = source.text("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let allowed = allowed.and_then(text::cpu_list);
    let ticks = parse_ticks(&source.text(STAT)?, allowed.as_ref())?;
    Some(Ticks { own: own(source), ..ticks })
}

/// Adds up the lines of these cores, or of all of them.
pub(crate) fn parse_ticks(text: &str, allowed: Option<&BTreeSet<u32>>) -> Option<Ticks> {
    let mut sum = Ticks { cores: 0, all: 0, busy: 0, stolen: 0, own: 0 };
    for line in text.lines() {
        let Some((name, times)) = line.split_once(' ') else { continue };
        let core: Option<u32> = name.strip_prefix("cpu").and_then(|number| number.parse().ok());
        let Some(core) = core else { continue };
        if allowed.is_some_and(|allowed| !allowed.contains(&core)) {
            continue;
        }
        // user nice system idle iowait irq softirq steal; time of virtual machines is part of user.
        let times: Vec<u64> =
            times.split_whitespace().map(|ticks| ticks.parse().unwrap_or(0)).collect();
        let of = |at: usize| times.get(at).copied().unwrap_or(0);
        let busy = [0, 1, 2, 5, 6].into_iter().map(of).fold(0, u64::saturating_add);
        let stolen = of(7);
        let idle = of(3).saturating_add(of(4));
        sum.cores += 1;
        sum.busy = sum.busy.saturating_add(busy);
        sum.stolen = sum.stolen.saturating_add(stolen);
        sum.all = sum.all.saturating_add(busy).saturating_add(stolen).saturating_add(idle);
    }
    (sum.cores > 0).then_some(sum)
}

/// CPU time of this process and its descendants.
fn own(source: &Source) -> u64 {
    let stat = |pid: &str| Stat::parse(&source.text(format!("/proc/{pid}/stat"))?);
    let Some(me) = stat("self") else { return 0 };
    let all: Vec<(u32, Stat)> = source
        .list("/proc")
        .iter()
        .filter_map(|name| Some((name.parse().ok()?, stat(name)?)))
        .collect();
    let mut family = BTreeSet::from([std::process::id()]);
    loop {
        let before = family.len();
        family.extend(
            all.iter()
                .filter(|(_, it)| family.contains(&it.parent))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if family.len() == before {
            break;
        }
    }
    let children = all
        .iter()
        .filter(|(pid, _)| *pid != std::process::id() && family.contains(pid))
        .map(|(_, it)| it.ran_ticks);
    // Ended processes are counted by the parent that waited for them.
    children.fold(me.ran_ticks, u64::saturating_add)
}

fn of_gpus(source: &Source) -> Vec<GpuMoment> {
    let Nvml::Answered(snapshot) = source.ask_nvml_moment() else { return Vec::new() };
    (0..).zip(&snapshot.gpus).map(|(index, device)| of_gpu(source, index, device)).collect()
}

fn of_gpu(source: &Source, gpu: u32, device: &NvmlDevice) -> GpuMoment {
    const CLOCK: &str = "NVML nvmlDeviceGetClockInfo";
    let fact = |value: Option<u32>, from: &str| value.map(|value| Fact::new(value, from));
    let stranger = |pid: u32| {
        // A PID without a process here belongs to the host, or has just ended.
        let name = source.word(format!("/proc/{pid}/comm"))?;
        (!is_of_this_run(source, pid)).then(|| format!("{pid} {name}"))
    };
    let others: Vec<String> =
        device.processes.iter().filter_map(|process| stranger(process.pid)).collect();
    GpuMoment {
        gpu,
        sm_mhz: fact(device.sm_mhz, CLOCK),
        sm_mhz_most: fact(device.sm_mhz_most, "NVML nvmlDeviceGetMaxClockInfo"),
        memory_mhz: fact(device.memory_mhz, CLOCK),
        celsius: fact(device.celsius, "NVML nvmlDeviceGetTemperature"),
        held_down_by: device
            .held_down_by
            .clone()
            .map(|names| Fact::new(names, "NVML nvmlDeviceGetCurrentClocksThrottleReasons")),
        others: device
            .processes_error
            .is_none()
            .then(|| Fact::new(others, "NVML nvmlDeviceGetComputeRunningProcesses")),
    }
}

/// Whether a process is this one, a descendant or an ancestor.
fn is_of_this_run(source: &Source, pid: u32) -> bool {
    let me = std::process::id();
    let mut at = pid;
    // Deeper than any process tree, which also ends a loop in /proc.
    for _ in 0..64 {
        if at == me {
            return true;
        }
        let stat = source.text(format!("/proc/{at}/stat"));
        match stat.as_deref().and_then(Stat::parse) {
            Some(stat) if stat.parent > 1 => at = stat.parent,
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "cpu  100 0 50 1000 0 0 0 10 0 0\n\
        cpu0 60 0 30 500 0 0 0 6 0 0\ncpu1 40 0 20 500 0 0 0 4 0 0\nintr 12 0\nctxt 5\n";
    const AFTER: &str = "cpu  900 0 150 1150 0 0 0 10 0 0\n\
        cpu0 460 0 80 550 0 0 0 6 0 0\ncpu1 440 0 70 600 0 0 0 4 0 0\n";

    fn ticks(text: &str, allowed: Option<&[u32]>, own: u64) -> Option<Ticks> {
        let allowed = allowed.map(|cores| cores.iter().copied().collect());
        Some(Ticks { own, ..parse_ticks(text, allowed.as_ref())? })
    }

    #[test]
    fn load_of_others_is_the_total_less_this_run() {
        let check = |own: u64, allowed: Option<&[u32]>, expect: Option<(u32, f64)>| {
            let (before, after) = (ticks(BEFORE, allowed, 0), ticks(AFTER, allowed, own));
            let got = meanwhile(before, after, 5.0);
            let others =
                got.others_cores.map(|fact| (got.cores, (fact.value * 100.0).round() / 100.0));
            assert_eq!(others, expect, "{own} {allowed:?}");
        };
        // 900 of 1050 ticks were busy.
        check(900, None, Some((2, 0.0)));
        check(450, None, Some((2, 0.86)));
        check(0, None, Some((2, 1.71)));
        check(0, Some(&[1]), Some((1, 0.82)));
        // More than the cores counted: the counters do not advance, and the result is unknown.
        check(2000, None, None);
        assert_eq!(meanwhile(None, ticks(AFTER, None, 0), 5.0).others_cores, None);
        assert_eq!(parse_ticks("", None), None);
        assert_eq!(ticks(BEFORE, Some(&[7]), 0), None);
    }

    #[test]
    fn steal_time_is_reported() {
        let stolen = AFTER.replace("550 0 0 0 6", "550 0 0 0 156");
        let got = meanwhile(ticks(BEFORE, None, 0), ticks(&stolen, None, 900), 5.0);
        assert_eq!(got.stolen_pct.map(|fact| fact.value), Some(12.5));
    }

    #[test]
    fn loads_and_clocks_are_read() {
        assert_eq!(parse_load("1.53 0.98 0.47 3/612 4711\n"), Some(1.53));
        assert_eq!(parse_load("NaN"), None);
        assert_eq!(parse_load(""), None);
        let cpuinfo =
            "processor\t: 0\ncpu MHz\t\t: 2100.000\n\nprocessor\t: 1\ncpu MHz\t\t: 3000.5\n";
        assert_eq!(mean(&parse_mhz(cpuinfo)), Some(2550.25));
        assert_eq!(mean(&parse_mhz("cpu MHz : inf\n")), None);
    }

    #[test]
    fn load_and_process_time_are_read_on_this_machine() {
        if cfg!(target_os = "linux") {
            let (moment, ticks) = moment(&Source::live(), false);
            assert!(moment.load.is_some() && ticks.is_some(), "{moment:?} {ticks:?}");
        }
    }
}
