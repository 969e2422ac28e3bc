//! Processor: model, cores, instruction sets, caches.

use crate::Source;
use crate::cgroup::{self, Membership};
use crate::text::cpuinfo::{self, CpuInfo};
use crate::text::{count_cpu_list, parse_size};
use facts::CompactSort;
use facts::{CpuCache, CpuFacts, Fact, Machine, Platform};
use std::collections::BTreeSet;

const CPUINFO: &str = "/proc/cpuinfo";
const SYSFS: &str = "/sys/devices/system/cpu";

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    if matches!(machine.platform, Platform::MacosAarch64 | Platform::MacosX86_64) {
        macos(source, &mut machine.cpu);
        return;
    }
    let Some(text) = source.text(CPUINFO) else {
        machine.notes.push(format!("{CPUINFO} cannot be read: the processor is unknown"));
        return;
    };
    let info = CpuInfo::parse(&text);
    let cpu = &mut machine.cpu;
    cpu.model = info.model.clone().map(|model| Fact::new(model, CPUINFO));
    cpu.features = (!info.features.is_empty()).then(|| Fact::new(info.features.clone(), CPUINFO));
    cpu.logical_cores = logical_cores(source, &info);
    cpu.physical_cores = physical_cores(source, &info);
    cpu.usable_cores = usable_cores(source);
    cpu.caches = caches(source);
}

fn logical_cores(source: &Source, info: &CpuInfo) -> Option<Fact<u32>> {
    let online = format!("{SYSFS}/online");
    match source.text(&online).as_deref().and_then(count_cpu_list) {
        Some(count) => Some(Fact::new(count, online)),
        None => (info.processors > 0).then(|| Fact::new(info.processors, CPUINFO)),
    }
}

/// Physical cores: pairs of socket and core, from cpuinfo on x86 and from sysfs on Arm.
fn physical_cores(source: &Source, info: &CpuInfo) -> Option<Fact<u32>> {
    let count = |pairs: usize| u32::try_from(pairs).ok();
    if !info.cores.is_empty() {
        return Some(Fact::new(
            count(info.cores.len())?,
            format!("{CPUINFO} physical id, core id"),
        ));
    }
    let smt = format!("{SYSFS}/smt/active");
    if source.word(&smt).as_deref() == Some("0") {
        return Some(Fact::new(logical_cores(source, info)?.value, smt));
    }
    let mut pairs = BTreeSet::new();
    for name in source.list(SYSFS) {
        let is_cpu = name.strip_prefix("cpu").is_some_and(|number| number.parse::<u32>().is_ok());
        let word = |file: &str| source.word(format!("{SYSFS}/{name}/topology/{file}"));
        if let (true, Some(socket), Some(core)) =
            (is_cpu, word("physical_package_id"), word("core_id"))
        {
            pairs.insert((socket, core));
        }
    }
    (!pairs.is_empty())
        .then(|| Some(Fact::new(count(pairs.len())?, format!("{SYSFS}/cpu*/topology"))))?
}

/// The tighter of this process's affinity and its control group's CPU limit.
fn usable_cores(source: &Source) -> Option<Fact<u32>> {
    let status = source.text("/proc/self/status").unwrap_or_default();
    let affinity = parse_affinity(&status)
        .map(|count| Fact::new(count, "/proc/self/status Cpus_allowed_list"));
    let membership = Membership::parse(&source.text("/proc/self/cgroup").unwrap_or_default());
    let quota = cgroup::cpu_limit(source, &membership);
    affinity.into_iter().chain(quota).min_by_key(|fact| fact.value)
}

/// Cores of the affinity line of /proc/self/status: `Cpus_allowed_list:\t0-15`.
pub(crate) fn parse_affinity(text: &str) -> Option<u32> {
    count_cpu_list(text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
}

/// Data and unified caches of the first core, which are those that kernel tiles use.
fn caches(source: &Source) -> Vec<CpuCache> {
    let folder = format!("{SYSFS}/cpu0/cache");
    let mut caches = Vec::new();
    for name in source.list(&folder).iter().filter(|name| name.starts_with("index")) {
        let word = |file: &str| source.word(format!("{folder}/{name}/{file}"));
        let (Some(level), Some(kind), Some(size)) = (word("level"), word("type"), word("size"))
        else {
            continue;
        };
        let (Ok(level), Some(bytes)) = (level.parse(), parse_size(&size)) else { continue };
        let kind = kind.to_ascii_lowercase();
        if kind == "data" || kind == "unified" {
            caches.push(CpuCache { level, kind, bytes, source: format!("{folder}/{name}/size") });
        }
    }
    caches.compact_sort_by_key(|cache| cache.level);
    caches
}

fn macos(source: &Source, cpu: &mut CpuFacts) {
    let sysctl = source.sysctl();
    let cores = |name: &str| {
        let count = u32::try_from(sysctl.number(name)?).ok()?;
        Some(Fact::new(count, format!("sysctl {name}")))
    };
    cpu.model = sysctl
        .word("machdep.cpu.brand_string")
        .map(|model| Fact::new(model.to_string(), "sysctl machdep.cpu.brand_string"));
    cpu.logical_cores = cores("hw.logicalcpu_max").or_else(|| cores("hw.ncpu"));
    cpu.physical_cores = cores("hw.physicalcpu_max");
    // macOS has neither affinity masks nor control groups; hw.activecpu follows its power saving.
    cpu.usable_cores = cores("hw.activecpu").or_else(|| cores("hw.logicalcpu"));
    let features = cpuinfo::features_of_sysctl(sysctl);
    cpu.features = (!features.is_empty())
        .then(|| Fact::new(features, "sysctl hw.optional, machdep.cpu.features"));
    // Apple Silicon's fast cores are performance level 0; the plain names describe the slow ones.
    let names = [
        (1, "data", ["hw.perflevel0.l1dcachesize", "hw.l1dcachesize"]),
        (2, "unified", ["hw.perflevel0.l2cachesize", "hw.l2cachesize"]),
        (3, "unified", ["hw.perflevel0.l3cachesize", "hw.l3cachesize"]),
    ];
    for (level, kind, names) in names {
        let found = names
            .iter()
            .find_map(|name| Some((name, sysctl.number(name).filter(|bytes| *bytes > 0)?)));
        if let Some((name, bytes)) = found {
            cpu.caches.push(CpuCache {
                level,
                kind: kind.to_string(),
                bytes,
                source: format!("sysctl {name}"),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse_affinity;

    #[test]
    fn affinity() {
        let check = |text, expect| assert_eq!(parse_affinity(text), expect, "{text:?}");
        check("Name:\tx\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1\n", Some(2));
        check("Cpus_allowed:\t3\n", None);
        check("Cpus_allowed_list:\t\n", None);
    }
}
