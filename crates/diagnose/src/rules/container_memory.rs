use super::{Context, Need, Rule, Text};
use facts::{Confidence, Fact, Finding, Severity};

pub(super) const RULE: Rule = Rule {
    id: "container-memory",
    title: "a memory limit below the machine's memory",
    about: "\
A container or a systemd slice may use less memory than the machine has, but /proc/meminfo, free and most programs show
the machine's. A build or a model load that looks as if it fits is killed at the limit.

It shows as
  Killed
or exit code 137, often while nvcc compiles (about 5 GB for each thread) or while weights are loaded, and nothing more
is said; the kernel's log names the cgroup.

Seen by comparing the limit of the cgroup (memory.max) with MemTotal.

Nothing is wrong. Count with the limit: fewer build jobs (MAX_JOBS), smaller shards, or a container started with a
higher --memory.",
    links: &["https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files"],
    texts: &[
        Text::new("Memory cgroup out of memory: Killed process {pid}", "\
[74210.512345] Memory cgroup out of memory: Killed process 48213 (cicc) total-vm:6213456kB, anon-rss:5123456kB"),
        Text::new("oom-kill:constraint=CONSTRAINT_MEMCG", "\
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=docker-4f0c.scope,mems_allowed=0,oom_memcg=/docker/4f0c"),
    ],
    remedy: |_| vec!["cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.peak".into()],
    needs: &[Need::MemoryLimit],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    let memory = &context.machine.memory;
    let below = |(limit, total): &(&Fact<u64>, &Fact<u64>)| limit.value < total.value;
    let Some((limit, total)) =
        memory.limit_bytes.as_ref().zip(memory.total_bytes.as_ref()).filter(below)
    else {
        return Vec::new();
    };
    let finding = RULE
        .finding(
            Severity::Info,
            Confidence::Certain,
            format!("this process may use {} of the machine's {}", size(limit.value), size(total.value)),
        )
        .evidence(format!("limit {} bytes", limit.value), limit.source.clone())
        .evidence(format!("machine {} bytes", total.value), total.source.clone())
        .cause("A container or service limit is set below the machine's memory; what goes over it is killed.")
        .finish();
    vec![finding]
}

/// Both units, since vendors and tools mix them: `101.47 GB (94.50 GiB)`.
fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    format!("{:.2} GB ({:.2} GiB)", bytes / 1e9, bytes / f64::from(1u32 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, Machine, Severity::*};

    #[test]
    fn sizes_are_given_in_both_units() {
        assert_eq!(size(101_468_602_368), "101.47 GB (94.50 GiB)");
    }

    fn limited(mut machine: Machine, bytes: u64) -> Machine {
        machine.memory.limit_bytes = Some(Fact::new(bytes, "/sys/fs/cgroup/memory.max"));
        machine
    }

    pub(super) fn cases() -> Vec<Case> {
        vec![
            Case::new(
                "8 GiB of 16",
                limited(machines::in_container(machines::x86()), 8 << 30),
                vec![],
            )
            .finds(
                Info,
                Certain,
                &[
                    "8.59 GB (8.00 GiB) of the machine's 17.18 GB (16.00 GiB)",
                    "8589934592 bytes [/sys/fs/cgroup/memory.max]",
                ],
            ),
            Case::new("a limit above the machine", limited(machines::x86(), 1 << 40), vec![]),
            Case::new("no limit", machines::x86(), vec![]),
        ]
    }
}
