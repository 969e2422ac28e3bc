use super::{Observation, PastedError, Rule, Text};
use crate::host::build_jobs;
use crate::remedy::text;
pub(super) const RULE: Rule = Rule {
    id: "build-out-of-memory",
    title: "a build killed by the out-of-memory killer",
    about: "\
One nvcc thread takes about 5 GB while it compiles attention kernels, and ninja starts as many as there are cores.
When memory runs out, the Linux kernel kills the compiler with SIGKILL, and the log has one word about it, or none.

It shows as
  Killed
alone on a line, as
  nvcc error   : 'cicc' died due to signal 9 (Kill signal)
and in the kernel's log as
  Out of memory: Killed process 48213 (cicc)

Detected by dividing the memory (the container's limit, if there is one) by 5 GB and comparing with the core count.

Set MAX_JOBS to that number, and NVCC_THREADS=1; or install a prebuilt wheel.",
    links: &[
        "https://github.com/Dao-AILab/flash-attention/issues/2079",
    ],
    texts: &[
        Text::new("^Killed$", "ninja: build stopped: subcommand failed.
Killed
error: command failed"),
        Text::new("died due to signal 9 (Kill signal)", "nvcc error   : 'cicc' died due to signal 9 (Kill signal)"),
        Text::new("fatal error: Killed signal terminated program", "g++: fatal error: Killed signal terminated program cc1plus"),
        Text::new("Out of memory: Killed process {pid} (cicc)", "[74210.512345] Out of memory: Killed process 48213 (cicc) total-vm:6213456kB, anon-rss:5123456kB"),
        Text::new("Out of memory: Killed process {pid} (cc1plus)", "[ 4210.5123] Out of memory: Killed process 9213 (cc1plus) total-vm:2213456kB"),
        Text::new("Out of memory: Killed process {pid} (nvcc)", "[ 4210.5123] Out of memory: Killed process 9213 (nvcc) total-vm:2213456kB"),
        Text::new("Out of memory: Killed process {pid} (ptxas)", "[ 4210.5123] Out of memory: Killed process 9213 (ptxas) total-vm:2213456kB"),
    ],
    remedy: |seen| {
        let jobs = build_jobs(seen.machine()).unwrap_or(1);
        let mut lines = vec![format!("export MAX_JOBS={jobs} NVCC_THREADS=1")];
        lines.extend(text(seen.fitting_extension()));
        lines
    },
    observe: Some(observe),
    ..Rule::BLANK
};

fn observe(seen: &PastedError) -> Option<Observation> {
    let machine = seen.machine();
    let jobs = build_jobs(machine)?;
    let cores = machine.cpu.usable_cores.as_ref().or(machine.cpu.logical_cores.as_ref())?;
    let memory = machine.memory.limit_bytes.as_ref().or(machine.memory.total_bytes.as_ref())?;
    Some(Observation::new(
        jobs < cores.value,
        format!(
            "{} cores would start as many compilers; {} GiB of memory is enough for {jobs}",
            cores.value,
            memory.value >> 30
        ),
        format!("{}, {}", memory.source, cores.source),
    ))
}

#[cfg(test)]
mod tests {
    use crate::test_support::{env, machines};
    use facts::Fact;

    #[test]
    fn max_jobs_follow_memory_and_cores() {
        let explain = |gib: u64, cores: u32| {
            let mut machine = machines::a10();
            machine.memory.total_bytes = Some(Fact::new(gib << 30, "/proc/meminfo MemTotal"));
            machine.cpu.usable_cores = Some(Fact::new(cores, "sched_getaffinity"));
            let envs = [env("/v").torch("2.9.1+cu128", Some("12.8")).build()];
            crate::explain("Killed\n", &machine, &envs).remove(0)
        };
        let small = explain(16, 8);
        assert_eq!((small.rule.id, small.confirmed_here), ("build-out-of-memory", Some(true)));
        assert_eq!(small.fix[0], "export MAX_JOBS=3 NVCC_THREADS=1");
        assert_eq!(explain(220, 30).confirmed_here, Some(false));
        assert_eq!(explain(2, 2).fix[0], "export MAX_JOBS=1 NVCC_THREADS=1");
    }
}
