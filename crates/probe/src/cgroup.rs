//! Limits of a container or service manager on this process, from control groups of version 1 and 2.

use crate::Source;
use facts::Fact;
use std::path::{Path, PathBuf};

/// A process's control groups: lines of /proc/self/cgroup.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Membership {
    /// Path in the unified (version 2) hierarchy.
    pub(crate) unified: Option<String>,
    /// Path of the version 1 memory controller.
    pub(crate) memory: Option<String>,
    /// Controllers mounted together with `cpu` and the path there: (`cpu,cpuacct`, `/user.slice`).
    pub(crate) cpu: Option<(String, String)>,
}

impl Membership {
    pub(crate) fn parse(text: &str) -> Self {
        let mut membership = Self::default();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(_id), Some(controllers), Some(path)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            if controllers.is_empty() {
                membership.unified = Some(path.to_string());
            } else if controllers.split(',').any(|controller| controller == "memory") {
                membership.memory = Some(path.to_string());
            } else if controllers.split(',').any(|controller| controller == "cpu") {
                membership.cpu = Some((controllers.to_string(), path.to_string()));
            }
        }
        membership
    }
}

/// Bytes of memory.max or memory.limit_in_bytes; `None` for no limit.
pub(crate) fn parse_memory_limit(text: &str) -> Option<u64> {
    // Version 1 writes "no limit" as the largest page-aligned number, just below 2^63.
    const UNLIMITED_FROM: u64 = 1 << 62;
    text.trim().parse::<u64>().ok().filter(|bytes| *bytes < UNLIMITED_FROM)
}

/// Cores of cpu.max (`200000 100000`), rounded up; `None` for no limit.
pub(crate) fn parse_cpu_max(text: &str) -> Option<u32> {
    let mut words = text.split_whitespace();
    cores(words.next()?.parse().ok()?, words.next()?.parse().ok()?)
}

fn cores(quota: i64, period: i64) -> Option<u32> {
    // Version 1 writes "no limit" as a quota of -1.
    if quota <= 0 || period <= 0 {
        return None;
    }
    u32::try_from((quota - 1) / period + 1).ok()
}

/// The memory left by the tightest limit: without the group's memory in use, except inactive page cache, which the
/// kernel reclaims first.
pub(crate) fn memory_left(source: &Source, membership: &Membership) -> Option<Fact<u64>> {
    let unified = (
        ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].as_slice(),
        membership.unified.as_deref(),
        ["memory.max", "memory.current", "inactive_file"],
    );
    let first = (
        ["/sys/fs/cgroup/memory"].as_slice(),
        membership.memory.as_deref(),
        ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"],
    );
    let left = |limit: &PathBuf, [used, kept]: [&str; 2]| {
        let bytes = parse_memory_limit(&source.text(limit)?)?;
        let used: u64 = source.word(limit.with_file_name(used))?.parse().ok()?;
        let stat = source.text(limit.with_file_name("memory.stat")).unwrap_or_default();
        let kept = stat.lines().find_map(|line| line.strip_prefix(kept)?.trim().parse().ok());
        let used = used.saturating_sub(kept.unwrap_or(0));
        let words = format!("{}, less what is in use", limit.display());
        Some(Fact::new(bytes.saturating_sub(used), words))
    };
    [unified, first]
        .into_iter()
        .flat_map(|(mounts, group, [limit, used, kept])| {
            let files = files(source, mounts, group, limit);
            files.into_iter().filter_map(move |file| left(&file, [used, kept]))
        })
        .min_by_key(|fact| fact.value)
}

/// The tightest memory limit of this process's group and all groups above it.
pub(crate) fn memory_limit(source: &Source, membership: &Membership) -> Option<Fact<u64>> {
    let v2 = files(
        source,
        &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
        membership.unified.as_deref(),
        "memory.max",
    );
    let v1 = files(
        source,
        &["/sys/fs/cgroup/memory"],
        membership.memory.as_deref(),
        "memory.limit_in_bytes",
    );
    v2.into_iter()
        .chain(v1)
        .filter_map(|file| {
            let bytes = parse_memory_limit(&source.text(&file)?)?;
            Some(Fact::new(bytes, file.display().to_string()))
        })
        .min_by_key(|fact| fact.value)
}

/// The tightest limit in cores of this process's group and all groups above it.
pub(crate) fn cpu_limit(source: &Source, membership: &Membership) -> Option<Fact<u32>> {
    let v2 = files(
        source,
        &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
        membership.unified.as_deref(),
        "cpu.max",
    );
    let v2 = v2.into_iter().filter_map(|file| {
        Some(Fact::new(parse_cpu_max(&source.text(&file)?)?, file.display().to_string()))
    });
    let (controllers, path) = membership.cpu.clone().unzip();
    let together = format!("/sys/fs/cgroup/{}", controllers.unwrap_or_default());
    let v1 = files(source, &["/sys/fs/cgroup/cpu", &together], path.as_deref(), "cpu.cfs_quota_us");
    let v1 = v1.into_iter().filter_map(|file| {
        let quota = source.word(&file)?.parse().ok()?;
        let period = source.word(file.with_file_name("cpu.cfs_period_us"))?.parse().ok()?;
        Some(Fact::new(cores(quota, period)?, file.display().to_string()))
    });
    v2.chain(v1).min_by_key(|fact| fact.value)
}

/// A limit file of a group and of every group above it. Inside a container the group's path may not be mounted, but its
/// root is, so the root is always included.
fn files(source: &Source, mounts: &[&str], group: Option<&str>, name: &str) -> Vec<PathBuf> {
    let Some(group) = group else { return Vec::new() };
    let group = Path::new(group.trim_start_matches('/'));
    let mut files: Vec<PathBuf> = mounts
        .iter()
        .flat_map(|mount| group.ancestors().map(move |path| Path::new(mount).join(path).join(name)))
        .filter(|file| source.is_file(file))
        .collect();
    files.dedup();
    files
}

#[cfg(test)]
mod tests {
    use super::{Membership, parse_cpu_max, parse_memory_limit};

    #[test]
    fn memberships() {
        let v2 = Membership::parse("0::/system.slice/docker-4f.scope\n");
        assert_eq!(v2.unified.as_deref(), Some("/system.slice/docker-4f.scope"));
        let v1 =
            Membership::parse("5:cpu,cpuacct:/a\n4:memory:/b:c\n1:name=systemd:/\n0::/\nnoise\n");
        assert_eq!(v1.memory.as_deref(), Some("/b:c"));
        assert_eq!(v1.cpu, Some(("cpu,cpuacct".to_string(), "/a".to_string())));
        assert_eq!(v1.unified.as_deref(), Some("/"));
    }

    #[test]
    fn limits() {
        assert_eq!(parse_memory_limit("8589934592\n"), Some(8_589_934_592));
        assert_eq!(parse_memory_limit("max\n"), None);
        assert_eq!(parse_memory_limit("9223372036854771712\n"), None);
        assert_eq!(parse_cpu_max("200000 100000\n"), Some(2));
        assert_eq!(parse_cpu_max("150000 100000\n"), Some(2));
        assert_eq!(parse_cpu_max("1 100000\n"), Some(1));
        assert_eq!(parse_cpu_max("max 100000\n"), None);
        assert_eq!(parse_cpu_max("9223372036854775807 1\n"), None);
    }
}
