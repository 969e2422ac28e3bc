//! Main memory and a container's limit.

use crate::Source;
use crate::cgroup::{self, Membership};
use facts::{Fact, Machine, SystemMemory};

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    machine.memory = read(source);
    if machine.memory.total_bytes.is_none() && source.text("/proc/meminfo").is_none() {
        machine
            .notes
            .push("/proc/meminfo cannot be read: the size of main memory is unknown".to_string());
    }
}

/// Only main memory, to know the current free memory.
pub fn read(source: &Source) -> SystemMemory {
    let Some(text) = source.text("/proc/meminfo") else {
        let total = source.sysctl().number("hw.memsize");
        let total_bytes = total.map(|bytes| Fact::new(bytes, "sysctl hw.memsize"));
        return SystemMemory { total_bytes, ..SystemMemory::default() };
    };
    let fact = |key| Some(Fact::new(parse_meminfo(&text, key)?, format!("/proc/meminfo {key}")));
    let total_bytes = fact("MemTotal");
    let membership = Membership::parse(&source.text("/proc/self/cgroup").unwrap_or_default());
    let total = total_bytes.as_ref().map_or(u64::MAX, |fact| fact.value);
    let left = cgroup::memory_left(source, &membership);
    SystemMemory {
        available_bytes: fact("MemAvailable").into_iter().chain(left).min_by_key(|fact| fact.value),
        limit_bytes: cgroup::memory_limit(source, &membership).filter(|limit| limit.value < total),
        total_bytes,
    }
}

/// One value of /proc/meminfo in bytes. The kernel's `kB` are 1024 bytes.
pub(crate) fn parse_meminfo(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let mut words = value.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    match words.next() {
        Some("kB") => number.checked_mul(1024),
        None => Some(number),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::parse_meminfo;

    #[test]
    fn values_in_bytes() {
        let check =
            |text, key, expect| assert_eq!(parse_meminfo(text, key), expect, "{text:?} {key}");
        let text = "MemTotal:       131981020 kB\nMemFree:        1 kB\nMemAvailable:   131451656 kB\nHugePages_Total:       0\n";
        check(text, "MemTotal", Some(135_148_564_480));
        check(text, "MemAvailable", Some(134_606_495_744));
        check(text, "HugePages_Total", Some(0));
        check(text, "Mem", None);
        check("MemTotal: 1 MB\n", "MemTotal", None);
        check("MemTotal: 18446744073709551615 kB\n", "MemTotal", None);
        check("", "MemTotal", None);
    }
}
